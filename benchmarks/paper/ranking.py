"""Average ranks of the methods, and which of their differences may be chance (Demšar, JMLR 7:1-30, 2006).

Friedman's test asks whether all methods rank alike; Nemenyi's, which pairs do not. Both want independent
blocks. Splits of a table are not, so a block is a table at a rate, and its score the mean over splits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
from scipy import stats

from benchmarks.paper.methods.registry import SYSTEMS

ALPHA = 0.05
"""Level of the tests."""


@dataclass(frozen=True)
class Ranking:
    """Methods by their RMSE."""

    ranks: dict[str, float]
    """Average rank of each method, 1 being best, ascending; those with results in every block."""
    blocks: int
    """Tables times rates."""
    p_value: float
    """Of Friedman's test; NaN with fewer than three methods or two blocks."""
    left_out: tuple[str, ...]
    """Methods without results in some blocks."""
    scores: pd.DataFrame
    """RMSE, blocks × ranked methods."""

    @property
    def critical_difference(self) -> float:
        """Smallest difference of average ranks that is not chance, by Nemenyi's test at `ALPHA`.

        q √(k (k + 1) / 6N), q the quantile of the studentised range of k methods over √2, N blocks.
        """
        k = len(self.ranks)
        q = float(stats.studentized_range.ppf(1 - ALPHA, k, math.inf)) / math.sqrt(2)
        return q * math.sqrt(k * (k + 1) / (6 * self.blocks))

    @property
    def is_tested(self) -> bool:
        """Whether there is enough to test."""
        return not math.isnan(self.p_value)

    def describe(self) -> str:
        """The ranks and tests in words."""
        named = [f"{SYSTEMS[method].title} {rank:.2f}" for method, rank in self.ranks.items()]
        text = f"Average ranks by RMSE over {self.blocks} blocks (tables × rates): {', '.join(named)}."
        if self.is_tested:
            text += (
                f" Friedman's test: p = {self.p_value:.2g}. Critical difference of Nemenyi's test at "
                f"{ALPHA:.0%}: {self.critical_difference:.2f}."
            )
        if self.left_out:
            titles = ", ".join(SYSTEMS[method].title for method in self.left_out)
            text += f" Without a rank, for want of results in some blocks: {titles}."
        return text


def rank(table: pd.DataFrame) -> Ranking:
    """Rank the methods of some results.

    A block's splits are those in which every ranked method has a result.

    Args:
        table: Results, see `results.read`.
    """
    wide = table.pivot_table("rmse", ["dataset", "rate", "split"], "method", dropna=False)
    blocks = table[["dataset", "rate"]].drop_duplicates()
    there = (
        wide.notna().groupby(["dataset", "rate"]).any().loc[list(blocks.itertuples(index=False, name=None))]
    )
    ranked = list(there.columns[there.all()])
    scores = wide[ranked].dropna().groupby(["dataset", "rate"]).mean()
    left_out = tuple(method for method in SYSTEMS if method in set(table["method"]) - set(ranked))
    average = scores.rank(axis=1).mean().sort_values()
    ranks = {str(method): float(rank) for method, rank in average.items()}
    p_value = math.nan
    if len(ranked) >= 3 and len(scores) >= 2:
        p_value = float(stats.friedmanchisquare(*(scores[method] for method in ranked)).pvalue)
    return Ranking(ranks, len(scores), p_value, left_out, scores)
