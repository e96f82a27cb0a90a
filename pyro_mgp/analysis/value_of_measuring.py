"""What to measure next: the expected reduction of a variance if missing cells were measured.

Draws of missing cells are draws of what a measurement would show. With a target T and the cells Z that would
be measured, the law of total variance

    E[Var(T | Z)] = Var(T) - Var(E[T | Z])

gives the variance that is expected to remain. E[T | Z] is estimated by linear regression over the draws,
which is exact for normal distributions, and otherwise explains too little. The explained variance is that of
the adjusted R², which is unbiased for cells that tell nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.checks import at_least
from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import holes_of
from pyro_mgp.data.column_spec import Label

Numbers = NDArray[np.float64]
By = Literal["cell", "row", "column"]
# Share of its length that is left of a regressor from which other ones follow.
_NOTHING = 1e-8
# Fewest draws per measured cell: with fewer, what regressions explain by chance is most of it.
_DRAWS_PER_CELL = 4


@dataclass
class _Target:
    """Centred draws of something whose variance is to be reduced, `[m, k]`, less what was measured."""

    draws: Numbers
    measured: Numbers
    """Orthonormal basis of what was measured, `[m, q]`."""

    @classmethod
    def of(cls, draws: Numbers) -> _Target:
        return cls(draws - draws.mean(0), np.empty((len(draws), 0)))

    @property
    def variance(self) -> float:
        """Expected variance that remains."""
        return float(np.square(self.draws).sum()) / (len(self.draws) - 1 - self.measured.shape[1])

    def basis(self, cells: Numbers) -> Numbers:
        """Return an orthonormal basis of cells `[m, q]` beyond what was measured."""
        left = cells - cells.mean(0)
        length = np.linalg.norm(left, axis=0)
        left = left - self.measured @ (self.measured.T @ left)
        left = left[:, np.linalg.norm(left, axis=0) > _NOTHING * length]
        vectors, values, _ = np.linalg.svd(left, full_matrices=False)
        return vectors[:, values > _NOTHING * values.max(initial=0.0)]

    def after(self, cells: Numbers) -> _Target:
        """Return the target after cells `[m, q]` were measured."""
        basis = self.basis(cells)
        measured, m = self.measured.shape[1] + basis.shape[1], len(self.draws)
        if _DRAWS_PER_CELL * measured > m:
            raise ValueError(
                f"{m} imputations cannot tell what {measured} cells say together: draw "
                f"{_DRAWS_PER_CELL * measured} or more, or measure fewer (by='cell', a smaller budget)"
            )
        return _Target(self.draws - basis @ (basis.T @ self.draws), np.hstack([self.measured, basis]))


@dataclass
class _Candidate:
    """Cells that are measured together, and the targets that they may tell of."""

    name: dict[str, Any]
    cells: dict[int, list[Numbers]] = field(default_factory=dict)
    """Draws of the cells, `[m, q]` each, by the number of the target."""

    def of(self, number: int) -> Numbers:
        return np.hstack(self.cells[number])


def value_of_measuring(
    draws: Any,
    target: Label | Callable[[pd.DataFrame], float],
    *,
    by: By = "cell",
    budget: int | None = None,
) -> pd.DataFrame:
    """Rank missing cells by the variance that measuring them is expected to remove.

    Args:
        draws: `Imputations`, of which there should be a thousand: among m draws, cells that tell nothing may
            seem to remove a few times 1/m of the variance.
        target: Function that estimates a number from a completed DataFrame, whose variance between
            imputations is to be reduced; or the label of a column, for the mean variance of its missing
            cells (of levels, of their indicators).
        by: What is measured at once: a missing "cell", all those of a "row", or all those of a "column".
            For a column as target, its own cells are not measured, and cells of other rows count as
            independent.
        budget: Number of measurements to choose, each given those before; None to rank each by itself.

    Returns:
        Rows in descending order of `removed`, or in the order of choice: `row` and `column` of what is
        measured; `variance` before; `expected`, the variance that is expected to remain, with a budget after
        all measurements so far; and `removed`, the share of the variance that this measurement removes.

    Raises:
        ValueError: If the target has no variance or nothing can be measured, draws are too few for the cells
            that are measured together, or an argument is none of the allowed ones. Cells that stay missing
            in some draws are left out.

    Example:
        >>> from pyro_mgp import Imputations
        >>> frame = pd.DataFrame({"x": [1.0, np.nan, np.nan]})
        >>> draws = Imputations(frame, {"x": np.random.default_rng(0).normal(0, [1, 2], (2000, 2))}, m=2000)
        >>> value_of_measuring(draws, lambda table: table["x"].mean())[["row", "column", "removed"]].round(1)
           row column  removed
        0    2      x      0.8
        1    1      x      0.2
    """
    if by not in get_args(By):
        raise ValueError(f"by must be one of {get_args(By)}, got {by!r}")
    if draws.m < 3:
        raise ValueError(f"expected at least three imputations, and better a thousand, got {draws.m}")
    if budget is not None:
        at_least("budget", budget, 1)
    targets, rows = _targets(draws, target)
    candidates = _candidates(draws, target, rows, by)
    variance = _variance(targets)
    if not candidates or not variance > 0:
        constant = "the target does not vary between draws, or stays missing"
        what = "no missing cell can be measured" if variance > 0 else constant
        raise ValueError(f"nothing is to be gained: {what}")
    if budget is None:
        ranked = [(each, _remaining(targets, each)) for each in candidates]
        ranked.sort(key=lambda pair: pair[1])
        removed = [1 - left / variance for _, left in ranked]
    else:
        ranked = list(_chosen(targets, candidates, budget))
        left = [variance, *(each for _, each in ranked)]
        removed = (-np.diff(left) / variance).tolist()
    names = pd.DataFrame([each.name for each, _ in ranked])
    return names.assign(variance=variance, expected=[left for _, left in ranked], removed=removed)


def _variance(targets: list[_Target]) -> float:
    """Return the mean variance of the targets."""
    return float(np.mean([target.variance for target in targets])) if targets else 0.0


def _remaining(targets: list[_Target], candidate: _Candidate) -> float:
    """Return the mean variance of the targets that is expected after a measurement."""
    known = {number: targets[number].after(candidate.of(number)).variance for number in candidate.cells}
    return float(np.mean([known.get(i, target.variance) for i, target in enumerate(targets)]))


def _chosen(
    targets: list[_Target], candidates: list[_Candidate], budget: int
) -> Iterator[tuple[_Candidate, float]]:
    """Yield measurements, each the best one after those before, and the variance expected after it."""
    targets, left = list(targets), list(candidates)
    for _ in range(min(budget, len(candidates))):
        remaining = [_remaining(targets, each) for each in left]
        best = left.pop(int(np.argmin(remaining)))
        for number in best.cells:
            targets[number] = targets[number].after(best.of(number))
        yield best, min(remaining)


def _targets(draws: Any, target: Label | Callable[[pd.DataFrame], float]) -> tuple[list[_Target], list[int]]:
    """Return the targets, and for a column the positions of the rows of its missing cells."""
    if callable(target):
        found = [np.asarray(target(table), dtype=np.float64) for table in draws.in_pandas()]
        if any(each.size != 1 or not np.isfinite(each).all() for each in found):
            raise ValueError("target must return one finite number from every completed table")
        return [_Target.of(np.array(found).reshape(-1, 1))], []
    if isinstance(target, list) or target not in draws.values:
        labels = listing(draws.values)
        raise ValueError(f"target must be a function or a column with draws, of {labels}; got {target!r}")
    positions = np.flatnonzero(holes_of(draws.frame[target])).tolist()
    cells = zip(_numbers(draws.values[target]), positions, strict=True)
    # Cells that stay missing in some draws have no variance.
    kept = [(own, row) for own, row in cells if np.isfinite(own).all()]
    return [_Target.of(own) for own, _ in kept], [row for _, row in kept]


def _candidates(draws: Any, target: Any, rows: list[int], by: By) -> list[_Candidate]:
    """Return what can be measured, with the draws of its cells by the target that they may tell of."""
    place = {row: number for number, row in enumerate(rows)}
    found: dict[Any, _Candidate] = {}
    for label, values in draws.values.items():
        if not callable(target) and label == target:
            continue
        for row, cells in zip(
            np.flatnonzero(holes_of(draws.frame[label])).tolist(), _numbers(values), strict=True
        ):
            number = 0 if callable(target) else place.get(row)
            if number is None or not np.isfinite(cells).all():
                continue
            whole = {"row": draws.frame.index[row], "column": label}
            name = {part: whole[part] for part in whole if by in ("cell", part)}
            key = {"cell": (row, label), "row": row, "column": label}[by]
            found.setdefault(key, _Candidate(name)).cells.setdefault(number, []).append(cells)
    return list(found.values())


def _numbers(values: NDArray[Any]) -> list[Numbers]:
    """Return the draws of each cell `[m, n]` as numbers `[m, q]`: those of levels as indicators."""
    if values.dtype.kind in "Mm":
        values = np.where(np.isnat(values), np.nan, values.view(np.int64).astype(np.float64))
    if values.dtype != object:
        return [own[:, None].astype(np.float64) for own in values.T]
    return [(own[:, None] == pd.unique(own)[None, :]).astype(np.float64) for own in values.T]
