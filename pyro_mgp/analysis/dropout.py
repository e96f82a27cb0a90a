"""Reference-based imputation of subjects who drop out of a trial, and shifts of their cells by arm and visit.

`sampling.after_dropout` has the strategies and their mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from numbers import Real
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_mgp._support.messages import listing, row_name
from pyro_mgp.analysis.pooling import Fit
from pyro_mgp.analysis.sensitivity import Imputer, estimated, tipped
from pyro_mgp.data.cells import holes_of
from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label
from pyro_mgp.data.table import as_frame
from pyro_mgp.data.table_encoder import InputTable
from pyro_mgp.sampling.after_dropout import Strategy, Subjects, Visits, after_last_observed
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.sampling.sampler import Sampler

_STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, eq=False)
class AfterDropout:
    """What is assumed of missing cells after a subject's last observed visit.

    Missing cells before it are missing at random, like those of all other columns. The analysis model of the
    trial is left to `Imputations.fit`.

    Raises:
        ValueError: If there are no visits, a strategy is unknown, or `delta` names an unknown visit or is not
            finite.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> g = np.random.default_rng(0)
        >>> frame = pd.DataFrame({"arm": ["drug", "placebo"] * 30, "week_1": g.normal(size=60)})
        >>> frame["week_2"] = frame["week_1"] - (frame["arm"] == "drug") + g.normal(size=60)
        >>> frame.loc[:9, "week_2"] = np.nan
        >>> after = AfterDropout(["week_1", "week_2"], arm="arm", reference="placebo", strategy="J2R")
        >>> imputer = MGPImputer(**after.settings, random_state=0).fit(frame)
        >>> imputer.impute(m=5, after_dropout=after)
        Imputations(m=5, 60 rows x 3 columns, 10 missing cells in 1 columns)
    """

    visits: Sequence[Label]
    """Labels of the columns of the visits, in the order of time."""
    arm: Label
    """Label of the column of the arms, which is complete."""
    reference: Any
    """Cell of that column in the reference arm."""
    strategy: Strategy | pd.Series[Any] | Sequence[Any] = "J2R"
    """Missing at random ("MAR"), jump to reference ("J2R"), copy reference ("CR"), copy increments in
    reference ("CIR") or last mean carried forward ("LMCF"). For subjects who drop out for different reasons,
    a Series of these by the table's row labels, or a sequence of one for each row; those who do not drop out
    need none."""
    delta: Mapping[Any, float | Mapping[Label, float]] = field(default_factory=dict)
    """Numbers that are added to cells after dropout, in the visit's own units: by arm, one number for all
    visits, or numbers by visit. Arms and visits without one have zero."""

    def __post_init__(self) -> None:
        if isinstance(self.visits, str) or len(self.visits) == 0:
            raise ValueError(f"visits must be labels of columns, in the order of time, got {self.visits!r}")
        if twice := [visit for visit in self.visits if list(self.visits).count(visit) > 1]:
            raise ValueError(f"visits must be different columns, but {twice[0]!r} occurs more than once")
        if isinstance(self.strategy, Mapping) or not isinstance(self.strategy, Iterable):
            raise TypeError(f"strategy must be one of {_STRATEGIES} or a Series, got {self.strategy!r}")
        given = [self.strategy] if isinstance(self.strategy, str) else [*self.strategy]
        if unknown := [each for each in given if not pd.isna(each) and each not in _STRATEGIES]:
            raise ValueError(f"strategy must be one of {_STRATEGIES}, got {unknown[0]!r}")
        if not isinstance(self.delta, Mapping):
            raise TypeError(f"delta must be numbers by arm, such as {{'drug': 2.0}}, got {self.delta!r}")
        for arm in self.delta:
            numbers = self._numbers(arm)
            if strange := [visit for visit in numbers if visit not in self.visits]:
                raise ValueError(
                    f"delta of arm {arm!r} names {strange[0]!r}, no visit of {listing(self.visits)}"
                )
            if not all(isinstance(each, Real) and np.isfinite(each) for each in numbers.values()):
                raise ValueError(f"delta of arm {arm!r} must be finite numbers, got {self.delta[arm]!r}")

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `MGPImputer` for visits that are multivariate normal, given complete columns."""
        normal = {"kernel": "linear", "inputs": "earlier", "warp": False, "discrete_support": 0}
        specs = {visit: ColumnSpec(kind="continuous") for visit in self.visits}
        return {**normal, "columns": "all", "order": list(self.visits), "specs": specs}

    def applied(
        self,
        model: FittedModel,
        given: InputTable,
        sampler: Sampler,
        imputations: Sequence[int],
        batches: Iterable[tuple[slice, Tensor]],
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of a table's incomplete rows, with their draws `[S, n, D]` as assumed here.

        `batches` are those under missing at random.

        Raises:
            ValueError: If a visit is no Gaussian link in the order of time, the arm is unknown or missing, a
                row has no strategy, or LMCF has no mean to carry forward.
        """
        rows, positions = given.encoded[given.incomplete], given.incomplete.numpy()
        if sampler.has_new_effects(rows):
            raise ValueError("after_dropout needs groups of the table of the fit, but some rows have others")
        codecs, links = self._visits(model)
        arm = _column(model, self.arm)
        columns, conditionals = [model.chain.links[i].column for i in links], sampler.sparse(imputations)
        reference = torch.as_tensor(self._reference(arm, given), device=rows.values.device)
        place = range(model.encoder.codec.n_encoded)[model.encoder.codec.slices[self.arm]]
        visits = Visits(columns, [conditionals[i] for i in links], place, reference)
        arms, strategies = self._arms(given)[positions], self._strategies(given)[positions]
        shifts = self._shifts(arms) / [codec.scale[0] for codec in codecs]
        for here, filled in batches:
            after = after_last_observed(rows.observed[here][:, columns]).to(filled.device)
            followers = self._followers(arms[here], strategies[here], filled.device)
            subjects = Subjects(after, followers)
            self._check_rows(subjects, strategies[here], positions[here], given)
            redrawn = sampler.rounded(visits.redrawn(filled, subjects))
            redrawn[..., columns] += torch.as_tensor(shifts[here]).to(filled) * after
            yield here, redrawn

    def _visits(self, model: FittedModel) -> tuple[list[ColumnCodec], list[int]]:
        """Return the codecs of the visits, and the numbers of their links."""
        of_links = {link.column: number for number, link in enumerate(model.chain.links)}
        codecs, links = [_column(model, visit) for visit in self.visits], []
        place, earlier = model.encoder.codec.slices, list[int]()
        arm = list(range(model.encoder.codec.n_encoded)[place[_column(model, self.arm).name]])
        for codec in codecs:
            number = of_links.get(place[codec.name].start, -1) if codec.width else -1
            link = model.chain.links[number] if number >= 0 else None
            if codec.kind is not Kind.CONTINUOUS or codec.warp is not None or codec.support is not None:
                why = f"is modelled as {codec.kind}, transformed, or with a discrete support, not as it is"
            elif codec.bounds is not None or (link is not None and not link.is_gaussian):
                why = "has bounds, limits or standard errors in its spec, which a normal distribution has not"
            elif link is None or not model.is_sequential:
                why = "has no link that sees earlier columns only"
            elif not {*arm[: len(arm) - 1 or 1], *earlier} <= {*link.inputs.tolist()}:
                why = "is not predicted from the arm and all earlier visits"
            else:
                links.append(number)
                earlier.append(link.column)
                continue
            advice = "fit MGPImputer(**after_dropout.settings, ...) to numbers"
            raise ValueError(f"visit {codec.name!r} {why}: {advice}")
        return codecs, links

    def _reference(self, arm: ColumnCodec, given: InputTable) -> NDArray[np.float64]:
        """Return the encoded reference arm, `[width]`."""
        if arm.indicators is not None:
            arms: list[Any] = list(arm.levels or ())
        elif arm.levels is None and (arm.is_binary or _has_two_values(arm)):
            arms = [False, True] if arm.family == "booleans" else [arm.low, arm.high]
        else:
            raise ValueError(
                f"arm {self.arm!r} must be text, an unordered category, or have two values, but it is "
                f"{arm.kind}, in which effects are linear: convert it to text, and fit again"
            )
        for name, named in (("reference", [self.reference]), ("delta", self.delta)):
            if unknown := [each for each in named if each not in arms]:
                known = f"column {self.arm!r} has {listing(arms)}"
                raise ValueError(f"{name} names arm {unknown[0]!r}, but {known}")
        cells = pd.Series([self.reference], name=self.arm, dtype=given.modelled[self.arm].dtype)
        return arm.encode(cells)[0]

    def _arms(self, given: InputTable) -> NDArray[Any]:
        """Return the arm of each row, `[N]`."""
        cells = given.modelled[self.arm]
        for row in np.flatnonzero(holes_of(cells))[:1]:
            raise ValueError(f"arm {self.arm!r} is missing in {row_name(cells.index, row)}: expected an arm")
        return cells.to_numpy(dtype=object)

    def _strategies(self, given: InputTable) -> NDArray[Any]:
        """Return the strategy for each row, None without one, `[N]`."""
        index = given.frame.index
        if isinstance(self.strategy, str):
            return np.full(len(index), self.strategy, dtype=object)
        if isinstance(self.strategy, pd.Series):
            found = self.strategy.astype(object).reindex(index)
        elif len(self.strategy) == len(index):
            found = pd.Series([*self.strategy], index, dtype=object)
        else:
            raise ValueError(f"strategy has {len(self.strategy)} values for {len(index)} rows: pass a Series")
        return found.where(found.notna(), None).to_numpy()

    def _numbers(self, arm: Any) -> dict[Label, float]:
        """Return the number that is added to each visit of an arm."""
        numbers = self.delta.get(arm, 0.0)
        if isinstance(numbers, Mapping | pd.Series):
            return dict(numbers.items())
        return dict.fromkeys(self.visits, numbers)

    def _shifts(self, arms: NDArray[Any]) -> NDArray[np.float64]:
        """Return the number that is added to each visit of each row, `[n, K]`, in the visits' own units."""
        numbers = {arm: self._numbers(arm) for arm in set(arms)}
        shifts = [[numbers[arm].get(visit, 0.0) for visit in self.visits] for arm in arms]
        return np.array(shifts, dtype=np.float64).reshape(len(arms), len(self.visits))

    def _followers(
        self, arms: NDArray[Any], strategies: NDArray[Any], device: torch.device
    ) -> dict[Strategy, Tensor]:
        """Return the rows that follow each strategy but MAR: for the reference arm only LMCF is another."""
        moved = arms != self.reference
        follow = {each: (strategies == each) & (moved | (each == "LMCF")) for each in _STRATEGIES[1:]}
        return {each: torch.as_tensor(rows.astype(bool), device=device) for each, rows in follow.items()}

    @staticmethod
    def _check_rows(
        subjects: Subjects, strategies: NDArray[Any], positions: NDArray[np.intp], given: InputTable
    ) -> None:
        """Raise a ValueError if a row that drops out has no strategy, or one without a mean to carry."""
        dropped = subjects.after.any(1).cpu().numpy()
        unknown = dropped & np.array([each is None for each in strategies], dtype=bool)
        for row in positions[unknown][:1]:
            where = row_name(given.frame.index, row)
            raise ValueError(f"strategy has no value for {where}: expected one of {_STRATEGIES}")
        without = subjects.follow["LMCF"] & (subjects.last < 0)
        for row in positions[without.cpu().numpy()][:1]:
            raise ValueError(
                f"{row_name(given.frame.index, row)} has no observed visit, whose mean LMCF would carry "
                "forward: name the baseline among the visits, or give the row another strategy"
            )


def _has_two_values(column: ColumnCodec) -> bool:
    """Return whether the cells of a column of numbers had two values at fit: their variance is largest."""
    if column.width != 1 or column.warp is not None:
        return False
    largest = (column.mean[0] - column.low) * (column.high - column.mean[0])
    return math.isclose(column.scale[0] ** 2, largest, rel_tol=1e-9)


def _column(model: FittedModel, label: Label) -> ColumnCodec:
    """Return the codec of a column; a ValueError says that there is none."""
    for codec in model.encoder.codec.columns:
        if codec.name == label:
            return codec
    raise ValueError(f"after_dropout names {label!r}, but columns are {listing(model.encoder.columns)}")


def tipping_points(
    imputer: Imputer,
    analysis: Callable[[pd.DataFrame], Fit],
    after_dropout: AfterDropout,
    deltas: ArrayLike,
    deltas_of_reference: ArrayLike,
    term: Any,
    X: pd.DataFrame | ArrayLike,
    *,
    m: int = 20,
    level: float = 0.95,
    null: float = 0.0,
) -> pd.DataFrame:
    """Scan a pooled estimate over shifts of the cells after dropout, one for each arm.

    Args:
        imputer: Fitted imputer; it is not refitted.
        analysis: Analysis of a completed table, which returns anything that `pool` accepts.
        after_dropout: Visits, arms and strategy. Its own `delta` is not used.
        deltas: Shifts of all arms but the reference, in the units of the visits; zero is always added.
        deltas_of_reference: Shifts of the reference arm; zero is always added.
        term: Estimate to follow: its name in `params`, or its position.
        X: Table to impute.
        m: Number of imputations.
        level: Confidence level of the intervals.
        null: Null value of the estimate.

    Returns:
        One row per pair of shifts: `delta` and `delta_of_reference`; `estimate`, `low`, `high`, and `p` of
        the null value; and `tipped`, whether the interval lies above, below or around the null value unlike
        the interval without shifts. `plots.plot_tipping_points` shows it.

    Raises:
        ValueError: As for `MGPImputer.impute`.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> g = np.random.default_rng(0)
        >>> frame = pd.DataFrame({"arm": [1, 0] * 30, "week_1": g.normal(size=60)})
        >>> frame["week_2"] = frame["week_1"] - 2 * frame["arm"] + g.normal(size=60)
        >>> frame.loc[:19, "week_2"] = np.nan
        >>> after = AfterDropout(["week_1", "week_2"], arm="arm", reference=0, strategy="J2R")
        >>> imputer = MGPImputer(**after.settings, random_state=0).fit(frame)
        >>> def difference(table):
        ...     by_arm = table.groupby("arm")["week_2"]
        ...     return by_arm.mean().diff()[1], (by_arm.sem() ** 2).sum()
        >>> table = tipping_points(imputer, difference, after, [6], [], 0, frame, m=5)
        >>> table[["delta", "delta_of_reference", "tipped"]]
           delta  delta_of_reference  tipped
        0    0.0                 0.0   False
        1    6.0                 0.0    True
    """
    frame, rows = as_frame(X), []
    if after_dropout.arm not in frame:
        raise ValueError(f"after_dropout names arm {after_dropout.arm!r}, but columns are {listing(frame)}")
    arms = frame[after_dropout.arm].unique().tolist()
    if after_dropout.reference not in arms:
        raise ValueError(f"reference {after_dropout.reference!r} is not among the arms {listing(arms)}")
    grid = [sorted({0.0, *np.ravel(np.array(each, dtype=float))}) for each in (deltas_of_reference, deltas)]
    for of_reference, of_others in product(*grid):
        shifts = {arm: of_reference if arm == after_dropout.reference else of_others for arm in arms}
        draws = imputer.impute(X, m, after_dropout=replace(after_dropout, delta=shifts))
        shift = {"delta": of_others, "delta_of_reference": of_reference}
        rows.append(shift | estimated(draws, analysis, term, level, null))
    table = pd.DataFrame(rows)
    return tipped(table, (table["delta"] == 0.0) & (table["delta_of_reference"] == 0.0), null)
