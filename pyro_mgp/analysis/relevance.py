"""Which column informs which: how much each link's function moves with each of its inputs.

ARD lengthscales say how fast the Matérn part of a kernel forgets along an input; the linear part has none,
and a short lengthscale of a function that hardly varies says nothing. So we ask the function that was learnt:

    relevance of input p = √ mean_i (∂μ(x_i) / ∂x_p)²,

μ being the posterior mean of the link's latent function and x_i the training rows. If it is linear, this is
the size of its slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_mgp.data.column import ColumnCodec
from pyro_mgp.data.column_spec import Label
from pyro_mgp.model.conditional import Conditional
from pyro_mgp.model.kernels import lengthscales

if TYPE_CHECKING:
    from pyro_mgp.imputer import MGPImputer

Measure = Literal["derivative", "lengthscale"]

# Rows whose derivatives are taken at a time, and at most: the mean square of so many is known to a per cent.
_AT_ONCE, _MOST_ROWS = 2_000, 20_000


def relevance(
    imputer: MGPImputer, X: pd.DataFrame | ArrayLike | None = None, *, by: Measure = "derivative"
) -> pd.DataFrame:
    """How much each column tells about each column with a link.

    Units are standardised ones of both columns (of bent numbers, after the bend), or those of the latent
    function: probit of booleans, ordered levels and categories, log of counts. So compare columns within a
    row of the result. What nearby rows add to a link is not in it.

    A category counts as one column: of its indicators, with correlations C among the rows and derivatives g,
    the square is gᵀCg, of what the function varies by as the category does; where it is predicted, squares
    are averaged over its links.

    Args:
        imputer: A fitted imputer.
        X: Rows to take derivatives at, their holes filled by the starting fill; None for the training table.
            Of more than 20,000 rows, as many that stand evenly apart are taken.
        by: "derivative", or "lengthscale" for inverse ARD lengthscales, roots of sums of squares of
            categories; 1 where a kernel has none.

    Returns:
        One row per column with a link, a target last, one column per column that may inform it. NaN where it
        may not: the column itself, constant ones, and those that specs leave out.

    Raises:
        ValueError: `by` is none of these, X does not fit the fitted table, or is None for a loaded imputer.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> frame = pd.DataFrame({"left": x[:, 0], "right": x[:, 1], "twice": 2 * x[:, 0]})
        >>> frame.loc[::5, "twice"] = np.nan
        >>> relevance(MGPImputer(random_state=0).fit(frame)).round(1)
        informed by  left  right  twice
        column
        twice         1.0    0.0    NaN
    """
    check_is_fitted(imputer, "chain_")
    if by not in get_args(Measure):
        raise ValueError(f"by must be one of {list(get_args(Measure))}, got {by!r}")
    links = imputer.chain_.links
    groups, columns = _groups(imputer)
    if by == "derivative":
        gradients = _gradients(imputer.chain_.conditionals(), _rows(imputer, X))
        squares = [_mean_squares(gradient, groups, columns) for gradient in gradients]
    else:
        precisions = [_precisions(lengthscales(link.kernel, len(link.inputs)), link.inputs) for link in links]
        squares = [_sums(precision, groups, len(columns)) for precision in precisions]
    inputs = [np.isin(np.arange(len(columns)), groups[link.inputs.cpu().numpy()]) for link in links]
    of_links = np.array(
        [np.where(seen, square, np.nan) for seen, square in zip(inputs, squares, strict=True)]
    )
    return _by_column(imputer, of_links.reshape(len(links), len(columns)), groups)


def _groups(imputer: MGPImputer) -> tuple[NDArray[np.intp], list[ColumnCodec]]:
    """To which column each of the chain's D columns belongs, `[D]`, and their codecs; a target's is last."""
    groups, columns = imputer.codec_.groups, list(imputer.codec_.columns)
    if imputer.target_codec_ is not None:
        groups, columns = np.append(groups, len(columns)), [*columns, imputer.target_codec_]
    return groups, columns


def _rows(imputer: MGPImputer, X: pd.DataFrame | ArrayLike | None) -> Tensor:
    """Rows with their holes filled, `[n, D]`."""
    if X is None and not hasattr(imputer, "_fitted"):
        raise ValueError(
            "this imputer does not hold the table it was fitted to: give rows as relevance(imputer, X)"
        )
    rows = (imputer._own_table() if X is None else imputer._encode(X)).rows
    apart = torch.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).long()
    return imputer.initial_fill_.expected(rows[apart].to(imputer.initial_fill_.device))


def _gradients(conditionals: Sequence[Conditional], rows: Tensor) -> list[Tensor]:
    """Derivatives of each link's mean function by all columns of the table, `[n, D]`."""
    found = []
    for conditional in conditionals:
        parts = []
        for batch in rows.split(_AT_ONCE):
            at = batch.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(conditional.functions(at).sum(), at)
            parts.append(gradient)
        found.append(torch.cat(parts))
    return found


def _mean_squares(
    gradient: Tensor, groups: NDArray[np.intp], columns: Sequence[ColumnCodec]
) -> NDArray[np.float64]:
    """Mean squares of derivatives `[n, D]` by C columns, `[C]`."""
    g = gradient.cpu().numpy()
    found = np.zeros(len(columns))
    for c, column in enumerate(columns):
        own = g[:, groups == c]
        if own.shape[1]:
            found[c] = np.einsum("np,pq,nq->n", own, _correlations(column), own).mean()
    return found


def _correlations(column: ColumnCodec) -> NDArray[np.float64]:
    """Among the encoded columns of a column: of its rows, just one indicator is on."""
    if column.width == 1:
        return np.ones((1, 1))
    shares, scale = np.array(column.mean), np.array(column.scale)
    return (np.diag(shares) - np.outer(shares, shares)) / np.outer(scale, scale)


def _precisions(scales: Tensor, inputs: Tensor) -> NDArray[np.float64]:
    """Squares of inverse lengthscales, placed in the columns of the table, `[D]` or fewer."""
    placed = torch.zeros(int(inputs.max()) + 1)
    placed[inputs.cpu()] = scales.square().reciprocal()
    return placed.double().numpy()


def _sums(values: NDArray[np.float64], groups: NDArray[np.intp], n_columns: int) -> NDArray[np.float64]:
    return np.bincount(groups[: len(values)], values, minlength=n_columns).astype(np.float64)


def _by_column(imputer: MGPImputer, squares: NDArray[np.float64], groups: NDArray[np.intp]) -> pd.DataFrame:
    """Roots of mean squares over the links of each column, from squares per link, `[L, C]`."""
    labels: list[Label] = [column.name for column in imputer.codec_.columns]
    if imputer.target_codec_ is not None:
        labels.append(imputer._link_specs[-1].name)  # which is none of the others
    own = groups[[link.column for link in imputer.chain_.links]] if len(squares) else groups[:0]
    linked = np.unique(own)
    means = np.array([squares[own == c].mean(0) for c in linked]).reshape(len(linked), len(labels))
    table = pd.DataFrame(
        np.sqrt(means),
        index=pd.Index([labels[c] for c in linked], name="column"),
        columns=pd.Index(labels, name="informed by"),
    )
    target_informs = imputer.target_codec_ is None or imputer.target_is_input
    return table if target_informs else table.iloc[:, :-1]
