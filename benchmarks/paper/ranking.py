"""Average ranks of the methods, with Friedman's and Nemenyi's tests (Demšar, JMLR 7:1-30, 2006).

Friedman's test is for equal ranks of all methods; Nemenyi's compares pairs. Both require independent blocks.
Splits of a table are dependent, and therefore a block is a table at a rate, with the mean score over splits;
in other benchmarks, a table with a pattern of missing cells, with the mean over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from scipy import stats

from benchmarks.paper.methods.registry import METHODS

ALPHA = 0.05
"""Significance level of the tests."""


@dataclass(frozen=True)
class Study:
    """Score by which methods are ranked, and the blocks in which they are."""

    titles: Mapping[str, str]
    """Titles of all methods by name."""
    score: str = "rmse"
    """Column of the results, of which small values are good."""
    score_title: str = "RMSE"
    """Name of the score in sentences."""
    block: tuple[str, str] = ("dataset", "rate")
    """Columns that identify a block."""
    block_title: str = "tables × rates"
    """Name of the blocks in sentences."""
    repeat: str = "split"
    """Column that numbers the repetitions in a block, over which the score is averaged."""


PAPER = Study({name: method.title for name, method in METHODS.items()})
"""The paper's experiments, ranked by RMSE."""


@dataclass(frozen=True)
class Ranking:
    """Average ranks of the methods by a score, and Friedman's test of equal ranks."""

    ranks: dict[str, float]
    """Average ranks, best first, of the methods with results in every block; the best possible rank is 1."""
    blocks: int
    """Number of blocks."""
    p_value: float
    """P-value of Friedman's test; NaN with fewer than three methods or two blocks."""
    left_out: tuple[str, ...]
    """Methods without results in some blocks."""
    scores: pd.DataFrame
    """Table of the score, blocks × ranked methods."""
    study: Study
    """What is ranked."""

    @property
    def critical_difference(self) -> float:
        """Smallest significant difference of two average ranks, by Nemenyi's test at level `ALPHA`.

        q √(k (k + 1) / 6N), q the quantile of the studentised range of k methods over √2, N blocks.
        """
        k = len(self.ranks)
        q = float(stats.studentized_range.ppf(1 - ALPHA, k, math.inf)) / math.sqrt(2)
        return q * math.sqrt(k * (k + 1) / (6 * self.blocks))

    @property
    def is_tested(self) -> bool:
        """True if there are enough methods and blocks for the tests."""
        return not math.isnan(self.p_value)

    def describe(self) -> str:
        """Return the ranks and tests in words."""
        study = self.study
        named = ", ".join(f"{study.titles[method]} {rank:.2f}" for method, rank in self.ranks.items())
        text = (
            f"Average ranks by {study.score_title} over {self.blocks} blocks ({study.block_title}): {named}."
        )
        if self.is_tested:
            text += (
                f" Friedman's test: p = {self.p_value:.2g}. Critical difference of Nemenyi's test at "
                f"{ALPHA:.0%}: {self.critical_difference:.2f}."
            )
        if self.left_out:
            titles = ", ".join(study.titles[method] for method in self.left_out)
            text += f" Not ranked because results are missing in some blocks: {titles}."
        return text


def rank(table: pd.DataFrame, study: Study = PAPER) -> Ranking:
    """Rank the methods, by a score averaged over the repetitions in which every ranked method has a result.

    Args:
        table: Results as `Layout.read` returns them.
        study: What is ranked.
    """
    block = list(study.block)
    wide = table.pivot_table(study.score, [*block, study.repeat], "method", dropna=False)
    blocks = table[block].drop_duplicates()
    has_results = wide.notna().groupby(block).any()
    has_results = has_results.loc[list(blocks.itertuples(index=False, name=None))]
    ranked = list(has_results.columns[has_results.all()])
    scores = wide[ranked].dropna().groupby(block).mean()
    left_out = tuple(method for method in study.titles if method in set(table["method"]) - set(ranked))
    average = scores.rank(axis=1).mean().sort_values()
    ranks = {str(method): float(rank) for method, rank in average.items()}
    p_value = math.nan
    if len(ranked) >= 3 and len(scores) >= 2:
        p_value = float(stats.friedmanchisquare(*(scores[method] for method in ranked)).pvalue)
    return Ranking(ranks, len(scores), p_value, left_out, scores, study)
