"""Fitted model, from which imputations are drawn, saved and reported."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_mgp._support.messages import FitWarning, warn_user
from pyro_mgp.data.codecs.kinds import GroupCodec
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.encoded_table import EncodedTable, RowIds
from pyro_mgp.data.table_encoder import InputTable, TableEncoder
from pyro_mgp.inference.gibbs_chains import n_chains
from pyro_mgp.inference.nuts import draw_lengthscales, with_lengthscales
from pyro_mgp.inference.time_process import TimeProcess
from pyro_mgp.inference.training import History
from pyro_mgp.model.build import codecs_of_links
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.likelihoods import Observation, Truncated
from pyro_mgp.model.link_specs import LinkSpec
from pyro_mgp.model.sequential_chain import SequentialChain
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.imputation_guide import ImputationGuide
from pyro_mgp.sampling.initial_fill import InitialFill
from pyro_mgp.sampling.neighbours import Neighbours, may_be_local
from pyro_mgp.sampling.new_visits import are_new_visits
from pyro_mgp.sampling.observed_cells import ObservedCells, variables
from pyro_mgp.sampling.sampler import Sampler
from pyro_mgp.sampling.sampler_cache import SamplerCache

FEW_ROWS = 300
"""Largest size of a small table: linear trends are not shrunk, point predictions average over more paths."""


@dataclass(frozen=True)
class FittedModel:
    """Trained chain with all that draws need: encoder, initial fill, local GPs and training rows."""

    encoder: TableEncoder  # encoder of tables, and decoder of draws
    link_specs: list[LinkSpec]  # output and input columns of each link
    chain: Chain  # the Pyro module
    initial_fill: InitialFill  # values of the missing cells before the first sweep
    neighbours: Neighbours | None  # local GPs of the links; None if no link has one
    discrete_support: list[DiscreteSupport | None]  # of each link; None where draws are continuous
    training: EncodedTable | None  # rows given which functions are drawn; None to draw them from q(u)
    history: History  # what happened in training
    seed: int  # the seed that all randomness is keyed by
    joint_draws: bool  # whether one posterior function per imputation is shared by all rows
    own: InputTable | None = None  # table of the fit, its target observed; None if loaded or fitted to files
    lengthscales: list[Tensor] | None = None  # drawn ones of each link, `[K, P]`; None for the estimates
    cache: SamplerCache = field(default_factory=SamplerCache)  # kept from call to call

    def cells_of_groups(self) -> dict[Label, dict[Any, Any]]:
        """Return the cells of columns that are constant within groups in the training rows, by group."""
        codec, within, rows = self.encoder.codec, self.encoder.rules.within, self.training
        columns, slices = {column.name: column for column in codec.columns}, codec.slices
        found = dict[Label, dict[Any, Any]]()
        for label in {label: None for labels in within.constant.values() for label in labels}:
            name = within.group_of(label)
            group = None if name is None else columns.get(name)
            if rows is None or group is None or not group.width or not columns[label].width:
                continue
            here = rows.observed[:, slices[label].start].nonzero()[:, 0].cpu()
            values = rows.values.cpu().numpy()[here]
            numbers = np.rint(group.in_own_units(values[:, slices[group.name]])).astype(int)
            cells = columns[label].decode(values[:, slices[label]]).tolist()
            found[label] = {(group.levels or ())[k]: cell for k, cell in zip(numbers, cells, strict=True)}
        return found

    @property
    def is_sequential(self) -> bool:
        """True if links condition on complete and earlier columns only."""
        return isinstance(self.chain, SequentialChain)

    @property
    def local_gain(self) -> float:
        """Share of the CRPS of sparse GPs that local GPs remove, on average over links that may have one."""
        if self.neighbours is None:
            return 0.0
        pairs = zip(self.chain.links, self.neighbours.links, strict=True)
        each = [own[0].params.gain if own else 0.0 for link, own in pairs if may_be_local(link)]
        return sum(each) / max(len(each), 1)

    def own_table(self) -> InputTable:
        """Return the table of the fit; raise a ValueError if the model was loaded, or fitted to files."""
        if self.own is None:
            raise ValueError(
                "this imputer was loaded, or fitted to files, and does not hold the table it was fitted to: "
                "call impute(X, m=...) or impute_to_parquet(path, X) with a table, or with one part of a "
                "large table after the other"
            )
        return self.own

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the model that a saved folder holds, by name."""
        tensors = {f"chain.{name}": value for name, value in self.chain.state_dict().items()}
        tensors |= {"start.mean": self.initial_fill.mean, "start.covariance": self.initial_fill.covariance}
        if self.training is not None:
            tensors |= {f"training.{name}": rows for name, rows in self.training.tensors().items()}
            errors = [link.known_variance for link in self.chain.links]
            if any(each is not None for each in errors):
                none = self.training.values.new_zeros(len(self.training))
                tensors["training.errors"] = torch.stack([none if each is None else each for each in errors])
        tensors |= {f"lengthscales.{i}": drawn for i, drawn in enumerate(self.lengthscales or [])}
        if self.neighbours is not None:
            tensors |= {"near.rows": self.neighbours.rows, "near.residuals": self.neighbours.residuals}
        return tensors

    def sampler(
        self,
        seed: int | None = None,
        shifts: dict[int, float] | None = None,
        chains: int | None = None,
        *,
        searching: bool = False,
    ) -> Sampler:
        """Return the sampler of missing cells, with the seed of the fit unless `seed` is given.

        Functions are shifted by `shifts`, by the encoded column of their link. The number of `chains` of
        Gibbs sampling is chosen by `n_chains` unless it is given. For `searching` see `Sampler`.
        """
        columns = codecs_of_links(self.encoder.codec, self.link_specs)
        observations = list[Observation | None]()
        for column, support in zip(columns, self.discrete_support, strict=True):
            bounds = None if column is None else column.bounds
            observations.append(support or (Truncated(*bounds) if bounds else None))
        inverses = [None if column is None else column.inverse_transform for column in columns]
        n_values = max((link.n_values for link in self.chain.links), default=0)
        corrected = self.neighbours is not None
        chains = chains or n_chains(self.chain.n_rows, local_gps=corrected, n_values=n_values)
        return Sampler(
            self.chain, self.initial_fill, self.joint_draws, self.seed if seed is None else seed,
            self.neighbours, observations, inverses, shifts or {}, self.cache, self.training,
            chains, searching, self._posterior,
        )  # fmt: skip

    @functools.cached_property
    def _posterior(self) -> list[Chain]:
        """Chains with drawn lengthscales; none if these were not drawn."""
        if self.lengthscales is None or not isinstance(self.chain, SequentialChain):
            return []
        return [with_lengthscales(self.chain, own) for own in zip(*self.lengthscales, strict=True)]

    def with_drawn_lengthscales(self, *, progress: bool) -> FittedModel:
        """Return the model with lengthscales drawn by NUTS instead of estimated; see `inference.nuts`."""
        chain, rows = self.chain, self.training
        assert isinstance(chain, SequentialChain) and rows is not None
        n = n_chains(chain.n_rows)
        filled = self.initial_fill.draw(rows, self.seed)[0]
        drawn = draw_lengthscales(chain, filled, rows.observed, n, self.seed, progress=progress)
        return replace(self, lengthscales=drawn, cache=SamplerCache())

    def guide(self, seed: int | None = None) -> ImputationGuide:
        """Return a guide for `Predictive(chain.model, guide=...)` whose samples are imputations."""
        return ImputationGuide(self.sampler(seed))

    def observed_cells(self, given: InputTable, sampler: Sampler) -> ObservedCells:
        """Return the observed cells of a table, given the sampler of its missing cells."""
        codec, target = self.encoder.codec, self.encoder.target
        names = [*codec.names, *(self.chain.names[-1:] if target else [])]
        keys = None if self.own is None else self.own.encoded.keys
        columns = variables(self.chain, codec, target, self.encoder.rules.on_other_scales)
        return ObservedCells(sampler, given.encoded, columns, self.encoder.error_variances, names, keys)

    def supported_columns(self) -> dict[int, DiscreteSupport]:
        """Return the discrete support of each encoded column of numbers that has one."""
        pairs = zip(self.chain.links, self.discrete_support, strict=True)
        return {link.column: support for link, support in pairs if support is not None and link.is_gaussian}

    def encode(self, X: pd.DataFrame | ArrayLike, row_ids: RowIds = None) -> InputTable:
        """Encode a table to complete; warn of incomplete columns that have no link."""
        given, groups = self.encoder.encode(X, row_ids), self.encoder.codec.groups
        given = replace(given, has_new_effects=self._has_new_effects(given))
        incomplete = groups[~given.encoded.observed[:, : len(groups)].all(0).numpy()]
        linked = {groups[spec.column] for spec in self.link_specs if spec.column < len(groups)}
        if without := set(incomplete) - linked:
            names = sorted((self.encoder.codec.columns[group].name for group in without), key=str)
            warn_user(
                f"columns {names} had no missing cells when the imputer was fitted, so they have no link; "
                "here they are filled by the initial fill alone: fit with columns='all' to model them (and "
                "without an order that leaves them out)",
                FitWarning,
            )
        return given

    def _has_new_effects(self, given: InputTable) -> NDArray[np.bool_] | None:
        """Return the rows of groups, or visits, not in the table of the fit, Bool `[N]`; None without any."""
        codec, found = self.encoder.codec, np.zeros(len(given.encoded), dtype=np.bool_)
        for column in codec.columns:
            if isinstance(column, GroupCodec) and column.width:
                here = codec.slices[column.name]
                numbers = np.rint(column.in_own_units(given.encoded.values[:, here].cpu().numpy()))
                found |= numbers >= len(column.levels)
        process = None if self.training is None else TimeProcess.of(self.chain, self.training.values)
        if process is not None:
            rows = given.encoded.values.to(self.initial_fill.device)
            found |= are_new_visits(process, rows).cpu().numpy()
        return found if found.any() else None
