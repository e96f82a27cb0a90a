"""`MGPImputer`, the estimator that fits a chain of sparse GPs and draws multiple imputations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import sklearn
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from pyro_mgp import saving
from pyro_mgp._support.checks import RandomState
from pyro_mgp._support.messages import FitWarning as FitWarning
from pyro_mgp.analysis.dropout import AfterDropout
from pyro_mgp.analysis.value_of_measuring import By, value_of_measuring
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.encoded_table import RowIds
from pyro_mgp.data.parquet_table import ParquetTable, Paths
from pyro_mgp.fitting.table_fit import fit_files, fit_frame
from pyro_mgp.model.kernels import KernelFactory
from pyro_mgp.results import drawing
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.settings import PAPER, Parameters, Settings, check_settings, with_engine
from pyro_mgp.storage.checkpoint import CheckpointLike


class MGPImputer(Parameters, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Multiple imputation by a chain of sparse Gaussian processes (MGP).

    Args:
        kernel: A name of `model.kernels.KERNELS`, or a factory `input_dim -> pyro.contrib.gp` kernel;
            "auto" takes "linear+matern32", with a quadratic trend in links that see "earlier" columns, and
            up to 300 rows with a trend that is not shrunk. "linear" has linear functions only.
        inputs: Inputs of a link: all "others", or complete and "earlier" columns only, a joint density of
            the columns in an order that the table shows. "auto" takes the latter unless nearby rows improve
            predictions by more than 5 %, a table is large (more than 300,000 missing cells times links, or
            many rows of many columns), has more than 20 links, or more than 50 encoded columns of more than
            five times as many rows, or a setting rules it out; `settings_` says which.
        n_inducing: Inducing inputs per link; None takes 100, or 50 in links that see "earlier" columns.
        n_neighbors: Nearest training rows on which local GPs of the residuals condition, in links where
            they clearly help, with up to 100 inputs; at most 100, 0 for none (train for `max_steps=40` then).
        warp: Whether numeric columns with long tails are transformed before they are modelled, by arcsinh or,
            if all numbers are positive, by a log; their draws stay within the observed range. Where numbers
            clearly predict each other better in their own units, only transforms that keep draws within
            bounds are used. A target is never transformed.
        discrete_support: Most distinct values, at most 1000, of a numeric column whose draws are taken from
            these values (ratings, counts, rounded readings), where nine in ten cells hold a value that
            occurs five times or more; 0 for continuous draws, and for counts without an upper end.
        n_sweeps: Sweeps through the chain per draw, twice as many before the first one.
        columns: Columns that get a link: the "incomplete" ones, or "all", for new rows with other missing
            cells.
        order: Labels of the linked columns in the order of the chain; None takes ascending standard
            deviation in the columns' own units or, for "earlier" columns, the order of largest evidence.
            Incomplete columns that the order of "earlier" columns does not name come first.
        max_steps: Most training steps; None takes 15 where local GPs correct every link, 40 in links that
            see "earlier" columns if some are counts, ordered values or have outliers, 1000 by SVI, else 20.
        learning_rate: Adam's step size; None takes .25, or .03 by SVI.
        batch_size: Rows in a minibatch; smaller tables are one batch.
        precision: "double", or "mixed": float32 for the products over rows, for GPUs with slow float64;
            the third decimal of a draw, in standard deviations, may then depend on `batch_size`.
        device: "cpu", "cuda", ..., or "auto": a GPU, if there is one, if 10,000 rows or more are fitted.
        random_state: Seed, generator or None. The same seed gives the same imputations.
        progress: Whether to show progress bars, on terminals only.
        specs: Column specs by label: bounds, kinds, derived columns, ...; see `ColumnSpec`.
        add_indicator: Whether `transform` appends a boolean column `missingindicator_...` for each column
            that was incomplete at fit, True where its cell was missing.
        engine: Rarely needed switches of training and sampling; see `Engine`.
        inference: Training in "closed_form", by tens of steps, or by hundreds of `pyro.infer.SVI`, "svi".
            "auto" takes the former where the engine allows it. "mcmc" draws lengthscales as well, by NUTS:
            minutes for up to 300 rows of numeric columns.
        optimizer: Optimiser of `pyro.optim` for "svi"; None takes Adam with `learning_rate`.
        loss: Bound of `chain_.model` and `chain_.guide` for "svi"; None takes the paper's, less noisy one.
        survival: Labels of two complete columns, times and whether the event occurred (else the time is
            censored). The model sees the Nelson-Aalen cumulative hazard in place of the time, as White and
            Royston (2009) advise for covariates of a survival analysis.
        weights: Label of a complete column of positive sampling weights. Their logarithms are modelled with
            all other columns, so that imputations suit analyses that use the weights.
        groups: Label, or labels, of complete columns of groups such as schools: all other columns have random
            intercepts. The same as `ColumnSpec(kind="group")`, which may also name slopes.
        subject: Label of the column of subjects in a table of visits, which are groups.
        time: Label of the complete column of the times of these visits, numbers or dates. Subjects have
            slopes of it, and a process over time: their cells are the more alike, the closer their times.
            Needs `subject`.

    Attributes:
        model_: Everything that was learnt; see `FittedModel`.
        chain_: The Pyro module, with `model` and `guide`.
        codec_: Codecs of the modelled columns.
        target_codec_: Codec of the target; None without a target.
        history_: Losses and validation scores of the training.
        initial_fill_: Values of missing cells before the first sweep.
        neighbours_: Local GPs of the links; None if no link has one.
        discrete_support_: For each link the values among which its draws choose, or None.
        sequential_: Whether links see complete and earlier columns only.
        seed_: The seed that all randomness is keyed by.
        settings_: The settings that the fit used, each with its reason; `print(imputer.settings_)`.
        order_: Names of the encoded columns with a link, in the order of the chain.
        n_features_in_, feature_names_in_: As in scikit-learn.

    Example:
        >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2})
        >>> frame.loc[3, "y"] = np.nan
        >>> imputer = MGPImputer(random_state=0, max_steps=20).fit(frame)
        >>> imputer.impute(m=5)
        Imputations(m=5, 20 rows x 2 columns, 1 missing cells in 1 columns)
    """

    model_: FittedModel
    settings_: Settings
    feature_names_in_: NDArray[Any]

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return an imputer with the paper's method and the settings of its experiments (`settings.PAPER`).

        Parameters of `MGPImputer` and fields of `Engine` can be set differently, such as `max_steps=2000`
        for a table the size of Parkinson.
        """
        return cls(**with_engine({**PAPER, **changes}))

    def fit(
        self,
        X: pd.DataFrame | ArrayLike,
        y: pd.Series[Any] | ArrayLike | None = None,
        *,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Fit the chain of Gaussian processes to a table with missing cells.

        Args:
            X: DataFrame of pandas, Polars, PyArrow or DuckDB, or two-dimensional array; N rows, at least two
                columns. NaN, None and NA are missing.
            y: Optional numeric target, `[N]`, complete or not. It becomes the last link, for `predict`.
            checkpoint: File that keeps the training's progress, about every ten seconds. After a crash the
                same call resumes from it, with the same result; it is removed at the end. Needs an integer
                `random_state`.

        Raises:
            ValueError, TypeError: The table or a setting cannot be used, the checkpoint belongs to another
                fit, or memory does not suffice; the message names column and row, setting, or figures.
            OSError: The checkpoint cannot be written.
        """
        model, settings = fit_frame(self, check_settings(self), X, y, checkpoint)
        named = isinstance(X, pd.DataFrame) or (model.own is not None and model.own.kind is not None)
        return self._adopt(model, settings, model.encoder.columns if named else [])

    def fit_parquet(
        self,
        path: Paths,
        *,
        dropped: Sequence[Label] = (),
        scratch: str | os.PathLike[str] | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Fit the chain of Gaussian processes to Parquet files that may be larger than memory.

        The result is the imputer of `fit(table)` without the table: `impute(X)` imputes it part by part.
        Up to 10,000 rows it is read at once. Of more, one column at a time is in memory; the encoded table
        lies in temporary files, 19 bytes per cell, which are removed when this returns or the process ends.

        Args:
            path: A file, a folder of files, or several files, whose rows follow each other.
            dropped: Columns to leave out of the model, such as identifiers.
            scratch: Folder for the temporary files; None takes the system's, which must not lie in memory.
            checkpoint: As in `fit`.

        Raises:
            ValueError, TypeError: As in `fit`; a file cannot be read; or specs ask for derived columns,
                conditions or standard errors, which need whole rows, in over 10,000 rows.
            OSError: The disk has no room for the temporary files, or the checkpoint cannot be written.

        Example:
            >>> import tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2})
            >>> frame.mask(frame == 9).to_parquet(f"{folder.name}/table.parquet")
            >>> fitted = MGPImputer(random_state=0, max_steps=5).fit_parquet(f"{folder.name}/table.parquet")
            >>> [path.name for path in fitted.impute_to_parquet(f"{folder.name}/imputed", frame, m=2)]
            ['imputation_01.parquet', 'imputation_02.parquet']
            >>> folder.cleanup()
        """
        engine, table = check_settings(self), ParquetTable(path, dropped)
        model, settings = fit_files(self, engine, table, scratch, checkpoint)
        return self._adopt(replace(model, own=None), settings, model.encoder.columns)

    def with_choices(self) -> Self:
        """Return an unfitted copy that keeps what this fit chose: the inputs of links and their order.

        Fitting it to other cells of the same table saves the search for these, as in calibration by folds. It
        transforms no column if this fit transformed none, and else chooses transforms again.

        Raises:
            NotFittedError: The imputer is not fitted.

        Example:
            >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2})
            >>> frame.loc[3, "y"] = np.nan
            >>> MGPImputer(random_state=0, max_steps=20).fit(frame).with_choices().inputs
            'earlier'
        """
        check_is_fitted(self, "model_")
        copy: Self = clone(self)
        if not self.model_.link_specs:  # a complete table: nothing was chosen
            return copy
        codec, linked = self.codec_, [spec.column for spec in self.model_.link_specs]
        copy.set_params(warp=self.warp and any(column.warp is not None for column in codec.columns))
        if not self.sequential_:
            return copy.set_params(inputs="others")
        order = [codec.columns[group].name for group in dict.fromkeys(codec.groups[linked].tolist())]
        return copy.set_params(inputs="earlier", order=order)

    def fit_transform(self, X: pd.DataFrame | ArrayLike, y: object = None) -> Any:
        """Fit to a table and complete it; `y`, which pipelines pass to every step, is ignored."""
        return self.fit(X).transform(X)

    def transform(self, X: pd.DataFrame | ArrayLike) -> Any:
        """Return one completed table: missing cells at their posterior mean, discrete ones at their mode.

        `X` has the columns of the fitted table, and any rows. Categories, booleans and integers of two values
        are discrete; means of other columns of integers, by dtype or kind, are rounded, those of whole
        numbers in floating-point columns are not. The table, of the kind of `X`, suits prediction; analyses
        with standard errors need the draws of `impute`.

        Raises:
            ValueError, TypeError: The table does not fit the fitted one; the message says where.
        """
        check_is_fitted(self, "model_")
        completed = drawing.completed(self.model_, X, add_indicator=self.add_indicator)
        is_array = isinstance(completed, pd.DataFrame) and not isinstance(X, pd.DataFrame)
        if isinstance(completed, pa.Table) and _wants_container(self):
            return completed.to_pandas()
        return completed.to_numpy() if is_array else completed

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Return the names of the columns that `transform` gives, missing indicators included.

        Example:
            >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2}).mask(lambda t: t == 9)
            >>> fitted = MGPImputer(add_indicator=True, random_state=0, max_steps=5).fit(frame)
            >>> fitted.get_feature_names_out().tolist()
            ['x', 'y', 'missingindicator_x', 'missingindicator_y']
        """
        check_is_fitted(self, "model_")
        names: NDArray[Any] = super().get_feature_names_out(input_features)
        if not self.add_indicator:
            return names
        return np.append(names, [f"{drawing.INDICATOR}{names[i]}" for i in self.model_.encoder.incomplete])

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that missing cells, categories and text are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
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
        after_dropout: AfterDropout | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Imputations:
        """Draw m imputations of every missing cell from its posterior predictive distribution.

        Imputation j does not depend on m, the batch size, the order of the rows, or the other rows. Equal
        rows are distinguished by their index labels within a call, and by `row_ids` across calls.

        Args:
            X: Table with the columns of the fitted one; None for the fitted table itself, with its target.
            m: Number of imputations, or the numbers of those that are wanted, such as `range(20, 40)`.
            row_ids: Label of a column of ids, which is passed through, or an id for each row: a row's draws
                then depend on its cells and its id alone. Ids have one dtype: 7 and "7" are different.
            random_state: Seed of other draws than those of the imputer's own seed.
            batch_size: Rows drawn at a time; None chooses by memory.
            delta: Shifts of the draws by label, for cells missing not at random: in the column's own units
                for numbers and times (in seconds); in transformed units for transformed numbers; on the
                probit scale, towards the later level, for booleans, ordered levels and categories of two
                levels; on the log scale for counts. Other columns see the shifted draws.
            after_dropout: What is assumed of subjects of a trial after their last visit; see `AfterDropout`.
            checkpoint: Folder that keeps the draws, about every ten seconds. After a crash the same call
                resumes from it, with the same draws; it is removed at the end.

        Returns:
            The draws with the table that they complete.

        Raises:
            ValueError, TypeError, OSError: m is below 1, the table does not fit the fitted one, memory does
                not suffice, or the checkpoint belongs to other draws or cannot be written.
        """
        check_is_fitted(self, "model_")
        given, sampler = drawing.prepare(self.model_, X, row_ids, random_state, batch_size, delta)
        return drawing.draw(
            self.model_, given, sampler, m, batch_size, checkpoint,
            after_dropout=after_dropout, progress=self.progress,
        )  # fmt: skip

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
        after_dropout: AfterDropout | None = None,
        overwrite: bool = False,
    ) -> list[Path]:
        """Draw the m imputations of `impute(X, m)` and write each completed table to Parquet as it is drawn.

        Beyond the table and its encoding, memory is needed for `batch_size` rows only. The folder `path` is
        made whole or not at all, and with `overwrite` may replace one that this package wrote. The other
        arguments are those of `impute`.

        Returns:
            The paths of the m files, `imputation_01.parquet`, ...

        Raises:
            ValueError, TypeError: As in `impute`, or the folder or its files cannot be written.
        """
        check_is_fitted(self, "model_")
        given, sampler = drawing.prepare(self.model_, X, row_ids, random_state, batch_size, delta)
        return drawing.draw_to_parquet(
            self.model_, given, sampler, path, m, batch_size,
            after_dropout=after_dropout, overwrite=overwrite, progress=self.progress,
        )  # fmt: skip

    def synthesise(self, n: int, m: int = 50, *, random_state: RandomState = None) -> list[Any]:
        """Draw m synthetic tables of n rows from the joint density of all columns.

        Each table draws its functions anew, given the fitted table, and then its rows, column by column. Pool
        analyses of them by `pool_synthetic`, since Rubin's rules do not hold. Columns that are not modelled,
        such as identifiers, are left out.

        Synthetic rows belong to nobody, but that is no guarantee of privacy: rare levels, extreme numbers and
        values of a discrete support are drawn as they were observed, a model of a small table may follow
        single rows, and there is no bound, such as differential privacy has, on what tables tell of a person.

        Args:
            n: Number of rows of each table.
            m: Number of tables.
            random_state: Seed of other draws than those of the imputer's own seed.

        Returns:
            The tables, with the columns, dtypes and kind of the fitted one, and rows numbered from 0.

        Raises:
            ValueError: If some column has no link, as without `columns="all"`; if links see all other
                columns, as with derived columns or conditions; if there are weights, survival times or
                columns that are not imputed; or if the imputer was loaded or fitted to files.

        Example:
            >>> frame = pd.DataFrame({"x": np.arange(30.0), "y": np.arange(30) % 3 == 0})
            >>> imputer = MGPImputer(columns="all", inputs="earlier", random_state=0, max_steps=5).fit(frame)
            >>> tables = imputer.synthesise(4, m=2)
            >>> [table.shape for table in tables], tables[0].dtypes.astype(str).tolist()
            ([(4, 2), (4, 2)], ['float64', 'bool'])
        """
        check_is_fitted(self, "model_")
        return drawing.synthetic(self.model_, n, m, random_state)

    def value_of(
        self,
        X: pd.DataFrame | ArrayLike | None,
        target: Label | Callable[[pd.DataFrame], float],
        *,
        by: By = "cell",
        budget: int | None = None,
        m: int = 1000,
        random_state: RandomState = None,
    ) -> pd.DataFrame:
        """Rank missing cells by what measuring them would tell of an estimate or of a column.

        `X`, `m` and `random_state` are those of `impute`, the other arguments, result and errors those of
        `analysis.value_of_measuring`.

        Example:
            >>> x = np.random.default_rng(0).normal(size=(60, 3)) @ [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
            >>> frame = pd.DataFrame(x, columns=["a", "b", "c"])
            >>> frame.loc[50:] = np.nan
            >>> frame.loc[50:, "a"] = 1.0
            >>> imputer = MGPImputer(random_state=0, max_steps=5).fit(frame)
            >>> imputer.value_of(None, "c", by="column")["column"].tolist()
            ['b']
        """
        draws = self.impute(X, m, random_state=random_state)
        return value_of_measuring(draws, target, by=by, budget=budget)

    def predict(self, X: pd.DataFrame | ArrayLike, level: float = 0.95) -> pd.DataFrame:
        """Predict the target of `fit(X, y)`, averaged over the missing cells of `X`.

        Returns:
            One row per row of X, in the target's own units: `mean`, `sd`, and `lower` and `upper`, the ends
            of the central interval that holds a new observation with probability `level`.

        Raises:
            ValueError, TypeError: No target was fitted, or the table does not fit the fitted one.
        """
        check_is_fitted(self, "model_")
        return drawing.predict_target(self.model_, X, level)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the fitted imputer to the folder `path` atomically; `load` reads it back.

        The folder holds `header.json` and `arrays.safetensors`, with the encoded rows of the fitted table if
        these are at most 10,000, or 500,000 over the number of links: functions are drawn given them. Of
        larger tables with local GPs it holds 10,000 rows, completed. Keep it as safe as the table.

        Raises:
            ValueError: `path` exists and, with `overwrite`, was not written by this package.
        """
        check_is_fitted(self, "model_")
        names = [*getattr(self, "feature_names_in_", [])]
        saving.write(self.get_params(), self.model_, self.settings_, names, path, overwrite)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, kernel: KernelFactory | None = None, device: str = "auto"
    ) -> Self:
        """Read the imputer that `save` wrote, on any machine; no code in the folder is run.

        `kernel` is the kernel factory, if the imputer was fitted with one of the user's own; `device` is a
        torch device, as in `MGPImputer`.

        Raises:
            ValueError: The folder does not exist, was not written by `save` or by a readable version of the
                format, a file in it is missing, damaged or cut short, or the kernel is not given.
        """
        imputer: Self
        imputer, model, settings, names = saving.read(cls, path, kernel, device)
        return imputer._adopt(model, settings, names)

    def _adopt(self, model: FittedModel, settings: Settings, names: Sequence[Label]) -> Self:
        """Set the fitted attributes from a model; `names` are the columns' labels if the table has any."""
        self.model_, self.settings_, encoder = model, settings, model.encoder
        self.codec_, self.target_codec_, self.order_ = encoder.codec, encoder.target, [*model.chain.names]
        self.chain_, self.history_, self.seed_ = model.chain, model.history, model.seed
        self.initial_fill_, self.neighbours_ = model.initial_fill, model.neighbours
        self.discrete_support_, self.sequential_ = model.discrete_support, model.is_sequential
        self.n_features_in_ = len(encoder.columns)
        self.__dict__.pop("feature_names_in_", None)
        if names and all(isinstance(label, str) for label in names):
            self.feature_names_in_ = np.asarray(names, dtype=object)
        return self


def _wants_container(imputer: MGPImputer) -> bool:
    """Return whether scikit-learn converts what `transform` returns, which it must know."""
    own = getattr(imputer, "_sklearn_output_config", {}).get("transform")
    return (own or sklearn.get_config()["transform_output"]) != "default"
