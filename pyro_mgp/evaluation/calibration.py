"""Calibration of an imputer on held-out cells: figures per column, tests, and a verdict in words.

For each held-out cell the smallest level is found whose interval (for levels of a category: set) contains its
true value. That level is uniform on (0, 1) if the true value is exchangeable with the draws. Coverage at a
nominal level is the share of cells that need no higher level.
"""

from __future__ import annotations

import enum
import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from pyro_mgp._support.messages import listing
from pyro_mgp.data.column_spec import Label

# Smallest deviation that matters, in standard deviations of one cell: 5 points in the coverage of 50 %
# intervals, 2 points in that of 95 %, 3 points in the mean of the PIT.
_TOLERANCE = 0.1
# Largest half-width of a confidence interval for coverage with which a column is called well calibrated.
_VISIBLE = 0.1
# Probability of any false alarm, and of a confidence interval for coverage to miss it.
_ALPHA = 0.05


class Verdict(enum.StrEnum):
    """Verdict of calibration tests, such as "well calibrated" or "too narrow"."""

    WELL = "well calibrated"
    """No deviation that matters, with enough cells to detect one of ten points."""
    NARROW = "too narrow"
    """Intervals contain the truth less often than their level: the draws are too certain."""
    WIDE = "too wide"
    """Intervals contain the truth more often than their level: the draws are too uncertain."""
    OFF = "off centre"
    """The truth is too often on one side of the draws."""
    FEW = "too few cells to tell"
    """No deviation found, with too few cells to detect one of ten points."""

    @property
    def is_bad(self) -> bool:
        """True if a deviation was found."""
        return self not in (Verdict.WELL, Verdict.FEW)


_ADVICE = {
    Verdict.NARROW: "Standard errors of estimates that use {columns} will be too small: set the kind and the "
    "bounds in a spec, let more columns predict, or compare with other imputers (diagnostics.compare).",
    Verdict.OFF: "Averages of {columns} may be biased: compare imputed with observed cells, and set the kind "
    "and the bounds in a spec.",
    Verdict.WIDE: "Estimates that use {columns} are valid, but their intervals are wider than necessary: "
    "more rows, or columns that predict better, would help.",
    Verdict.FEW: "{columns}: too few cells to judge. Hold out every cell once (folds=5) to use all cells.",
}
CAVEAT = (
    "Cells were held out at random: this says nothing about cells that are missing because of their value."
)
"""Limitation of all comparisons with held-out cells."""


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Draws of held-out cells compared with their true values, as returned by `diagnostics.calibrate`."""

    cells: pd.DataFrame
    """Held-out cells, one per row, with their draws' scores in the column's own units (times in seconds):

    - `row`: index label; `position`: of the row; `column`: label; `fold`; `kind`: "number" or "level";
      `truth`; `point`: mean of the draws, or most frequent level; `error`: point - truth.
    - `pit`: rank of the truth among the draws (`scores.pit`; of levels as `needed`); `needed`: level of the
      smallest central interval, or set of levels, that contains the truth, randomised among equal draws.
    - `closed_95`, ...: whether the closed central 95 % interval, or smallest set of levels, contains the
      truth; `width_95`, ...: its width, or number of levels. Missing if the draws are too few for the level.
    - `crps`, `brier`: fair scores; `log_score`: log density per standard deviation (`scores.log_density`), or
      log share of the level with one more draw; `scale`: standard deviation of the column's observed cells.
    """
    left_out: pd.DataFrame
    """Cells that could not be held out: `column`, `cells` (how many), `why`."""
    levels: tuple[float, ...]
    """Nominal levels, ascending."""
    m: int
    """Draws per cell."""
    how: str
    """Design of the holdout, in words."""
    energy: pd.DataFrame | None = None
    """Energy-I-scores by column, and of all columns in the row whose `column` is None; None if they were not
    asked for. See `energy_score.energy_scores`."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """Coverage, scores and verdict of each column.

        - `column`, `kind`, `cells` (number of held-out cells); `verdict`, and `why`, the figures behind it.
        - For each level, say 95 %: `coverage_95`: share of cells in their intervals, 95 % if calibrated;
          `se_95`: its Monte Carlo standard error (of all columns together clustered by rows of the table);
          `low_95`, `high_95`: Wilson's 95 % interval for it; `closed_95`, `width_95`: coverage and mean width
          of closed intervals, which have more than nominal coverage where values are tied.
        - `pit_mean`: one half if calibrated; larger if the truth is larger than the draws.
        - `rmse`, `bias`, `crps`: in the column's own units; `rmse_sd`, `crps_sd`: in standard deviations;
          `log_score`: mean, higher is better; `accuracy`, `brier`: of levels.
        """
        judged = zip(self._rows, self._judged, strict=True)
        return pd.DataFrame([row | {"verdict": str(each.verdict), "why": each.words} for row, each in judged])

    @cached_property
    def overall(self) -> pd.Series[Any]:
        """Row of `table` for all cells together; scores in standard deviations are means over columns."""
        mixed = ["rmse", "bias", "crps", *(f"width_{name}" for name in self._levels)]
        averaged = ("rmse_sd", "crps_sd", "log_score", "accuracy", "brier")
        row = self._all | dict.fromkeys(mixed, np.nan) | {name: self.table[name].mean() for name in averaged}
        names = {"column": None, "kind": None, "verdict": str(self.verdict), "why": self.why}
        return pd.Series(row | names)

    @property
    def verdict(self) -> Verdict:
        """Overall verdict on the calibration of all held-out cells together."""
        return self._overall.verdict

    @property
    def why(self) -> str:
        """Explanation of the overall verdict in words, with its figures."""
        return self._overall.words

    @property
    def miscalibrated(self) -> pd.DataFrame:
        """Rows of `table` for the columns in which a deviation was found."""
        return self.table[[each.verdict.is_bad for each in self._judged]]

    @property
    def worst(self) -> Label:
        """Label of the column with the smallest p-value."""
        labels: list[Label] = self.table["column"].tolist()
        return labels[int(np.argmin([each.p for each in self._judged]))]

    @property
    def words(self) -> str:
        """Summary of the calibration in a few sentences: overall verdict, worst column, and advice."""
        sentences = [f"Overall {self.verdict}: {self.why}."]
        table = self.table.set_index("column")
        found = set(table["verdict"])
        advised = [each for each in _ADVICE if each.is_bad and each in found]
        if len(table) > 1:
            worst = table.loc[self.worst]
            lead = f"No column stands out; furthest off is {self.worst!r}"
            if worst["verdict"] in advised:
                lead = f"Worst column {self.worst!r}: {worst['verdict']}"
            sentences.append(f"{lead}, {worst['why']}.")
        if self.verdict is Verdict.FEW or found == {Verdict.FEW}:
            advised.append(Verdict.FEW)
        for each in advised:
            labels = table.index[table["verdict"] == each].tolist() or table.index.tolist()
            names = repr(labels[0]) if len(labels) == 1 else listing(labels, 5)
            sentences.append(_ADVICE[each].format(columns=names))
        if len(self.left_out):
            parts = [f"{row.column!r} {row.why} ({row.cells})" for row in self.left_out.itertuples()]
            sentences.append(f"Not held out: {'; '.join(parts)}.")
        return " ".join([*sentences, CAVEAT])

    @cached_property
    def effective_cells(self) -> float:
        """Effective number of independent cells: the cells of a row are correlated."""
        n, ratios = len(self.cells), []
        for name, level in self._levels.items():
            binomial, clustered = math.sqrt(level * (1 - level) / n), self._all[f"se_{name}"]
            ratios.append(min(1.0, (binomial / clustered) ** 2) if clustered > 0 else 1.0)
        return float(np.mean(ratios)) * n

    def __repr__(self) -> str:
        return f"{self._title()}\n\n{self.shown().to_string(index=False)}\n\n{self.words}"

    def _repr_html_(self) -> str:
        table = self.shown().to_html(index=False, border=0)
        return f"<p>{html.escape(self._title())}</p>{table}<p>{html.escape(self.words)}</p>"

    def _title(self) -> str:
        columns = "1 column" if len(self.table) == 1 else f"{len(self.table)} columns"
        return f"Calibration: {len(self.cells)} held-out cells of {columns}, {self.m} draws each; {self.how}"

    def shown(self) -> pd.DataFrame:
        """Return the main figures as a table of text, with a row per column and one for all."""
        rows = self.table.to_dict("records")
        if len(rows) > 1:
            rows.append(self.overall.to_dict() | {"column": "all"})
        columns = {name: [str(row[name]) for row in rows] for name in ("column", "cells")}
        for name in self._levels:
            columns[f"in {name} %"] = [f"{100 * row[f'coverage_{name}']:.1f}" for row in rows]
        for name, title in (("rmse_sd", "RMSE/sd"), ("crps_sd", "CRPS/sd"), ("accuracy", "accuracy")):
            if self.table[name].notna().any():
                columns[title] = ["" if math.isnan(row[name]) else f"{row[name]:.3g}" for row in rows]
        if self.energy is not None:
            scored = dict(zip(self.energy["column"], self.energy["score_sd"], strict=True))
            found = [scored.get(None if row["column"] == "all" else row["column"], np.nan) for row in rows]
            columns["energy/sd"] = ["" if math.isnan(score) else f"{score:.3g}" for score in found]
        columns["log score"] = [f"{row['log_score']:.2f}" for row in rows]
        columns["verdict"] = [row["verdict"] for row in rows]
        return pd.DataFrame(columns)

    @property
    def _levels(self) -> dict[str, float]:
        """Nominal levels by their names in `table`, per cent."""
        return {f"{100 * level:g}": level for level in self.levels}

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """Figures of each column."""
        return [self._figures(cells) for _, cells in self.cells.groupby("column", sort=False)]

    @cached_property
    def _all(self) -> dict[str, Any]:
        """Figures of all cells together."""
        return self._figures(self.cells)

    @cached_property
    def _judged(self) -> list[_Test]:
        """Verdict on each column; tests of all columns are adjusted by Holm's method."""
        tested = [self._test_column(row) for row in self._rows]
        adjusted = iter(holm([test.p for tests in tested for test in tests]))
        judged = []
        for row, tests in zip(self._rows, tested, strict=True):
            half_width = max(row[f"high_{name}"] - row[f"low_{name}"] for name in self._levels) / 2
            passed = min(tests, key=lambda test: test.p)
            judged.append(_conclude([next(adjusted) for _ in tests], tests, half_width, passed))
        return judged

    @cached_property
    def _overall(self) -> _Test:
        """Verdict on all cells; standard errors are clustered by rows."""
        n, tests, errors = len(self.cells), [], []
        for name, level in self._levels.items():
            share = self._all[f"coverage_{name}"]
            errors.append(self._all[f"se_{name}"] or math.sqrt(level * (1 - level) / n))
            words = (
                f"of {n} held-out cells {100 * share:.1f} % lie in their {name} % intervals "
                f"(Monte Carlo standard error {100 * errors[-1]:.1f} points)"
            )
            p = 2 * float(stats.norm.sf(abs(share - level) / errors[-1]))
            tests.append(_coverage_test(share - level, level, p, words))
        half_width = float(stats.norm.ppf(1 - _ALPHA / 2)) * max(errors)
        return _conclude(holm([test.p for test in tests]), tests, half_width, otherwise=tests[-1])

    def _figures(self, cells: pd.DataFrame) -> dict[str, Any]:
        first, n = cells.iloc[0], len(cells)
        figures: dict[str, Any] = {"column": first["column"], "kind": first["kind"], "cells": n}
        for name, level in self._levels.items():
            held = cells["needed"].to_numpy() <= level
            low, high = stats.binomtest(int(held.sum()), n).proportion_ci(1 - _ALPHA, "wilson")
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

    def _test_column(self, row: dict[str, Any]) -> list[_Test]:
        """Test the coverage of a column at each level and, for numbers, the mean of the PIT values.

        Coverage is binomial, because a column has one cell per row.
        """
        n, is_number, tests = row["cells"], row["kind"] == "number", []
        regions = "intervals" if is_number else "sets"
        for name, level in self._levels.items():
            share, low, high = (row[f"{figure}_{name}"] for figure in ("coverage", "low", "high"))
            words = (
                f"{100 * share:.0f} % of {n} held-out cells lie in their {name} % {regions} "
                f"(95 % interval {100 * low:.0f} to {100 * high:.0f} %)"
            )
            held = round(share * n)
            p = min(1.0, 2 * float(min(stats.binom.cdf(held, n, level), stats.binom.sf(held - 1, n, level))))
            tests.append(_coverage_test(share - level, level, p, words))
        if is_number:
            off = row["pit_mean"] - 0.5  # of uniform numbers, with variance 1/12
            p = 2 * float(stats.norm.sf(abs(off) * math.sqrt(12 * n)))
            side = "larger" if off > 0 else "smaller"
            words = f"the truth is {side} than {50 + 100 * abs(off):.0f} % of its draws, on average"
            tests.append(_Test(Verdict.OFF, p, off * math.sqrt(12), words))
        return tests


@dataclass(frozen=True)
class _Test:
    """Result of one test, or of several: verdict (if it fails), p-value, standardised deviation, reason."""

    verdict: Verdict
    p: float
    off: float
    words: str


def _coverage_test(off: float, level: float, p: float, words: str) -> _Test:
    verdict = Verdict.NARROW if off < 0 else Verdict.WIDE
    return _Test(verdict, p, off / math.sqrt(level * (1 - level)), words)


def _conclude(
    adjusted: Iterable[float], tests: Sequence[_Test], half_width: float, otherwise: _Test
) -> _Test:
    """Return the failed test of smallest p-value, or else one as WELL or FEW, with the smallest p-value."""
    failed = [t for p, t in zip(adjusted, tests, strict=True) if p < _ALPHA and abs(t.off) > _TOLERANCE]
    named = replace(otherwise, verdict=Verdict.WELL if half_width <= _VISIBLE else Verdict.FEW)
    if failed:
        named = min(failed, key=lambda test: test.p)
    return replace(named, p=min(test.p for test in tests))


def holm(p: Sequence[float]) -> NDArray[np.float64]:
    """Return p-values adjusted to control the familywise error rate (Holm 1979)."""
    order = np.argsort(p)
    steps = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def _clustered_se(held: NDArray[np.bool_], clusters: NDArray[Any]) -> float:
    """Return the cluster-robust standard error of a share of cells (Liang and Zeger 1986)."""
    sums = pd.Series(held - held.mean()).groupby(clusters).sum().to_numpy()
    g = len(sums)
    return float(math.sqrt((sums**2).sum() * g / (g - 1)) / len(held)) if g > 1 else math.nan
