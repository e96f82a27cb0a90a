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

import numpy as np
import torch
from torch import Tensor

from pyro_mgp.data.codecs.kinds import IntegerCodec, NumberCodec
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.limits import Numbers
from pyro_mgp.data.table import TableCodec
from pyro_mgp.sampling.initial_fill import InitialFill

# Rows by which transforms are judged, and most encoded columns: time grows with the cube of their number.
_ROWS, _MOST_COLUMNS = 1000, 100
# Fewest observed cells of a column in these rows; columns with fewer are left out.
_FEWEST = 20
# Quantiles of a prediction.
_QUANTILES = 20
# Standard errors by which predictions without transforms must be better.
_CLEARLY = 2.0

ToOwnUnits = Callable[[Numbers], Numbers]
"""Map from encoded cells of any shape to numbers as they are drawn, in standard deviations of the column."""


def predicts_better_untransformed(codec: TableCodec, table: EncodedTable) -> bool:
    """Return whether the numbers of a table clearly predict each other better without their transforms."""
    names = codec.slices
    columns = {names[each.name].start: each for each in codec.columns if isinstance(each, NumberCodec)}
    if codec.n_encoded > _MOST_COLUMNS:
        return False
    rows = table[table.random_rows(_ROWS)]
    enough = (rows.observed.sum(0) >= _FEWEST).nonzero()[:, 0].tolist()
    values, observed = rows.values[:, enough], rows.observed[:, enough]
    place = {i: columns[d] for i, d in enumerate(enough) if d in columns}
    if not any(column.has_optional_warp for column in place.values()):
        return False
    plain, own = values.clone(), dict[int, Numbers]()
    with_transforms, without = dict[int, ToOwnUnits](), dict[int, ToOwnUnits]()
    for i, column in place.items():
        with_transforms[i] = without[i] = _inverse(column)
        own[i] = with_transforms[i](values[:, i].numpy())
        if column.has_optional_warp:
            centre = float(own[i][observed[:, i].numpy()].mean())
            without[i] = _shift(column, centre)
            plain[:, i] = torch.as_tensor(own[i] - centre)
    gain = _mean_scores(values, observed, own, with_transforms) - _mean_scores(plain, observed, own, without)
    gain = gain[~np.isnan(gain)]
    return len(gain) > 1 and bool(gain.mean() > _CLEARLY * gain.std(ddof=1) / math.sqrt(len(gain)))


def _inverse(column: NumberCodec) -> ToOwnUnits:
    """Return the map from encoded cells of a column to cells as they are drawn."""
    ends = column.limits if column.warp is None else column.drawn_range
    return lambda encoded: np.clip(column.in_own_units(encoded[..., None]), *ends) / column.own_scale[0]


def _shift(column: NumberCodec, centre: float) -> ToOwnUnits:
    """Return the map from centred cells of a column without transform to cells as they are drawn."""
    ends = np.array(column.drawn_range if isinstance(column, IntegerCodec) else column.limits)
    return lambda centred: np.clip(centred + centre, *(ends / column.own_scale[0]))


def _mean_scores(
    values: Tensor, observed: Tensor, own: Mapping[int, Numbers], to_own: Mapping[int, ToOwnUnits]
) -> Numbers:
    """Return the mean CRPS of each row's numbers, `[n]`, NaN for rows without any.

    Takes encoded rows `[n, D]`, and by encoded column the numbers `[n]` and the map to their units.
    """
    gaussian = InitialFill.fit(values, observed, "linear")
    means, variances = gaussian.leave_one_out(values, observed)
    levels = (torch.arange(_QUANTILES, dtype=values.dtype) + 0.5) / _QUANTILES
    normal, p = torch.special.ndtri(levels)[:, None], levels.numpy()[:, None]
    total, count = np.zeros(len(values)), np.zeros(len(values))
    for i, numbers in own.items():
        quantiles = to_own[i]((means[:, i] + variances[:, i].sqrt() * normal).numpy())
        seen = observed[:, i].numpy()
        scores = 2 * ((p - (numbers < quantiles)) * (numbers - quantiles)).mean(0)
        total += np.where(seen, scores, 0.0)
        count += seen
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
