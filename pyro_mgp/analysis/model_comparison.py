"""Comparison of two fitted models of a table by held-out cells.

Some observed cells are treated as missing, and both models impute them: functions, noise variances and
coefficients are drawn given the other cells, and neighbours do without the held-out ones. The
hyperparameters of kernels and local GPs are kept; those of either model were learnt from all cells.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_mgp.analysis.scores import fair_crps
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.model.link_specs import recoded
from pyro_mgp.sampling.fitted_model import FittedModel

# Share of the observed cells that are held out, and the larger one if these are few.
_SHARE, _OF_FEW, _FEW = 0.1, 0.2, 500
# Draws of each cell, and the chains that they come from.
_DRAWS, _CHAINS = 12, 4


def standard_errors_worse(model: FittedModel, other: FittedModel) -> float:
    """Return by how many standard errors the mean CRPS of held-out cells is larger under `other`.

    The cells are a random tenth of the observed ones in incomplete columns, a fifth in small tables, scored
    by `fair_crps` in the encoded units of `model`. Both models hold the table of their fit and draw functions
    given its rows; `other` may have other transforms.
    """
    held_out = _choose_cells(model)
    if held_out.sum() < 2:
        return 0.0
    codec, values = model.encoder.codec, model.own_table().encoded.values[held_out]
    draws = _imputed(model, held_out), recoded(other.encoder.codec, codec, _imputed(other, held_out))
    own, others = (fair_crps(drawn[:, held_out].numpy(), values.numpy()) for drawn in draws)
    worse = others - own
    error = float(worse.std()) / math.sqrt(len(worse))
    return float(worse.mean()) / error if error > 0 else 0.0


def _choose_cells(model: FittedModel) -> Tensor:
    """Choose cells of incomplete columns to hold out, Bool `[N, D]`; indicators of a category together."""
    observed = model.own_table().encoded.observed
    usable = observed & ~observed.all(0)
    share = _SHARE if _SHARE * usable.sum() >= _FEW else _OF_FEW
    groups = torch.as_tensor(model.encoder.codec.groups)
    generator = torch.Generator().manual_seed(model.seed)
    chance = torch.rand(len(observed), int(groups.max()) + 1, generator=generator)[:, groups]
    return usable & (chance < share)


def _imputed(model: FittedModel, held_out: Tensor) -> Tensor:
    """Return draws of the model's table completed without the held-out cells, `[S, N, D]`."""
    table = model.own_table().encoded
    rows = EncodedTable(table.values, table.observed & ~held_out, table.keys)
    sampler = model.without_cells(held_out).sampler(chains=_CHAINS)
    return torch.cat([drawn.cpu() for _, drawn in sampler.draws(rows, range(_DRAWS))], dim=1)
