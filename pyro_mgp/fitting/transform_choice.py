"""Choice between transformed columns and columns in their own units.

A transform that makes a column more nearly normal may spoil its relations to other columns: where most cells
of a column are equal, arcsinh widens the gap between these and the others, and what was a linear function of
other columns no longer is one. Transforms are therefore judged by all columns together (Andrews, Gnanadesikan
and Warner, *Biometrics* 1971), but by a score, since repeated cells dominate a likelihood. Each observed cell
is predicted from the other observed cells of its row by a joint Gaussian of all columns, with and without
transforms, and the quantiles q of both predictions, in the column's own units, are compared by

    CRPS = 2 ∫ (p - 1[y < q(p)]) (y - q(p)) dp,      0 < p < 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp.data.codecs.kinds import NumberCodec
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.table import TableCodec
from pyro_mgp.sampling.initial_fill import InitialFill

# Rows by which transforms are judged, and most encoded columns: time grows with the cube of their number.
_ROWS, _MOST_COLUMNS = 1000, 100
# Quantiles of a prediction.
_QUANTILES = 20
# Standard errors by which predictions without transforms must be better.
_CLEARLY = 2.0

Numbers = NDArray[np.float64]
ToOwnUnits = Callable[[Numbers], Numbers]
"""Map from encoded cells of any shape to numbers in a column's own units."""


def predicts_better_untransformed(codec: TableCodec, table: EncodedTable) -> bool:
    """Return whether the numbers of a table clearly predict each other better without their transforms."""
    numbers = [each for each in codec.columns if isinstance(each, NumberCodec)]
    columns = {codec.slices[column.name].start: column for column in numbers}
    optional = [d for d, column in columns.items() if column.has_optional_warp]
    if not optional or codec.n_encoded > _MOST_COLUMNS:
        return False
    rows = table[table.few(_ROWS)]
    with_transforms = {d: partial(_as_drawn, column) for d, column in columns.items()}
    own = {d: to_own(rows.values[:, d].numpy()) for d, to_own in with_transforms.items()}
    without, plain = dict(with_transforms), rows.values.clone()
    for d in optional:
        seen = own[d][rows.observed[:, d].numpy()]
        centre, scale = float(seen.mean()), max(float(seen.std()), np.finfo(float).tiny)
        without[d] = partial(_linear, centre, scale)
        plain[:, d] = torch.as_tensor((own[d] - centre) / scale)
    scores = (
        _mean_scores(values, rows.observed, own, to_own)
        for values, to_own in ((plain, without), (rows.values, with_transforms))
    )
    gain = np.subtract(*scores)
    gain = gain[~np.isnan(gain)]
    return bool(gain.mean() < -_CLEARLY * gain.std() / math.sqrt(len(gain)))


def _as_drawn(column: NumberCodec, encoded: Numbers) -> Numbers:
    """Return encoded cells as they are drawn, in standard deviations of the column."""
    own = column.in_own_units(encoded[..., None])
    return (own if column.warp is None else np.clip(own, *column.drawn_range)) / column.own_scale[0]


def _linear(centre: float, scale: float, standardised: Numbers) -> Numbers:
    return centre + scale * standardised


def _mean_scores(
    values: Tensor, observed: Tensor, own: Mapping[int, Numbers], to_own: Mapping[int, ToOwnUnits]
) -> Numbers:
    """Return the mean CRPS of each row's numbers, `[n]`, NaN for rows without any.

    Takes encoded rows `[n, D]`, and by encoded column the numbers `[n]` and the map to their units.
    """
    gaussian = InitialFill.fit(values, observed, "linear")
    means, variances = gaussian.left_out(values, observed)
    levels = (torch.arange(_QUANTILES, dtype=values.dtype) + 0.5) / _QUANTILES
    normal, p = torch.special.ndtri(levels)[:, None], levels.numpy()[:, None]
    total, count = np.zeros(len(values)), np.zeros(len(values))
    for d, numbers in own.items():
        quantiles = to_own[d]((means[:, d] + variances[:, d].sqrt() * normal).numpy())
        below = numbers < quantiles
        seen = observed[:, d].numpy()
        total += np.where(seen, 2 * ((p - below) * (numbers - quantiles)).mean(0), 0.0)
        count += seen
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
