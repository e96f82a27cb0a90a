"""Relevance of columns for each other: how strongly a link's function varies with each input.

    relevance of input p = √ mean_i (∂μ(x_i) / ∂x_p)²,

where μ is the posterior mean of the link's latent function and x_i are the training rows. For a linear
function this is the absolute slope. ARD lengthscales say less: they do not describe the linear part of a
kernel, and the lengthscale of a function that hardly varies has no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_mgp._support.checks import one_of
from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.model.conditional import Conditional
from pyro_mgp.model.kernels import lengthscales
from pyro_mgp.model.link_specs import rows_in_kernels
from pyro_mgp.sampling.fitted_model import FittedModel

Measure = Literal["derivative", "lengthscale"]
Numbers = NDArray[np.float64]

# Rows differentiated at a time, and in total: enough to know a mean square to one per cent.
_AT_ONCE, _MAX_ROWS = 2_000, 20_000


class ChainImputer(Protocol):
    """Fitted imputer with a chain of Gaussian processes."""

    model_: FittedModel


def relevance(
    imputer: ChainImputer, X: pd.DataFrame | ArrayLike | None = None, *, by: Measure = "derivative"
) -> pd.DataFrame:
    """Compute the relevance of each column as a predictor of each column that has a link.

    Units are standardised (after the transform, if a column has one), and latent for the predicted column:
    probit for booleans, ordered levels and categories, log for counts. Local GPs are not included. A category
    counts as one column: with derivatives g by its indicators, and their correlations C over the rows, its
    squared relevance is gᵀCg; squares are averaged over the links of a predicted one.

    Args:
        imputer: Imputer after `fit`.
        X: Rows at which to differentiate, with missing cells at the initial fill, or 20,000 evenly spaced
            ones of these; None for the training table.
        by: "derivative", or "lengthscale" for inverse ARD lengthscales, which are 1 where a kernel has none,
            and root sums of squares for categories.

    Returns:
        One row per column with a link (the target last), and one column per potential predictor. NaN for
        columns that are not inputs: the column itself, constant ones, and those excluded by column specs.

    Raises:
        ValueError: If `by` is unknown, X does not match the fitted table, or X is None for a loaded imputer.

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
    check_is_fitted(imputer, "model_")
    one_of("by", by, get_args(Measure))
    model, links = imputer.model_, imputer.model_.chain.links
    codec, target = model.encoder.codec, model.encoder.target
    columns = [*codec.columns, *([] if target is None else [target])]
    groups, labels = groups_and_labels(model)
    inputs = [groups[link.inputs.cpu().numpy()] for link in links]
    if by == "derivative":
        conditionals, rows = model.chain.conditionals(), model.initial_fill.expected(encoded_rows(model, X))
        found = [_mean_squares(_gradient(each, rows), groups, columns) for each in conditionals]
    else:
        inverses = [lengthscales(link.kernel, len(link.inputs)).pow(-2).numpy() for link in links]
        pairs = zip(inputs, inverses, strict=True)
        found = [np.bincount(at, own, len(columns)).astype(np.float64) for at, own in pairs]
    squares = np.full((len(links), len(columns)), np.nan)
    for own, here, square in zip(squares, inputs, found, strict=True):
        own[here] = square[here]
    of_links = pd.DataFrame(squares, columns=pd.Index(labels, name="informed by"))
    table = of_links.groupby([groups[link.column] for link in links]).mean().pow(0.5)
    table.index = pd.Index([labels[c] for c in table.index], name="column")
    # The target is the last encoded column, of the last link. Some engines let no other link see it.
    seen = target is None or all(codec.n_encoded in spec.inputs for spec in model.link_specs[:-1])
    return table if seen else table.iloc[:, :-1]


def groups_and_labels(model: FittedModel) -> tuple[NDArray[np.intp], list[Label]]:
    """Return the column of each encoded column, `[D]`, and the labels of columns, the target last."""
    codec = model.encoder.codec
    groups, labels = codec.groups, [column.name for column in codec.columns]
    if model.encoder.target is not None:
        groups = np.append(groups, len(labels))
        labels.append(model.chain.names[-1])  # differs from all other labels
    return groups, labels


def encoded_rows(model: FittedModel, X: pd.DataFrame | ArrayLike | None) -> EncodedTable:
    """Return at most 20,000 encoded rows of X, or of the training table if it is None.

    They are rows of groups whose effects are in kernels.
    """
    if X is None and model.own is None:
        raise ValueError(
            "this imputer does not hold the table of its fit: pass one, as in relevance(imputer, X)"
        )
    rows = (model.own_table() if X is None else model.encoder.encode(X)).encoded
    rows = rows[rows_in_kernels(model.encoder.codec, rows.values)]
    some = torch.linspace(0, len(rows) - 1, min(len(rows), _MAX_ROWS)).long()
    return rows[some]


def _gradient(conditional: Conditional, rows: Tensor) -> Numbers:
    """Return the derivatives of a link's mean function with respect to all encoded columns, `[n, D]`."""
    parts = []
    for batch in rows.split(_AT_ONCE):
        at = batch.detach().requires_grad_()
        parts += torch.autograd.grad(conditional.functions(at).sum(), at)
    return torch.cat(parts).double().cpu().numpy()


def _mean_squares(gradient: Numbers, groups: NDArray[np.intp], columns: Sequence[ColumnCodec]) -> Numbers:
    """Return the mean squared derivative with respect to each of C columns, `[C]`."""
    found = np.zeros(len(columns))
    for c, column in enumerate(columns):
        own, correlations = gradient[:, groups == c], np.ones((1, 1))
        if column.kind is Kind.SEMICONTINUOUS:
            correlations = np.diag([1.0, 1 - column.mean[0]])  # amounts vary in their rows only
        elif column.width > 1:
            # Exactly one indicator of a category is on in each row.
            shares, scale = np.array(column.mean), np.array(column.scale)
            correlations = (np.diag(shares) - np.outer(shares, shares)) / np.outer(scale, scale)
        if column.width:
            found[c] = np.einsum("np,pq,nq->n", own, correlations, own).mean()
    return found
