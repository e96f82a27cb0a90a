"""Shares of the variance of columns that the parts of their links explain.

The posterior mean of a link at a row is ℓ(x) + c(x) + m(x): the linear function ℓ that comes closest to the
mean of its sparse GP over all rows, the rest c of that mean, and the local GP. The share of a part a is

    cov(a, y) / var(y)

over the rows in which the column y is observed. With that of the residual, shares add up to one (Pratt,
*Dividing the indivisible*, 1987). Inputs that are missing are at their conditional means given the row under
a joint Gaussian, and a row is not its own neighbour; the sparse GP has learnt from the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_mgp.analysis.relevance import ChainImputer, encoded_rows, groups_and_labels
from pyro_mgp.model.likelihoods.levels import none_is_on
from pyro_mgp.sampling.local_gp import LocalLink
from pyro_mgp.sampling.neighbours import responses
from pyro_mgp.sampling.observed_cells import own_references

PARTS = ("linear", "curved", "nearby rows", "unexplained")
"""Names of the parts."""


@torch.no_grad()
def variance_shares(imputer: ChainImputer, X: pd.DataFrame | ArrayLike | None = None) -> pd.DataFrame:
    """Compute what share of the variance of each column with a link the parts of the link explain.

    Shares of a category are averages over its links. For counts, and labels without local GP, they are shares
    of the variance of the mean of the latent function (probit or log), which has no unexplained part. With
    few rows per input they are too favourable. In a joint density links see complete and earlier columns
    only.

    Args:
        imputer: Imputer after `fit`.
        X: Rows to take, or 20,000 evenly spaced ones of these; None for the training table.

    Returns:
        One row per column with a link (the target last), and one column per part: "linear", "curved",
        "nearby rows" and "unexplained". NaN for columns that do not vary, or have no more observed cells than
        inputs.

    Raises:
        ValueError: If X does not match the fitted table, or X is None for a loaded imputer.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> x = np.random.default_rng(0).normal(size=100)
        >>> frame = pd.DataFrame({"x": x, "twice": 2 * x})
        >>> frame.loc[::5, "twice"] = np.nan
        >>> variance_shares(MGPImputer(random_state=0).fit(frame)).round(2)
                linear  curved  nearby rows  unexplained
        column
        twice      1.0     0.0          0.0          0.0
    """
    check_is_fitted(imputer, "model_")
    model = imputer.model_
    given = encoded_rows(model, X).to(model.initial_fill.device)
    rows, near = model.initial_fill.expected(given), model.neighbours
    keys = None if model.own is None else model.own.encoded.keys
    own = None if near is None else own_references(given, model.chain, near, keys).to(rows.device)
    found = []
    for i, (link, conditional) in enumerate(zip(model.chain.links, model.chain.conditionals(), strict=True)):
        applies = none_is_on(given.values, link.unless)
        here = (given.observed[:, link.column] & applies).nonzero()[:, 0]
        is_local = near is not None and len(near.links[i]) > 0
        smooth = (responses(conditional, rows[here]) if is_local else conditional.functions(rows[here]))[0]
        nearby = torch.zeros_like(smooth)
        if near is not None and is_local:
            parts = here.split(near.rows_at_once(len(near.links[i])))
            nearby = torch.cat([_local_means(near.links[i], rows[part], own, part) for part in parts])
        linear = _linear_fit(rows[here][:, link.inputs], smooth)
        values = given.values[here, link.column] if link.is_gaussian or is_local else smooth
        enough = len(here) > len(link.inputs) + 1
        found.append(_shares(values, linear, smooth - linear, nearby) if enough else [math.nan] * len(PARTS))
    groups, labels = groups_and_labels(model)
    index = pd.Index([labels[groups[link.column]] for link in model.chain.links], name="column")
    of_links = pd.DataFrame(found, index, columns=pd.Index(PARTS), dtype=np.float64)
    return of_links.groupby(level=0, sort=False).mean()


def _local_means(metrics: Sequence[LocalLink], rows: Tensor, own: Tensor | None, here: Tensor) -> Tensor:
    """Return the means `[n]` of a link's local GPs, averaged over its metrics, at the rows `here`."""
    posteriors = [local.posterior(rows, None if own is None else own[here]) for local in metrics]
    return torch.stack([each.moments(rows[None]).mean[0] for each in posteriors]).mean(0)


def _linear_fit(inputs: Tensor, values: Tensor) -> Tensor:
    """Return the least-squares linear function of inputs `[n, P]` that comes closest to values `[n]`."""
    design = torch.cat([torch.ones_like(inputs[:, :1]), inputs], dim=1)
    # The pseudoinverse, since indicators of a category are collinear with the intercept.
    return design @ (torch.linalg.pinv(design) @ values)


def _shares(values: Tensor, *parts: Tensor) -> list[float]:
    """Return the shares of the variance of values `[n]` of the parts and of the residual."""
    centred = values - values.mean()
    of_parts = [float(centred @ part / centred.square().sum()) for part in parts]
    return [*of_parts, 1 - sum(of_parts)]
