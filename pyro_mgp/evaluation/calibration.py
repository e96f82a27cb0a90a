"""What hidden cells say of an imputer: figures per column, tests of calibration, and a verdict in words.

Each hidden cell needs an interval (of levels: a set) of some level to be held: that level is uniform on
(0, 1) if the truth is one more draw. Coverage at a nominal level is the share of cells that need no more.
"""

from __future__ import annotations

import enum
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from pyro_mgp._support.messages import listing
from pyro_mgp.data.column_spec import Label

# Deviations of less than so many standard deviations of one cell are of no consequence: 5 points in the
# coverage of 50 % intervals, 2 points in that of 95 %, 3 points in the mean of the PIT.
_TOLERANCE = 0.1
# A deviation of so much must have been possible to see before a column is called well calibrated.
_VISIBLE = 0.1
# Probability of any false alarm, of intervals for coverage to miss it.
_ALPHA = 0.05


class Verdict(enum.StrEnum):
    """What can be said of the draws of a column."""

    WELL = "well calibrated"
    """No deviation that counts, and enough cells to have seen one of ten points."""
    NARROW = "too narrow"
    """Intervals hold the truth less often than they say: the draws are too certain."""
    WIDE = "too wide"
    """Intervals hold the truth more often than they say: the draws are less certain than they could be."""
    OFF = "off centre"
    """The truth lies on one side of the draws too often."""
    FEW = "too few cells to tell"
    """Nothing that speaks against the draws, but little that could."""


_ADVICE = {
    Verdict.NARROW: "Standard errors of what hangs on {columns} will be too small: say in a spec what is "
    "known (kind, bounds), let more columns predict, or compare with other imputers (diagnostics.compare).",
    Verdict.WIDE: "What hangs on {columns} is safe, but its intervals are wider than they need be: columns "
    "that predict better, or more rows, would help.",
    Verdict.OFF: "Averages of {columns} may be biased: look at observed beside imputed cells, and say in a "
    "spec what is known (kind, bounds).",
    Verdict.FEW: "Of {columns} too little is known to judge: hide every cell once (folds=5), which is all "
    "that the table can tell.",
}
CAVEAT = (
    "Cells were hidden at random: this says nothing of cells that are missing because of their own value."
)
"""What no comparison with hidden cells can show."""


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """What an imputer said of hidden cells, beside what they are.

    Example:
        >>> import pandas as pd
        >>> from pyro_mgp.evaluation.diagnostics import calibrate
        >>> def draw_from_observed(frame, m, seed):
        ...     generator = np.random.default_rng(seed)
        ...     fill = lambda x: x.mask(x.isna(), generator.choice(x.dropna(), len(x)))
        ...     return [frame.apply(fill) for _ in range(m)]
        >>> x = np.random.default_rng(0).normal(size=(400, 2))
        >>> result = calibrate(draw_from_observed, pd.DataFrame(x, columns=["a", "b"]), folds=5)
        >>> result.verdict
        <Verdict.WELL: 'well calibrated'>
    """

    cells: pd.DataFrame
    """One row per hidden cell:

    - `row`: index label; `position`: of the row; `column`: label; `fold`; `kind`: "number" or "level";
      `truth`; `point`: mean of the draws of numbers (of times in seconds), most frequent level.
    - `pit`: where the truth stands among the draws (see `scores.pit`; of levels as `needed`); `needed`: level
      of the smallest central interval, or set of levels, that holds the truth, randomised among equal draws.
    - `closed_95` (and the like, for every level): whether the central 95 % interval, both ends included, or
      the smallest set of levels, holds the truth; `width_95`: its width in the column's own units, or number
      of levels. Missing where the draws are too few for the level.
    - `error`: point - truth, and `crps`: fair continuous ranked probability score, both in the column's own
      units (times in seconds); `brier`: fair Brier score of levels; `log_score`: natural log of the density
      per standard deviation (`scores.log_density`), or of the level's share, one more draw taken from the
      observed cells.
    - `scale`: standard deviation of the column's observed cells.
    """
    left_out: pd.DataFrame
    """What could not be hidden: `column`, `cells`, `why`."""
    levels: tuple[float, ...]
    """Nominal levels, ascending."""
    m: int
    """Draws per cell."""
    how: str
    """How cells were hidden, in words."""

    # ---------------------------------------------------------------------------------------- figures

    @cached_property
    def table(self) -> pd.DataFrame:
        """Figures per column.

        - `column`, `kind`, `cells` (hidden ones).
        - For each level, say 95 %: `coverage_95`: share of cells held, 95 % if calibrated; `se_95`: its Monte
          Carlo standard error (of all columns together clustered by rows of the table); `low_95`, `high_95`:
          Wilson's 95 % interval for it; `closed_95`, `width_95`: share held by, and mean width of, intervals
          as they are, whose ends draws may equal: these hold more than they say where values come again.
        - `pit_mean`: one half if calibrated; above where the truth is larger than the draws.
        - `rmse`, `bias` (mean of point - truth), `crps`: in the column's own units; `rmse_sd`, `crps_sd`: in
          standard deviations.
        - `log_score`: mean, higher is better. `accuracy`, `brier`: of levels.
        - `verdict`, and `why` in words.
        """
        rows = [self._figures(part) for part in self._parts]
        for row, (verdict, why, _) in zip(rows, self._judged, strict=True):
            row |= {"verdict": str(verdict), "why": why}
        return pd.DataFrame(rows)

    @cached_property
    def overall(self) -> pd.Series[Any]:
        """The same of all cells together; means over columns of what has a unit."""
        row = self._figures(self.cells) | {"column": None, "kind": None, "rmse": np.nan, "bias": np.nan}
        row |= {"crps": np.nan, "log_score": self.table["log_score"].mean()}
        row |= {name: self.table[name].mean() for name in ("rmse_sd", "crps_sd", "accuracy", "brier")}
        for level in self.levels:
            row[f"width_{_percent(level)}"] = np.nan
        return pd.Series(row | {"verdict": str(self.verdict), "why": self.words})

    @property
    def verdict(self) -> Verdict:
        """Of all cells together."""
        return self._of_all[0]

    @property
    def why(self) -> str:
        """The figures behind the verdict, in words."""
        return self._of_all[1]

    @property
    def worst(self) -> Label:
        """The column whose hidden cells speak most against its draws."""
        labels: list[Label] = self.table["column"].tolist()
        return labels[int(np.argmin([p for _, _, p in self._judged]))]

    @property
    def words(self) -> str:
        """The verdict in a few sentences: overall, the worst column, what to do."""
        verdict, why, _ = self._of_all
        sentences = [f"Overall {verdict}: {why}."]
        table = self.table.set_index("column")
        bad = [v for v in (Verdict.NARROW, Verdict.OFF, Verdict.WIDE) if (table["verdict"] == v).any()]
        worst = table.loc[self.worst]
        if len(table) > 1:
            is_bad = worst["verdict"] in bad
            lead = "Worst column" if is_bad else "No column stands out; furthest off is"
            sentences.append(
                f"{lead} {self.worst!r}{': ' + worst['verdict'] if is_bad else ''}, {worst['why']}."
            )
        few = [Verdict.FEW] if verdict is Verdict.FEW or (table["verdict"] == Verdict.FEW).all() else []
        for each in [*bad, *few]:
            labels = table.index[table["verdict"] == each].tolist() or table.index.tolist()
            sentences.append(_ADVICE[each].format(columns=_names(labels)))
        if len(self.left_out):
            parts = [f"{row.column!r} {row.why} ({row.cells})" for row in self.left_out.itertuples()]
            sentences.append(f"Not hidden: {'; '.join(parts)}.")
        return " ".join([*sentences, CAVEAT])

    def band(self, n: float, level: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Band that holds coverage at nominal levels 0, 0.01, ..., 1, if n independent cells are calibrated.

        Args:
            n: Number of cells; `effective_cells` for clustered ones.
            level: Probability of the band, at each nominal level alone.
        """
        nominal = np.linspace(0, 1, 101)
        tails = (1 - level) / 2
        return tuple(stats.binom.ppf(q, round(n), nominal) / round(n) for q in (tails, 1 - tails))

    @cached_property
    def effective_cells(self) -> float:
        """How many independent cells all hidden ones are worth: those of one row hang together."""
        worth = []
        for level in self.levels:
            held = self.cells["needed"].to_numpy() <= level
            binomial = math.sqrt(level * (1 - level) / len(held))
            clustered = _clustered_se(held, self.cells["position"].to_numpy())
            worth.append(min(1.0, (binomial / clustered) ** 2) if clustered > 0 else 1.0)
        return float(np.mean(worth)) * len(self.cells)

    # ------------------------------------------------------------------------------------------ faces

    def __repr__(self) -> str:
        lines = [self._title(), "", *self._shown().to_string(index=False, na_rep="").splitlines(), ""]
        return "\n".join([*lines, self.words])

    def _repr_html_(self) -> str:
        table = self._shown().to_html(index=False, na_rep="", border=0, escape=True)
        return f"<p>{html.escape(self._title())}</p>{table}<p>{html.escape(self.words)}</p>"

    def _title(self) -> str:
        n, columns = len(self.cells), len(self.table)
        plural = "" if columns == 1 else "s"
        return f"Calibration: {n} hidden cells of {columns} column{plural}, {self.m} draws each; {self.how}"

    def _shown(self) -> pd.DataFrame:
        """The figures that fit on a screen, as text."""
        rows = [*self.table.to_dict("records")]
        if len(rows) > 1:
            rows.append(self.overall.to_dict() | {"column": "all"})
        columns: dict[str, list[str]] = {"column": [str(row["column"]) for row in rows]}
        columns["cells"] = [str(row["cells"]) for row in rows]
        for level in self.levels:
            columns[f"in {_percent(level)} %"] = [
                f"{100 * row[f'coverage_{_percent(level)}']:.1f}" for row in rows
            ]
        for name, title in (("rmse_sd", "RMSE/sd"), ("crps_sd", "CRPS/sd"), ("accuracy", "accuracy")):
            if self.table[name].notna().any():
                columns[title] = ["" if math.isnan(row[name]) else f"{row[name]:.3g}" for row in rows]
        columns["log score"] = [f"{row['log_score']:.2f}" for row in rows]
        columns["verdict"] = [row["verdict"] for row in rows]
        return pd.DataFrame(columns)

    # ---------------------------------------------------------------------------------------- details

    @cached_property
    def _parts(self) -> list[pd.DataFrame]:
        """The cells of one column after the other."""
        codes = pd.factorize(self.cells["column"])[0]
        return [self.cells[codes == code] for code in range(codes.max() + 1)]

    @cached_property
    def _judged(self) -> list[tuple[Verdict, str, float]]:
        return _judge(self._parts, self.levels)

    @cached_property
    def _of_all(self) -> tuple[Verdict, str, float]:
        return _judge_all(self.cells, self.levels)

    def _figures(self, cells: pd.DataFrame) -> dict[str, Any]:
        first, n = cells.iloc[0], len(cells)
        figures: dict[str, Any] = {"column": first["column"], "kind": first["kind"], "cells": n}
        for level in self.levels:
            name, held = _percent(level), cells["needed"].to_numpy() <= level
            low, high = wilson(held.sum(), n)
            figures |= {
                f"coverage_{name}": held.mean(),
                f"se_{name}": _clustered_se(held, cells["position"].to_numpy()),
                f"low_{name}": low,
                f"high_{name}": high,
                f"closed_{name}": cells[f"closed_{name}"].mean(),
                f"width_{name}": cells[f"width_{name}"].mean(),
            }
        error, scale = cells["error"], cells["scale"]
        is_level = cells["kind"] == "level"
        right = [truth == point for truth, point in zip(cells["truth"], cells["point"], strict=True)]
        return figures | {
            "pit_mean": cells.loc[~is_level, "pit"].mean(),
            "rmse": math.sqrt((error**2).mean()),
            "rmse_sd": math.sqrt(((error / scale) ** 2).mean()),
            "bias": error.mean(),
            "crps": cells["crps"].mean(),
            "crps_sd": (cells["crps"] / scale).mean(),
            "log_score": cells["log_score"].mean(),
            "accuracy": np.mean(right) if is_level.all() else np.nan,
            "brier": cells["brier"].mean(),
        }


# ------------------------------------------------------------------------------------------------- verdicts


def wilson(held: int, n: int, level: float = 1 - _ALPHA) -> tuple[float, float]:
    """Wilson's interval for a probability, of `held` out of `n` (Wilson 1927).

    Example:
        >>> low, high = wilson(90, 100)
        >>> round(low, 3), round(high, 3)
        (0.826, 0.945)
    """
    z = float(stats.norm.ppf((1 + level) / 2))
    share = held / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def holm(p: Sequence[float]) -> NDArray[np.float64]:
    """P-values adjusted so that the probability of any false alarm is kept (Holm 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p)
    steps = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


@dataclass(frozen=True)
class _Finding:
    """One test of one column."""

    verdict: Verdict
    """If it fails."""
    p: float
    off: float
    """How far off, in standard deviations of one cell."""
    words: str


def _judge(columns: Sequence[pd.DataFrame], levels: Sequence[float]) -> list[tuple[Verdict, str, float]]:
    """Verdict, reason and smallest p-value of each column; false alarms are kept over all columns and tests.

    A column holds one cell per row of the table: its coverage is tested as binomial.
    """
    findings = [_findings(cells, levels) for cells in columns]
    adjusted = iter(holm([each.p for tests in findings for each in tests]))
    judged = []
    for cells, tests in zip(columns, findings, strict=True):
        wrong = [(next(adjusted), each) for each in tests]
        judged.append(_conclude(wrong, max(_reach(_held(cells, level), len(cells)) for level in levels)))
    return judged


def _judge_all(cells: pd.DataFrame, levels: Sequence[float]) -> tuple[Verdict, str, float]:
    """The same of all cells, by normal tests with standard errors that are clustered by rows."""
    rows, n = cells["position"].to_numpy(), len(cells)
    tests, reaches = [], []
    for level in levels:
        held = cells["needed"].to_numpy() <= level
        se = _clustered_se(held, rows) or math.sqrt(level * (1 - level) / n)
        off = float(held.mean()) - level
        words = (
            f"of {n} hidden cells {100 * held.mean():.1f} % lie in their {_percent(level)} % intervals "
            f"(Monte Carlo standard error {100 * se:.1f} points)"
        )
        p = 2 * float(stats.norm.sf(abs(off) / se))
        tests.append(_of_coverage(off, level, p, words))
        reaches.append(float(stats.norm.ppf(1 - _ALPHA / 2)) * se)
    adjusted = holm([each.p for each in tests])
    return _conclude(list(zip(adjusted, tests, strict=True)), max(reaches), of_note=len(tests) - 1)


def _findings(cells: pd.DataFrame, levels: Sequence[float]) -> list[_Finding]:
    n, tests = len(cells), []
    for level in levels:
        held = _held(cells, level)
        off = held / n - level
        low, high = wilson(held, n)
        kind = "sets" if cells["kind"].iloc[0] == "level" else "intervals"
        words = (
            f"{100 * held / n:.0f} % of {n} hidden cells lie in their {_percent(level)} % {kind} "
            f"(95 % interval {100 * low:.0f} to {100 * high:.0f} %)"
        )
        p = min(1.0, 2 * float(min(stats.binom.cdf(held, n, level), stats.binom.sf(held - 1, n, level))))
        tests.append(_of_coverage(off, level, p, words))
    if cells["kind"].iloc[0] == "number":
        off = float(cells["pit"].mean()) - 0.5  # of uniform numbers, with variance 1/12
        p = 2 * float(stats.norm.sf(abs(off) * math.sqrt(12 * n)))
        side = "larger" if off > 0 else "smaller"
        words = f"the truth is {side} than {50 + 100 * abs(off):.0f} % of its draws, on average"
        tests.append(_Finding(Verdict.OFF, p, off * math.sqrt(12), words))
    return tests


def _of_coverage(off: float, level: float, p: float, words: str) -> _Finding:
    verdict = Verdict.NARROW if off < 0 else Verdict.WIDE
    return _Finding(verdict, p, off / math.sqrt(level * (1 - level)), words)


def _conclude(
    tests: Sequence[tuple[float, _Finding]], reach: float, of_note: int | None = None
) -> tuple[Verdict, str, float]:
    """Verdict, reason and smallest p-value from tests with their adjusted p-values.

    Args:
        tests: Them.
        reach: How far off a coverage may be, at most, without being noticed.
        of_note: Which test to name if all are passed; None for the one that comes nearest to failing.
    """
    failed = [(p, each) for p, each in tests if p < _ALPHA and abs(each.off) > _TOLERANCE]
    smallest = min(each.p for _, each in tests)
    if failed:
        _, worst = min(failed, key=lambda pair: pair[1].p)
        return worst.verdict, worst.words, smallest
    nearest = min((each for _, each in tests), key=lambda each: each.p)
    named = nearest if of_note is None else tests[of_note][1]
    return Verdict.WELL if reach <= _VISIBLE else Verdict.FEW, named.words, smallest


def _reach(held: int, n: int) -> float:
    """Half the width of Wilson's interval."""
    low, high = wilson(held, n)
    return (high - low) / 2


def _held(cells: pd.DataFrame, level: float) -> int:
    return int((cells["needed"] <= level).sum())


def _clustered_se(held: NDArray[np.bool_], clusters: NDArray[Any]) -> float:
    """Standard error of a share whose cells hang together within clusters (Liang and Zeger 1986)."""
    sums = pd.Series(held - held.mean()).groupby(clusters).sum().to_numpy()
    g = len(sums)
    return float(math.sqrt((sums**2).sum() * g / (g - 1)) / len(held)) if g > 1 else math.nan


def _percent(level: float) -> str:
    return f"{100 * level:g}"


def _names(labels: Sequence[Label]) -> str:
    return repr(labels[0]) if len(labels) == 1 else listing(labels, 5)
