"""Pictures of a report: ranks, RMSE beside that of the best other method, and time against accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from benchmarks.paper.plots import (
    BLACK,
    BLUE,
    DOTS_PER_INCH,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    critical_difference,
    label_ends,
)
from benchmarks.paper.ranking import Ranking
from benchmarks.tables import summary
from benchmarks.tables.methods.registry import METHODS
from benchmarks.tables.patterns import PATTERNS
from benchmarks.tables.results import DATASETS

_COLOURS = {
    "mean": GREY,
    "knn": PURPLE,
    "mice_ridge": ORANGE,
    "mgp": BLACK,
    "extra_trees": GREEN,
    "missforest": GREEN,
    "miceforest": RED,
    "mice_pmm": ORANGE,
    "mice_cart": SKY,
    "mice_rf": SKY,
    "mixgb": RED,
    "gcimpute": PURPLE,
    "hyperimpute": BLUE,
}
# Difference in per cent at which the colours of the heat map end.
_MOST = 30


def write(table: pd.DataFrame, rankings: list[Ranking], out: Path) -> dict[str, str]:
    """Draw the pictures for which there are results.

    Args:
        table: Results as `Layout.read` returns them.
        rankings: Ranks of the methods by several scores.
        out: Folder for the PNG files.

    Returns:
        Description of each picture in words, by file name.
    """
    written = {}
    for ranking in rankings:
        if ranking.is_tested:
            name = f"ranks_{ranking.study.score}.png"
            written[name] = critical_difference(ranking, out / name, _COLOURS)
    scores, ratios = summary.by_cell(table, "rmse"), summary.time_ratios(table)
    drawings: dict[str, tuple[bool, Callable[[Path], str]]] = {
        "relative.png": ("mgp" in scores and scores.shape[1] > 1, lambda path: relative(scores, path)),
        "time.png": (len(ratios) > 0, lambda path: time_against_accuracy(scores, ratios, path)),
    }
    for name, (possible, draw) in drawings.items():
        if possible:
            written[name] = draw(out / name)
    return written


def relative(scores: pd.DataFrame, path: Path) -> str:
    """Plot the RMSE of MGP relative to that of the best other method; return a description.

    Args:
        scores: RMSE, cells × methods, `mgp` among them.
        path: PNG file to write.
    """
    per_cent = 100 * summary.relative_to_rivals(scores).unstack("pattern")
    names = [name for name in DATASETS if name in per_cent.index]
    patterns = [name for name in PATTERNS if name in per_cent.columns]
    values = per_cent.loc[names, patterns].to_numpy()
    figure = Figure(figsize=(5.6, 1.2 + 0.24 * len(names)), layout="constrained", dpi=DOTS_PER_INCH)
    axes = figure.subplots()
    # Blue where MGP is better, red where it is worse.
    image = axes.imshow(values, cmap="RdBu_r", norm=TwoSlopeNorm(0, -_MOST, _MOST), aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if abs(value) > 0.7 * _MOST else BLACK
            axes.text(j, i, f"{value:+.0f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(len(patterns)), patterns)
    axes.set_yticks(range(len(names)), [DATASETS[name].title for name in names], fontsize=8)
    axes.spines[:].set_visible(False)
    axes.set_title("RMSE of MGP relative to the best other method, in %", loc="left", fontsize=9)
    figure.colorbar(image, extend="both", shrink=0.6)
    figure.savefig(path)
    better = int((values < 0).sum())
    return (
        "RMSE of MGP relative to the best other method, by table and pattern: it is lower in "
        f"{better} of {np.isfinite(values).sum()} cells"
    )


def time_against_accuracy(scores: pd.DataFrame, ratios: pd.DataFrame, path: Path) -> str:
    """Plot the methods' mean excess over the lowest RMSE by their time; return a description.

    Args:
        scores: RMSE, cells × methods.
        ratios: Times relative to those of extra trees, cells × methods.
        path: PNG file to write.
    """
    excess = 100 * summary.excess(scores).mean()
    times = np.log10(ratios).mean()
    methods = [name for name in METHODS if name in excess.index and np.isfinite(times.get(name, np.nan))]
    ends = {name: (float(times[name]), float(excess[name])) for name in methods}
    figure = Figure(figsize=(6.5, 4.6), layout="constrained", dpi=DOTS_PER_INCH)
    axes = figure.subplots()
    for name, (x, y) in ends.items():
        axes.plot(x, y, "D" if name == "mgp" else "o", color=_COLOURS[name])
    xs = [x for x, _ in ends.values()]
    ticks = range(int(np.floor(min(xs))), int(np.ceil(max(xs))) + 1)
    axes.set_xticks(ticks, [f"{10.0**tick:g}" for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time relative to extra trees, geometric mean")
    axes.set_ylabel("mean excess over the lowest RMSE in %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    label_ends(axes, ends, summary.BY_RMSE.titles, _COLOURS)
    figure.savefig(path)
    named = ", ".join(
        f"{METHODS[name].title} {y:.0f} % at {10**x:.2g} times" for name, (x, y) in ends.items()
    )
    return f"Mean excess over the lowest RMSE by time relative to extra trees: {named}"
