"""The front door: a table with holes in, multiple imputations out.

Walks the corridor: `table` encodes, `fill` starts, `chain` and `training` learn, `sampling` draws, `table`
decodes, `imputations` leaves.
"""

from __future__ import annotations

import functools
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from tqdm import tqdm

from pyro_mgp import saving
from pyro_mgp._support import memory as resources
from pyro_mgp._support.devices import home, resolve_device
from pyro_mgp._support.messages import FitWarning as FitWarning
from pyro_mgp._support.messages import warn_user
from pyro_mgp._support.processes import ALONE, current
from pyro_mgp._support.tiles import TILE
from pyro_mgp.analysis.sensitivity import shifts
from pyro_mgp.data.column_spec import Label, Specs
from pyro_mgp.data.dtypes import label_of
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.model_input import Input, as_modelled, fit_target, known_variances, measured, rows_of
from pyro_mgp.data.out_of_core import encode_columns
from pyro_mgp.data.parquet_table import ParquetTable, Paths
from pyro_mgp.data.row_ids import RowIds, without_ids
from pyro_mgp.data.row_keys import content_hashes, label_hashes
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import Table, TableCodec, as_frame, check_same_columns, complete, missing
from pyro_mgp.data.transforms import InverseTransform
from pyro_mgp.inference.training import History, Options, train
from pyro_mgp.model.build import (
    SMALL_ROWS,
    Plan,
    bounds_of_links,
    build_chain,
    categories,
    likelihoods,
    plan_links,
    sequence_of,
    starting_noise,
    values_of_links,
)
from pyro_mgp.model.chain import Chain, Precision, Propagate
from pyro_mgp.model.column_order import CLEARLY
from pyro_mgp.model.kernels import KernelFactory, resolve_kernel, small_linear_matern32
from pyro_mgp.model.likelihoods import Observation
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.results.table_files import write_chunks
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.initial_fill import FillName, InitialFill, JointGaussian
from pyro_mgp.sampling.kept_draws import Batches, keep
from pyro_mgp.sampling.observed_cells import ObservedCells, variables
from pyro_mgp.sampling.refinement import MAX_ROWS, refine
from pyro_mgp.sampling.sampler import CholeskyCache, Sampler
from pyro_mgp.settings import Inputs, RandomState, at_least, check_settings, numbers_of, seed_of
from pyro_mgp.storage.checkpoint import Checkpoint, fingerprint, versions
from pyro_mgp.storage.scratch import Memory, Scratch, pieces

CheckpointLike = Checkpoint | str | os.PathLike[str] | None
"""Where to keep what a call has reached: a path, or a `Checkpoint`, whose files stay at the end."""

# Paths whose mean `transform` and `predict` report.
_POINT_PATHS = 20
# The same where draws have to be averaged, or functions are as uncertain as few rows leave them; whole tiles.
_POINT_DRAWS = TILE
# Inducing inputs per link when the user leaves the choice to us.
_N_INDUCING = 100
# Most training steps when the user leaves the choice to us.
_STEPS_WITH_NEIGHBOURS, _STEPS = 15, 20
# A table of at most so many rows takes the kernel of small ones.
_FEW_ROWS = 300
# A column with fewer observed cells needs them all.
_FEWEST_OBSERVED = 20
# Fewer held-out cells than this say too little about when to stop; the bound is watched instead.
_FEWEST_HELD_OUT = 100


# What scikit-learn's own imputers call such columns.
_INDICATOR = "missingindicator_"


class MGPImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Multiple imputation by a chain of sparse Gaussian processes (MGP).

    Args:
        kernel: A name of `model.kernels.KERNELS`, or a factory `input_dim -> pyro.contrib.gp` kernel;
            "auto" takes "linear+matern32", with a quadratic trend in links that see "earlier" columns, and
            up to 300 rows with a trend that is not shrunk.
        inputs: What a link sees: all "others", or complete columns and "earlier" links, while later ones
            weigh its draws (`sequential`), which suits small tables whose columns depend on each other in
            curved ways. "auto" takes the latter where that is so, for tables of at most 1000 rows and 8
            numeric columns, of which no incomplete one is of few values, bounded or not Gaussian, if there
            are 20 complete rows to choose an order by.
        n_inducing: Inducing inputs per link; None takes 100, or all rows of a smaller table.
        n_neighbors: Training rows near a missing cell whose residuals correct the sparse GP, in links where
            they clearly help; at most 100. 0 for the sparse GPs alone: let them train for `max_steps=40`.
            Links of categories, booleans and two-valued integers, and of columns with fewer than four
            observed cells per neighbour, go without, as do all with propagate="latent".
        warp: Whether numeric columns with long tails are bent (arcsinh) before they are modelled; draws of
            these stay within the observed range. A target is never bent.
        discrete_support: A numeric column of at most so many different values, at most 1000, gets draws among
            these (ratings, counts, rounded readings) if nine in ten cells hold one that comes five times or
            more; 0 for numbers between them, too, as always with propagate="latent", and for counts as any integers.
        initial_fill: What stands in the holes first: "linear" (joint Gaussian), "mean" or "median", of
            bent columns after the bend.
        n_sweeps: Walks through the chain before a draw counts.
        refresh_fill: Whether training redraws the holes as it goes, or keeps the initial fill.
        propagate: What later links see in a missing cell: "predictive" draws f + noise, or "latent" f.
        backpropagate: Whether gradients pass through the draws into earlier links.
        joint_draws: One posterior function per imputation for all rows, or each cell alone.
        natural_gradient: Natural-gradient steps for q(u), or Adam.
        train_inducing: Whether the inducing inputs move.
        n_paths: Monte Carlo paths per row in training.
        columns: Which columns get a link: the "incomplete" ones, or "all", for new rows with holes elsewhere.
        target_is_input: Whether the columns' links see the target of `fit(X, y)`, as imputations that are to
            be analysed with it must; the paper's do not.
        order: Labels of the linked columns in the order of the chain; None takes ascending standard
            deviation, in the columns' own units, of a category the smallest of its levels'.
        max_steps: Most training steps. None takes 15 where nearby rows correct what links have learnt by
            then, in tables of more than 300 rows without categories, counts or heavy tails; elsewhere 20.
        learning_rate: Adam's step size.
        weight_decay: Pull of kernels and noises back to where they started, per unit of learning rate: what
            the table does not tell stays moderate.
        batch_size: Rows in a minibatch; smaller tables are seen whole.
        validation_fraction: Share of the observed cells held out to decide when to stop; 0 for none.
        patience: Checks without progress, five steps apart, before training stops.
        precision: "double", or "mixed": float32 for the products over rows, for GPUs with slow float64. The
            third decimal of a draw, in standard deviations, may then depend on `batch_size`, and more of it
            where rounding decides which rows are neighbours.
        device: "auto", "cpu", "cuda", ...
        random_state: Seed, generator or None. The same seed gives the same imputations.
        progress: Show progress bars, on terminals only.
        specs: What is known of some columns besides their cells, by label; see `ColumnSpec`.
        add_indicator: Whether `transform` puts a boolean column `missingindicator_...` behind the others for
            each column that was incomplete at fit: True where its cell was missing.

    Attributes:
        chain_: The Pyro module, with `model` and `guide`.
        neighbours_: What nearby training rows add to its links; None if to none.
        discrete_support_: For each link how its draws choose among few values, None where they do not.
        history_: What happened in training.
        order_: Names of the encoded columns with a link, in the order of the chain.
        codec_: How the table is encoded.
        seed_: The seed that all randomness is keyed by.
        n_features_in_, feature_names_in_: As in scikit-learn.

    Example:
        >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2})
        >>> frame.loc[3, "y"] = np.nan
        >>> imputer = MGPImputer(random_state=0, max_steps=20).fit(frame)
        >>> imputer.impute(m=5)
        Imputations(m=5, 20 rows x 2 columns, 1 missing cells in 1 columns)
    """

    discrete_support_: list[DiscreteSupport | None]
    feature_names_in_: NDArray[Any]

    def __init__(
        self,
        *,
        kernel: str | KernelFactory = "auto",
        inputs: Inputs = "auto",
        n_inducing: int | None = None,
        n_neighbors: int = 16,
        warp: bool = True,
        discrete_support: int = 50,
        initial_fill: FillName = "linear",
        n_sweeps: int = 5,
        refresh_fill: bool = True,
        propagate: Propagate = "predictive",
        backpropagate: bool = False,
        joint_draws: bool = True,
        natural_gradient: bool = True,
        train_inducing: bool = False,
        n_paths: int = 1,
        columns: Literal["incomplete", "all"] = "incomplete",
        target_is_input: bool = True,
        order: Sequence[Label] | None = None,
        max_steps: int | None = None,
        learning_rate: float = 0.25,
        weight_decay: float = 0.1,
        batch_size: int = 2000,
        validation_fraction: float = 0.1,
        patience: int = 4,
        precision: Precision = "double",
        device: str = "auto",
        random_state: RandomState = None,
        progress: bool = True,
        specs: Specs | None = None,
        add_indicator: bool = False,
    ) -> None:
        self.kernel = kernel
        self.inputs = inputs
        self.n_inducing = n_inducing
        self.n_neighbors = n_neighbors
        self.warp = warp
        self.discrete_support = discrete_support
        self.initial_fill = initial_fill
        self.n_sweeps = n_sweeps
        self.refresh_fill = refresh_fill
        self.propagate = propagate
        self.backpropagate = backpropagate
        self.joint_draws = joint_draws
        self.natural_gradient = natural_gradient
        self.train_inducing = train_inducing
        self.n_paths = n_paths
        self.columns = columns
        self.target_is_input = target_is_input
        self.order = order
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.progress = progress
        self.specs = specs
        self.add_indicator = add_indicator

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's corner: mean fill that stays, one sweep, latent draws, Matérn 3/2, Adam throughout.

        Settings of its experiments: M = 100, B = 100, S = 20, Adam 0.01, 10,000 iterations (give
        `max_steps=2000` for a table the size of Parkinson).

        Args:
            changes: Any parameters of `MGPImputer` to set differently.
        """
        corner: dict[str, Any] = {
            "kernel": "matern32",
            "inputs": "others",
            "initial_fill": "mean",
            "n_sweeps": 1,
            "refresh_fill": False,
            "propagate": "latent",
            "backpropagate": True,
            "joint_draws": False,
            "natural_gradient": False,
            "train_inducing": True,
            "n_inducing": 100,
            "n_neighbors": 0,
            "warp": False,
            "discrete_support": 0,
            "n_paths": 20,
            "target_is_input": False,
            "batch_size": 100,
            "learning_rate": 0.01,
            "weight_decay": 0.0,
            "max_steps": 10_000,
            "validation_fraction": 0.0,
            "patience": 10_000,
        }
        return cls(**{**corner, **changes})

    def fit(
        self,
        X: pd.DataFrame | ArrayLike,
        y: pd.Series[Any] | ArrayLike | None = None,
        *,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Learn the chain from a table with holes.

        Args:
            X: DataFrame or two-dimensional array, N rows, at least two columns; NaN, None, pd.NA are missing.
            y: Optional numeric target, `[N]`, complete or not. It becomes the last link, for `predict`.
            checkpoint: File that keeps what training has reached, about every ten seconds. If the process
                ends before, the same call goes on from there, to the same result as without a break; it is
                removed at the end. Needs an integer `random_state`.

        Returns:
            The fitted imputer.

        Raises:
            ValueError, TypeError: If the table or a setting cannot be used; the message names column and row.
                If the checkpoint is of another table, other settings or versions; it says which. If there is
                not memory enough; with the figures.
            OSError: If the checkpoint cannot be written.
        """
        check_settings(self)
        kept = self._checkpoint(checkpoint)
        frame = as_frame(X)
        rules = Rules.parse(self.specs, frame.columns.tolist()).learn(frame)
        modelled = as_modelled(frame, rules)
        specs = rules.modelled_specs
        codec, table = TableCodec.fit_encode(modelled, self.warp, self.discrete_support, specs)
        # The first complete rows decide on a plan: the same ones however the table is sorted, or bent.
        ordered = modelled.iloc[np.argsort(table.keys)]
        plan = self._plan(codec, ordered, specs, y is not None)
        straight = codec if plan is None else codec.straight(modelled, self.discrete_support, specs)
        if plan is not None and straight is not codec:
            # Long tails that a curve explains are no reason to bend.
            other = self._plan(straight, ordered, specs, y is not None)
            if other is not None and plan.evidence < other.evidence + CLEARLY:
                plan, codec, table = other, straight, straight.encode_again(modelled)
        target_codec, target = fit_target(y, frame)
        complete_columns = np.logical_and.reduce(table.observed)
        with_link = np.ones_like(complete_columns) if self.columns == "all" else ~complete_columns
        sequence = None if plan is None else plan.columns
        links = plan_links(codec, with_link, self.order, target_codec, self.target_is_input, specs, sequence)
        rows = rows_of(table, target)
        known = known_variances(codec, links, modelled, rules.standard_errors(frame))
        self._check_memory(rows, len(links))
        with self._as_it_was_on_failure():
            self.seed_ = current().agreed_integer(seed_of(self.random_state))
            self.codec_, self.target_codec_, self._link_specs, self._rules = codec, target_codec, links, rules
            self.sequential_ = sequence is not None
            incomplete = np.flatnonzero(np.logical_or.reduce(missing(frame)))
            self._note_columns(frame.columns, incomplete.tolist(), named=isinstance(X, pd.DataFrame))
            # Sorted by key, rows stand the same however the table was sorted, and well shuffled.
            order = torch.as_tensor(np.argsort(table.keys))
            known = [None if each is None else each[order] for each in known]
            self._train(rows[order], known, Memory(), kept)
            own = frame.copy()
            self._fitted = Input(own, own if modelled is frame else modelled, rows)
        self._discard(kept, checkpoint)
        return self

    def fit_parquet(
        self,
        path: Paths,
        *,
        dropped: Sequence[Label] = (),
        scratch: str | os.PathLike[str] | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Learn the chain from a table in Parquet files that may be larger than memory.

        Gives the imputer of `fit(table)`, which does not hold the table then: `impute(X)` imputes it part by
        part. One column at a time is in memory; the encoded table lies in temporary files, 19 bytes per cell,
        which are gone when this returns or the process ends. Numbers are cells, categories one per level.

        Args:
            path: A file, a folder of files, or several files, whose rows follow each other.
            dropped: Columns to leave out of the model, such as identifiers.
            scratch: Folder for the temporary files; None takes the system's, which must not lie in memory.
            checkpoint: See `fit`.

        Returns:
            The fitted imputer.

        Raises:
            ValueError, TypeError: As for `fit`; if the files cannot be read; or if specs ask for derived
                columns, conditions or standard errors, which look at whole rows, in over 1000 rows.
            OSError: If the disk has no room for the temporary files, or the checkpoint cannot be written.
        """
        check_settings(self)
        kept = self._checkpoint(checkpoint)
        table = ParquetTable(path, dropped)
        if len(table) <= SMALL_ROWS:
            self.fit(table.read(), checkpoint=checkpoint)
            del self._fitted
            return self
        if self.inputs == "earlier":
            raise _not_sequential()
        rules, memory = Rules.parse(self.specs, table.columns.tolist()), Scratch(scratch)
        rules.check_column_by_column()
        encoded = encode_columns(table, self.warp, self.discrete_support, rules.modelled_specs, memory)
        codec = encoded.codec
        with_link = encoded.incomplete | (self.columns == "all")
        links = plan_links(codec, with_link, self.order, specs=rules.modelled_specs)
        with self._as_it_was_on_failure():
            self.seed_ = current().agreed_integer(seed_of(self.random_state))
            self.codec_, self.target_codec_, self._link_specs, self._rules = codec, None, links, rules
            self.sequential_ = False
            self._note_columns(table.columns, encoded.incomplete_columns, named=True)
            self._train(encoded.rows, [None] * len(links), memory, kept)
            self.__dict__.pop("_fitted", None)
        self._discard(kept, checkpoint)
        return self

    def fit_transform(self, X: pd.DataFrame | ArrayLike, y: object = None) -> pd.DataFrame | NDArray[Any]:
        """Fit to a table and complete it; a target is ignored.

        A scikit-learn pipeline hands its target, classes perhaps, to every step. To model one, call `fit`.
        """
        return self.fit(X).transform(X)

    def transform(self, X: pd.DataFrame | ArrayLike) -> pd.DataFrame | NDArray[Any]:
        """One completed table: missing cells at their posterior mean, discrete ones at their mode.

        Discrete are categories, booleans and integers of two values. Best for prediction; too smooth for
        inference, which wants `impute`.

        Args:
            X: Table with the columns of the fitted one, any rows.

        Returns:
            The completed table; a DataFrame or an array, as it came.

        Raises:
            ValueError, TypeError: If the table does not fit the fitted one; the message says where.
        """
        given = self._encode(X)
        doubtful = self.sequential_ or self.chain_.n_rows <= _FEW_ROWS
        n_paths = _POINT_DRAWS if doubtful else _POINT_PATHS
        point = self._sampler().means(given.rows[given.incomplete], range(n_paths))
        cells = self._decode(given, [(slice(0, len(point)), point[None])], 1, to_support=False)
        completed = complete(given.frame, {label: values[0] for label, values in cells.items()})
        if self.add_indicator:
            indicators = missing(given.frame)[:, self._incomplete]
            names = [f"{_INDICATOR}{self._columns[i]}" for i in self._incomplete]
            completed = completed.join(pd.DataFrame(indicators, completed.index, names))
        return completed if isinstance(X, pd.DataFrame) else completed.to_numpy()

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the columns that `transform` gives: those that went in, and indicators if asked for."""
        check_is_fitted(self, "chain_")
        names: NDArray[Any] = super().get_feature_names_out(input_features)
        if not self.add_indicator:
            return names
        return np.append(names, [f"{_INDICATOR}{names[i]}" for i in self._incomplete])

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn may hand in: missing cells, categories and text."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def impute(
        self,
        X: pd.DataFrame | ArrayLike | None = None,
        m: int | Sequence[int] = 20,
        *,
        row_ids: RowIds = None,
        random_state: RandomState = None,
        batch_size: int | None = None,
        delta: Mapping[Label, float] | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Imputations:
        """Draw m imputations of every missing cell from its posterior predictive distribution.

        Imputation j is the same whatever m, the batch size and the order of the rows, and a row is imputed
        the same alone or among others. Rows equal in every cell are told apart by the labels of the index
        within one call, and by `row_ids` everywhere.

        Args:
            X: Table with the columns of the fitted one; None for the fitted table itself, its target known.
            m: Number of imputations, or the numbers of those that are wanted, `range(20, 40)` say.
            row_ids: The label of a column of ids, which passes through, or an id for each row: a row is then
                imputed by its cells and its id alone, wherever the rest of its table is. Ids of one dtype: 7
                and "7" are different.
            random_state: Seed of other draws than those of the imputer's own seed.
            batch_size: Rows drawn at a time; chosen by memory when None.
            delta: How far to shift the draws of some columns, by label, as cells missing not at random
                may ask for: in the column's own units for numbers and times (in seconds); in units of the
                bend for bent numbers, say of the log; on the probit scale for booleans, ordered levels and
                categories of two levels, towards the later one; on that of the log for counts. Other columns
                see the shifted draws.
            checkpoint: Folder that keeps what is drawn, about every ten seconds. If the process ends before,
                the same call goes on from there, to the same draws as without a break; it is removed at
                the end.

        Returns:
            The draws and the table they complete.

        Raises:
            ValueError, TypeError: If m is below 1, the table does not fit the fitted one, the checkpoint is
                of other draws; it says which; or there is not memory enough; with the figures.
            OSError: If the checkpoint cannot be written.
        """
        numbers, kept = numbers_of(m), Checkpoint.at(checkpoint)
        given, sampler = self._prepare(X, row_ids, random_state, batch_size, delta)
        resources.check(
            resources.of_impute(int(given.holes.sum()), len(numbers)),
            f"drawing {len(numbers)} imputations",
            "take a smaller m, or call impute_to_parquet, which needs memory for the table only",
        )
        batches = self._batches(given, sampler, numbers, batch_size, kept)
        observed_cells = self._observed_cells(given, sampler) if isinstance(numbers, range) else None
        watched = self._watched(batches, len(given.incomplete))
        imputations = self._imputations(given, watched, len(numbers), observed_cells)
        self._discard(kept, checkpoint)
        return imputations

    def _batches(
        self,
        given: Input,
        sampler: Sampler,
        imputations: Sequence[int],
        batch_size: int | None,
        checkpoint: Checkpoint | None,
    ) -> Batches:
        """Draws of the incomplete rows, from a checkpoint as far as they are there."""
        rows = given.rows[given.incomplete]
        if checkpoint is None:
            return sampler.draws(rows, imputations, batch_size)

        def draw_from(first: int) -> Batches:
            for here, filled in sampler.draws(rows[slice(first, None)], imputations, batch_size):
                yield slice(here.start + first, here.stop + first), filled

        identity = {
            **versions(),
            "m": len(imputations),
            "imputations": str(list(imputations)),
            "batch size": batch_size,
            "seed": sampler.seed,
            "delta": str(dict(sampler.shifts)),
            "table": fingerprint(vars(rows).items()),
            "imputer": saving.identity(self),
        }
        return keep(rows, draw_from, checkpoint, identity)

    def impute_to_parquet(
        self,
        path: str | os.PathLike[str],
        X: pd.DataFrame | ArrayLike | None = None,
        m: int = 20,
        *,
        row_ids: RowIds = None,
        random_state: RandomState = None,
        batch_size: int = 20_000,
        delta: Mapping[Label, float] | None = None,
        overwrite: bool = False,
    ) -> list[Path]:
        """Draw m imputations of a large table and write each completed copy to Parquet as it is drawn.

        Gives the tables of `impute(X, m)`; beyond the table itself and its encoding, memory is needed for
        `batch_size` rows only.

        Args:
            path: Folder to make, whole or not at all; holds `imputation_01.parquet`, ...
            X: Table with the columns of the fitted one; None for the fitted table itself.
            m: Number of imputations.
            row_ids: See `impute`.
            random_state: Seed of other draws than those of the imputer's own seed.
            batch_size: Rows drawn and written at a time.
            delta: See `impute`.
            overwrite: Replace a folder that this package wrote earlier.

        Returns:
            The m paths.

        Raises:
            ValueError, TypeError: As for `impute`, or if the folder or its files cannot be written.
        """
        at_least("m, the number of imputations,", m, 1)
        given, sampler = self._prepare(X, row_ids, random_state, batch_size, delta)
        starts = tqdm(
            range(0, len(given.frame), batch_size),
            desc="imputing",
            unit="batches",
            disable=None if self.progress else True,
            leave=False,
        )
        chunks = (self._impute_chunk(given[i : i + batch_size], m, sampler) for i in starts)
        return write_chunks(path, chunks, given.frame, m, overwrite=overwrite)

    def _prepare(
        self,
        X: pd.DataFrame | ArrayLike | None,
        row_ids: RowIds,
        random_state: RandomState,
        batch_size: int | None,
        delta: Mapping[Label, float] | None,
    ) -> tuple[Input, Sampler]:
        """What drawing needs: the table, and who draws."""
        if batch_size is not None:
            at_least("batch_size", batch_size, 1)
        if X is None and row_ids is not None:
            raise ValueError("row_ids tell apart the rows of a table that is given: impute(X, row_ids=...)")
        given = self._own_table() if X is None else self._encode(X, row_ids)
        seed = self.seed_ if random_state is None else seed_of(random_state)
        return given, self._sampler(seed, shifts(self.codec_, delta or {}))

    def _impute_chunk(self, given: Input, m: int, sampler: Sampler) -> Imputations:
        return self._imputations(given, sampler.draws(given.rows[given.incomplete], range(m)), m)

    def _imputations(
        self,
        given: Input,
        batches: Iterable[tuple[slice, Tensor]],
        m: int,
        observed_cells: ObservedCells | None = None,
    ) -> Imputations:
        draws = self._decode(given, batches, m)
        return Imputations(given.frame, draws, m, self._rules.may_stay_missing, observed_cells)

    def _observed_cells(self, given: Input, sampler: Sampler) -> ObservedCells:
        """What says of observed cells what a sampler says of missing ones."""
        return ObservedCells(
            sampler,
            given.rows,
            variables(self.chain_, self.codec_, self.target_codec_),
            functools.partial(measured, self.codec_, self._link_specs, self._rules),
            [*self.codec_.names, *(link.name for link in self._link_specs[-1:] if self.target_codec_)],
            self._fitted.rows.keys if hasattr(self, "_fitted") else None,
        )

    def predict(self, X: pd.DataFrame | ArrayLike, level: float = 0.95) -> pd.DataFrame:
        """Predict the target of `fit(X, y)`.

        Args:
            X: Table with the columns of the fitted one; its holes are averaged over.
            level: Probability that the interval should hold a new observation with.

        Returns:
            One row per row of X, in the target's own units: `mean`, `sd`, and the bounds `lower` and `upper`
            of the central interval.

        Raises:
            ValueError, TypeError: If no target was fitted, or the table does not fit the fitted one.
        """
        check_is_fitted(self, "chain_")
        if self.target_codec_ is None:
            raise ValueError(
                "predict needs a target: call fit(X, y) first, or impute the column with impute(X)"
            )
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        given = self._encode(X)
        mixture = self._sampler().target(given.rows, range(_POINT_PATHS))
        mean, scale = self.target_codec_.mean[0], self.target_codec_.scale[0]
        columns = {
            "mean": mixture.expectation() * scale + mean,
            "sd": mixture.standard_deviation() * scale,
            "lower": mixture.quantile((1 - level) / 2) * scale + mean,
            "upper": mixture.quantile((1 + level) / 2) * scale + mean,
        }
        return pd.DataFrame({k: v.cpu().numpy() for k, v in columns.items()}, index=given.frame.index)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted imputer into the folder `path`, whole or not at all; `load` reads it back.

        The folder holds `header.json` and `arrays.safetensors`. The fitted table is not in it, but if
        neighbours help, up to 10,000 of its rows are, encoded and completed: keep it as safe as the table.

        Args:
            path: Folder to make; missing parents are made too.
            overwrite: Replace a folder that this package wrote earlier.

        Raises:
            ValueError: If `path` exists and may not be replaced.
        """
        check_is_fitted(self, "chain_")
        saving.write(self, path, overwrite=overwrite)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, kernel: KernelFactory | None = None, device: str = "auto"
    ) -> Self:
        """Read what `save` wrote, on any machine. Nothing in the folder is run: there is no pickle in it.

        Args:
            path: The folder.
            kernel: The kernel factory, if the imputer was fitted with one of the user's own.
            device: Where to put the chain.

        Raises:
            ValueError: If the folder is not there, was not written by `save` or by another version of the
                format, a file in it is missing, damaged or cut short, or the kernel is not given.
        """
        return saving.read(cls, path, kernel, device)

    def _train(
        self,
        rows: EncodedTable,
        known_variances: Sequence[Tensor | None],
        memory: Memory,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Build the chain, train it, and fit the starting fill that new rows get.

        Args:
            rows: The training table.
            known_variances: For each link those of errors of measurement, `[N]`, if it has any.
            memory: Where more tables of its size shall lie.
            checkpoint: Where to keep what training has reached, if anywhere.
        """
        current().check_same(rows.keys)
        device = resolve_device(self.device)
        rows = rows.to(home(rows.values, device))
        held_out = self._hold_out(rows.observed, memory)
        seen = EncodedTable(rows.values, memory.like(rows.observed), rows.keys)
        for here in pieces(len(rows)):
            seen.observed[here] = rows.observed[here] & ~held_out[here]
        start, filled = self._fit_start(seen), memory.like(rows.values)
        start.draw_into(filled, seen, self.seed_)
        noise = starting_noise(start.gaussian.covariance, self._link_specs, self.sequential_)
        inducing = filled[: self._choose_n_inducing(len(rows))].to(device)
        self.chain_ = self._build(inducing, noise, len(rows))
        for link, known in zip(self.chain_.links, known_variances, strict=True):
            link.known_variance = None if known is None else known.to(device)
        self.history_ = History()
        # A chain of small tables has more to say to its rows than rows to share: each process trains its own.
        workers = ALONE if self.sequential_ else current()
        if self._link_specs:
            self.history_ = train(
                self.chain_,
                rows,
                held_out,
                filled,
                self._options(),
                seed=self.seed_,
                progress=self.progress,
                workers=workers,
                keep_fill=False,
                checkpoint=None if workers.is_alone and not current().is_first else checkpoint,
            )
        self.chain_.eval()
        start = self._fit_start(rows, start.gaussian)
        self.initial_fill_ = InitialFill(start.gaussian.to(device), start.drawn)
        self._cholesky_cache = CholeskyCache()
        self.neighbours_, self.discrete_support_ = None, [None] * len(self._link_specs)
        self._training = rows.to(device) if self.sequential_ and self._link_specs else None
        if self._link_specs and self.propagate == "predictive" and not self.sequential_:
            self.neighbours_, self.discrete_support_ = refine(
                self.chain_,
                self.initial_fill_,
                rows[:MAX_ROWS].to(device),
                self.n_neighbors,
                values_of_links(self.codec_, self._link_specs, device),
                joint=self.joint_draws,
                seed=self.seed_,
            )

    def _fit_start(self, rows: EncodedTable, near: JointGaussian | None = None) -> InitialFill:
        gaussian = JointGaussian.fit(rows.values, rows.observed, self.initial_fill, near)
        return InitialFill(gaussian, drawn=self.initial_fill == "linear")

    def _build(self, inducing: Tensor, noise: Sequence[float], n_rows: int) -> Chain:
        return build_chain(
            self._link_specs,
            resolve_kernel(self._choose_kernel(n_rows)),
            inducing,
            likelihoods(self.codec_, self._link_specs, noise, inducing.device),
            sequential=self.sequential_,
            train_inducing=self.train_inducing,
            n_rows=n_rows,
            n_paths=self.n_paths,
            n_sweeps=self.n_sweeps,
            propagate=self.propagate,
            backpropagate=self.backpropagate,
            precision=self.precision,
            categories=categories(self.codec_, self._link_specs, inducing.device),
        )

    def _choose_kernel(self, n_rows: int) -> str | KernelFactory:
        if self.kernel != "auto":
            return self.kernel
        if self.sequential_:
            return "linear+quadratic+matern32"
        return small_linear_matern32 if n_rows <= _FEW_ROWS else "linear+matern32"

    def _plan(self, codec: TableCodec, frame: pd.DataFrame, specs: Specs, has_target: bool) -> Plan | None:
        """Which columns get a link of a sequential chain; None if links see all others."""
        able = (
            not has_target
            and self.order is None
            and self.propagate == "predictive"
            and self.joint_draws
            and self.natural_gradient
            and self.n_paths == 1
        )
        if self.inputs == "others" or (self.inputs == "auto" and not able):
            return None
        every, curved_only = self.columns == "all", self.inputs == "auto"
        found = None
        if able:
            found = sequence_of(codec, frame, specs, every=every, curved_only=curved_only)
        if found is None and self.inputs == "earlier":
            raise _not_sequential()
        return found

    @property
    def order_(self) -> list[str]:
        """Names of the encoded columns with a link, in the order of the chain."""
        check_is_fitted(self, "chain_")
        return [link.name for link in self._link_specs]

    def _options(self) -> Options:
        return Options(
            max_steps=self.max_steps or self._choose_max_steps(),
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            natural_gradient=self.natural_gradient,
            refresh_fill=self.refresh_fill,
            patience=self.patience,
        )

    def _choose_max_steps(self) -> int:
        """Fewer where nearby rows are to correct every link: what has none learns all from training."""
        chain = self.chain_
        near = self.n_neighbors > 0 and self.propagate == "predictive" and not self.sequential_
        near = near and chain.n_rows > _FEW_ROWS and all(link.is_gaussian for link in chain.links)
        return _STEPS_WITH_NEIGHBOURS if near else _STEPS

    def _hold_out(self, observed: Tensor, memory: Memory) -> Tensor:
        """Which observed cells training does not see: a category's indicators together, or none at all."""
        groups = torch.as_tensor(self.codec_.groups)
        if self.target_codec_ is not None:
            groups = torch.cat([groups, groups.max()[None] + 1])
        linked = torch.zeros(len(groups), dtype=torch.bool)
        linked[[link.column for link in self._link_specs]] = True
        # The last indicator of a category has no link, but would give its level away.
        linked = linked.new_tensor([bool(linked[groups == group].any()) for group in groups])
        linked &= observed.sum(0).cpu() >= _FEWEST_OBSERVED
        # The indicators of a category are one cell.
        first = torch.cat([torch.ones_like(groups[:1], dtype=torch.bool), groups.diff() != 0])
        generator, held_out, n_cells = torch.Generator().manual_seed(self.seed_), memory.like(observed), 0
        for here in pieces(len(observed)):
            known = observed[here].cpu()
            chance = torch.rand(len(known), int(groups.max()) + 1, generator=generator)[:, groups]
            known = known & (chance < self.validation_fraction) & linked
            n_cells += int(known[:, first].sum())
            held_out[here] = known.to(observed.device)
        return held_out if n_cells >= _FEWEST_HELD_OUT else held_out.zero_()

    def _check_memory(self, rows: EncodedTable, n_links: int) -> None:
        n_rows, n_columns = rows.values.shape
        needed = resources.of_fit(n_rows, n_columns, n_links, min(self.n_inducing or _N_INDUCING, n_rows))
        advice = "fit to a sample of the rows, take a smaller n_inducing, or end other programs"
        resources.check(needed, f"fitting to {n_rows} rows of {n_columns} encoded columns", advice)

    def _checkpoint(self, place: CheckpointLike) -> Checkpoint | None:
        if place is not None and not isinstance(self.random_state, numbers.Integral):
            raise ValueError(
                f"a checkpoint needs random_state=<an integer>, got {self.random_state!r}: with other random "
                "numbers, a call that goes on would end elsewhere"
            )
        return Checkpoint.at(place)

    @staticmethod
    def _discard(kept: Checkpoint | None, given: CheckpointLike) -> None:
        """Remove a checkpoint that was made for a call which is done, not one that was made by the user."""
        if kept is not None and kept is not given and current().is_first:
            kept.discard()

    @contextmanager
    def _as_it_was_on_failure(self) -> Iterator[None]:
        """Let a fit that fails leave a fitted imputer as it was."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _note_columns(self, labels: pd.Index[Any], incomplete: list[int], *, named: bool) -> None:
        """What the table's columns are called, and which have holes, by position.

        Args:
            labels: Their labels.
            incomplete: Positions of those with missing cells.
            named: Whether the labels came with the table.
        """
        self._columns, self._incomplete = [label_of(label) for label in labels], incomplete
        self.n_features_in_ = len(labels)
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if named and all(isinstance(label, str) for label in labels):
            self.feature_names_in_ = np.asarray(labels, dtype=object)

    def _choose_n_inducing(self, n_rows: int) -> int:
        if self.n_inducing is not None and self.n_inducing > n_rows:
            warn_user(
                f"n_inducing={self.n_inducing} is more than the {n_rows} rows of the table; using {n_rows}",
                FitWarning,
            )
        return min(self.n_inducing or _N_INDUCING, n_rows)

    def _sampler(self, seed: int | None = None, shifted: Mapping[int, float] | None = None) -> Sampler:
        seed = self.seed_ if seed is None else seed
        return Sampler(
            self.chain_,
            self.initial_fill_,
            self.joint_draws,
            self.n_sweeps,
            seed,
            self.neighbours_,
            self._observations(),
            self._inverse_transforms(),
            shifted or {},
            self._cholesky_cache,
            self._training,
        )

    def _observations(self) -> list[Observation | None]:
        """How functions and noise become draws: among few values, within bounds, or as they are."""
        bounds = bounds_of_links(self.codec_, self._link_specs)
        return [few or bound for few, bound in zip(self.discrete_support_, bounds, strict=True)]

    def _inverse_transforms(self) -> list[InverseTransform | None]:
        """Inverse transform of each link's column; None for columns without one and for the target."""
        columns = [*self.codec_.inverse_transforms, None]
        return [columns[link.column] for link in self._link_specs]

    def _own_table(self) -> Input:
        """The fitted table, a target known."""
        check_is_fitted(self, "chain_")
        if not hasattr(self, "_fitted"):
            raise ValueError(
                "this imputer was loaded, or fitted to files, and does not hold the table it was fitted to: "
                "call impute(X, m=...) or impute_to_parquet(path, X) with a table, or with one part of a "
                "large table after the other"
            )
        return self._fitted

    def identify(self, X: pd.DataFrame) -> tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.uint64]]:
        """What tells incomplete rows of a table apart: where they are, hashes of cells, hashes of labels."""
        check_is_fitted(self, "chain_")
        values = self.codec_.encode_again(as_modelled(X, self._rules)).values
        here = np.flatnonzero(np.isnan(values).any(axis=1))
        return here, content_hashes(values[here]), label_hashes(X.index[here])

    def _encode(self, X: pd.DataFrame | ArrayLike, row_ids: RowIds = None) -> Input:
        """A table to complete, a target unknown."""
        check_is_fitted(self, "chain_")
        frame = as_frame(X)
        own, identity = without_ids(frame, row_ids, self._columns)
        if not self._rules.trivial:
            check_same_columns(own, self._columns)
        modelled = as_modelled(own, self._rules)
        table = self.codec_.encode(modelled, identity)
        self._warn_of_columns_without_link(table)
        target = None if self.target_codec_ is None else np.full(len(frame), np.nan)
        return Input(frame, modelled, rows_of(table, target))

    def _warn_of_columns_without_link(self, table: Table) -> None:
        incomplete = np.flatnonzero(~table.observed.all(0))
        groups = self.codec_.groups
        linked = {groups[link.column] for link in self._link_specs if link.column < len(groups)}
        names = {self.codec_.columns[groups[d]].name for d in incomplete if groups[d] not in linked}
        if names:
            warn_user(
                f"columns {sorted(names, key=str)} had no missing cells when the imputer was fitted, so they "
                "have no link; here they are filled by the starting fill alone: fit with columns='all' to "
                "model them",
                FitWarning,
            )

    def _decode(
        self, given: Input, batches: Iterable[tuple[slice, Tensor]], m: int, to_support: bool = True
    ) -> dict[Label, NDArray[Any]]:
        """Draws of the missing cells, per incomplete column `[m, n_missing]`, in the column's own units.

        Args:
            given: The table.
            batches: Slices of its incomplete rows, in order, and these rows filled, `[m, n, D]`.
            m: Number of draws.
            to_support: Whether what was drawn among few values is to be one of these to the last digit.
        """
        drawn = zip(self._link_specs, self.discrete_support_, strict=True)
        few = {link.column for link, values in drawn if to_support and values is not None}
        holes = given.holes[given.incomplete.numpy()]
        slices = self.codec_.slices
        parts: dict[Label, list[NDArray[Any]]] = {
            column.name: [] for i, column in enumerate(self.codec_.columns) if holes[:, i].any()
        }
        for here, filled in batches:
            numbers = filled.cpu().numpy()
            for position, column in enumerate(self.codec_.columns):
                if column.name in parts:
                    cells = numbers[:, holes[here, position], slices[column.name]]
                    is_few = column.width == 1 and slices[column.name].start in few
                    parts[column.name].append(column.decode(cells, is_few))
        draws = {label: np.concatenate(part, axis=1) for label, part in parts.items()}
        return (
            draws
            if self._rules.trivial
            else self._rules.apply_to_draws(given.frame, given.modelled, draws, m)
        )

    def _watched(
        self, batches: Iterable[tuple[slice, Tensor]], n_rows: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """The batches, with a progress bar on terminals."""
        with tqdm(
            total=n_rows, desc="imputing", unit="rows", disable=None if self.progress else True, leave=False
        ) as bar:
            for here, filled in batches:
                yield here, filled
                bar.update(here.stop - here.start)


def _not_sequential() -> ValueError:
    return ValueError(
        'inputs="earlier" is for tables of at most 1000 rows and 8 numeric columns, 20 rows of them '
        "complete, whose incomplete columns are neither of few values nor bounded nor other than "
        "Gaussian; for joint predictive draws by natural gradients; without a target, an order or "
        'specs of predictors. Take inputs="auto" or "others"'
    )
