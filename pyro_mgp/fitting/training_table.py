"""Encoded table to which a chain is trained, with the specifications of its links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.data.codecs.base import GaussianObservation, OrdinalObservation
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.table_encoder import TableEncoder
from pyro_mgp.model.build import observation_models
from pyro_mgp.model.link_specs import LinkSpec
from pyro_mgp.settings import Choice
from pyro_mgp.storage.scratch import Memory, pieces

# No cells are held out of columns with fewer observed cells.
_FEWEST_OBSERVED = 20
# A holdout of fewer cells says too little about when to stop; the bound is watched instead.
_FEWEST_HELD_OUT = 100


@dataclass(frozen=True)
class TrainingTable:
    """Encoded training table, with the specifications of the links and the choice of their inputs."""

    encoder: TableEncoder
    link_specs: list[LinkSpec]
    encoded: EncodedTable
    """Rows sorted by their keys: in the same order however the table was sorted, and well shuffled."""
    error_variances: Mapping[int, Tensor]
    """Variances of measurement errors by encoded column, each `[N]`."""
    inputs: Choice
    """Inputs of the links: "others" or "earlier"."""
    memory: Memory
    """Where further tensors of the table's size are allocated."""
    completed: Tensor | None = None
    """The table completed by a draw of another model, `[N, D]`, to train on as on data; None to redraw."""

    @property
    def is_sequential(self) -> bool:
        """True if the inputs of links are complete and earlier columns only."""
        return self.inputs.value == "earlier"

    @property
    def is_gaussian(self) -> bool:
        """True if all links have Gaussian observations, with one noise variance per link."""
        return not any(link.column in self.error_variances for link in self.link_specs) and all(
            isinstance(model, GaussianObservation)
            for model in observation_models(self.encoder.codec, self.link_specs)
        )

    @property
    def has_shapes(self) -> bool:
        """True if some likelihoods have parameters besides a noise variance or a single threshold.

        A threshold between two values is learnt with the intercept of the function.
        """
        return any(
            len(model.values) > 2
            if isinstance(model, OrdinalObservation)
            else not isinstance(model, GaussianObservation)
            for model in observation_models(self.encoder.codec, self.link_specs)
        )

    def hold_out(self, observed: Tensor, fraction: float, seed: int) -> Tensor:
        """Choose observed cells to hold out of training for validation, Bool `[N, D]`."""
        groups = torch.as_tensor(self.encoder.codec.groups)
        if self.encoder.target is not None:
            groups = torch.cat([groups, groups.max()[None] + 1])
        linked = torch.zeros(len(groups), dtype=torch.bool)
        linked[[link.column for link in self.link_specs]] = True
        # The last indicator of a category has no link, but would give its level away.
        linked = linked.new_tensor([bool(linked[groups == group].any()) for group in groups])
        linked &= observed.sum(0).cpu() >= _FEWEST_OBSERVED
        # The indicators of a category are one cell.
        first = torch.cat([torch.ones_like(groups[:1], dtype=torch.bool), groups.diff() != 0])
        generator, n_cells = torch.Generator().manual_seed(seed), 0
        held_out = self.memory.like(observed)
        for here in pieces(len(observed)):
            known = observed[here].cpu()
            chance = torch.rand(len(known), int(groups.max()) + 1, generator=generator)[:, groups]
            known = known & (chance < fraction) & linked
            n_cells += int(known[:, first].sum())
            held_out[here] = known.to(observed.device)
        return held_out if n_cells >= _FEWEST_HELD_OUT else held_out.zero_()
