"""Figures of a report: RMSE by rate of missing cells, and average ranks with the critical difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import pandas as pd
import scikit_posthocs
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.paper.data import DATASETS
from benchmarks.paper.methods.registry import METHODS
from benchmarks.paper.ranking import ALPHA, PAPER, Ranking

DOTS_PER_INCH = 200
"""Resolution of the pictures."""
# Colours that are distinct with a colour vision deficiency (Okabe and Ito 2008); markers and dashes differ
# too.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#777777",
)  # fmt: skip
_STYLES: dict[str, tuple[str, str, str]] = {
    "mean": (GREY, "_", ":"),
    "median": (GREY, "|", ":"),
    "knn": (PURPLE, "v", "--"),
    "mice": (ORANGE, "s", "-"),
    "svgp": (SKY, "o", "--"),
    "gain": (PURPLE, "x", ":"),
    "mgp": (BLACK, "D", "-"),
    "extra_trees": (GREEN, "^", "-"),
    "miceforest": (RED, "P", "-"),
    "random_forests": (GREEN, ">", "--"),
    "dgp": (BLUE, "h", "--"),
    "mgp_paper": (BLACK, "d", ":"),
}
_COLOURS = {name: colour for name, (colour, _, _) in _STYLES.items()}
# Minimum vertical distance of two labels, as a share of the panel's height.
_LABEL_HEIGHT = 0.043


def write(summary: pd.DataFrame, ranking: Ranking, out: Path) -> dict[str, str]:
    """Draw a figure of the RMSE on each table, and one of the ranks if they were tested.

    Args:
        summary: Mean scores as `report.summarise` returns them.
        ranking: Ranks of the methods.
        out: Folder for the PNG files.

    Returns:
        Description of each figure in words, by file name.
    """
    written = {}
    for dataset in (name for name in DATASETS if name in set(summary["dataset"])):
        part = summary[(summary["dataset"] == dataset) & summary["rmse"].notna()]
        if not part.empty:
            written[f"rmse_{dataset}.png"] = rmse_by_rate(part, dataset, out / f"rmse_{dataset}.png")
    if ranking.is_tested:
        written["ranks.png"] = critical_difference(ranking, out / "ranks.png")
    return written


def rmse_by_rate(part: pd.DataFrame, dataset: str, path: Path) -> str:
    """Plot the RMSE of all methods on one table by the rate of missing cells; return a description."""
    figure = Figure(figsize=(6.5, 4.6), layout="constrained", dpi=DOTS_PER_INCH)
    axes = figure.subplots()
    ends = {}
    for method in (name for name in METHODS if name in set(part["method"])):
        line = part[part["method"] == method].sort_values("rate")
        colour, marker, dashes = _STYLES[method]
        axes.plot(
            line["rate"], line["rmse"], color=colour, marker=marker, linestyle=dashes, markersize=5,
            linewidth=2.4 if method == "mgp" else 1.2, zorder=3 if method == "mgp" else 2,
        )  # fmt: skip
        ends[method] = (float(line["rate"].iloc[-1]), float(line["rmse"].iloc[-1]))
    axes.set_xticks(sorted(part["rate"].unique()))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("missing cells in %")
    axes.set_ylabel("RMSE in standard deviations")
    axes.set_title(DATASETS[dataset].title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    label_ends(axes, ends, PAPER.titles, _COLOURS)
    figure.savefig(path)
    last = max(rate for rate, _ in ends.values())
    order = sorted((rmse, method) for method, (rate, rmse) in ends.items() if rate == last)
    named = ", ".join(f"{METHODS[method].title} {rmse:.2f}" for rmse, method in order)
    title = DATASETS[dataset].title
    return f"RMSE on {title} by the share of missing cells; at {last:.0f} %, best first: {named}"


def critical_difference(ranking: Ranking, path: Path, colours: Mapping[str, str] = _COLOURS) -> str:
    """Plot average ranks, bars joining methods without significant difference; return a description.

    Args:
        ranking: Ranks of the methods.
        path: PNG file to write.
        colours: Colours of the methods by name.
    """
    study = ranking.study
    names = {method: study.titles[method] for method in ranking.ranks}
    scores = ranking.scores.rename(columns=names).reset_index(drop=True)
    p_values = scikit_posthocs.posthoc_nemenyi_friedman(scores)
    figure = Figure(figsize=(6.5, 1.1 + 0.17 * len(names)), layout="constrained", dpi=DOTS_PER_INCH)
    axes = figure.subplots()
    with matplotlib.rc_context({"font.size": 9}):
        scikit_posthocs.critical_difference_diagram(
            {names[method]: rank for method, rank in ranking.ranks.items()},
            p_values,
            alpha=ALPHA,
            ax=axes,
            label_fmt_left="{label} ({rank:.1f})",
            label_fmt_right="({rank:.1f}) {label}",
            color_palette={title: colours[method] for method, title in names.items()},
        )
    axes.set_title(
        f"Average rank by {study.score_title}; critical difference {ranking.critical_difference:.1f}",
        loc="left",
        fontsize=9,
    )
    figure.savefig(path)
    named = ", ".join(f"{names[method]} {rank:.1f}" for method, rank in ranking.ranks.items())
    return (
        f"Average ranks by {study.score_title} over {ranking.blocks} blocks ({study.block_title}), best "
        f"first: {named}; bars join "
        "methods whose ranks differ by less than the critical difference of "
        f"{ranking.critical_difference:.1f}"
    )


def label_ends(
    axes: Axes,
    ends: Mapping[str, tuple[float, float]],
    titles: Mapping[str, str],
    colours: Mapping[str, str],
) -> None:
    """Label points or ends of lines at the right, with labels moved apart so that they do not overlap.

    Args:
        axes: Linear axes.
        ends: Positions by method.
        titles: Titles of the methods.
        colours: Colours of the methods.
    """
    low, high = axes.get_ylim()
    methods = sorted(ends, key=lambda method: ends[method][1])
    positions = spread([ends[method][1] for method in methods], _LABEL_HEIGHT * (high - low))
    right = max(rate for rate, _ in ends.values())
    span = right - min(axes.get_xticks()) or 1.0
    for method, position in zip(methods, positions, strict=True):
        colour = colours[method]
        axes.annotate(
            titles[method],
            ends[method],
            (right + 0.09 * span, position),
            color=colour,
            fontsize=8,
            fontweight="bold" if method == "mgp" else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread(wanted: Sequence[float], distance: float) -> list[float]:
    """Return positions at least `distance` apart and close to the wanted ones, which ascend.

    Adjacent positions that are too close form a group around the mean of their wanted positions; groups that
    are too close are joined.
    """
    groups: list[list[float]] = []
    for position in wanted:
        groups.append([position])
        while len(groups) > 1 and _span(groups[-2], distance)[1] + distance > _span(groups[-1], distance)[0]:
            last = groups.pop()
            groups[-1] += last
    return [_span(group, distance)[0] + k * distance for group in groups for k in range(len(group))]


def _span(group: Sequence[float], distance: float) -> tuple[float, float]:
    """Return the first and last position of a group."""
    middle, half = sum(group) / len(group), distance * (len(group) - 1) / 2
    return middle - half, middle + half
