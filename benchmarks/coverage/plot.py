"""Plot of a coverage study: share of intervals that cover the true value, and mean width, by method."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.coverage.designs import DESIGNS
from benchmarks.coverage.methods import EXACT, METHODS
from benchmarks.coverage.summary import ALL

_DOTS_PER_INCH = 200
# Colours that are distinct with a colour vision deficiency (Okabe and Ito 2008); markers differ as well.
_BLUE, _VERMILION, _GREY = "#0072B2", "#D55E00", "0.4"
_NOMINAL = 95
# Standard errors to each side of a dot.
_ERRORS = 2


def draw(summary: pd.DataFrame, path: Path) -> str:
    """Draw a panel per design with a dot per method and error bars of two Monte Carlo standard errors.

    Args:
        summary: Table of `summary.per_design`; where there are several kinds of estimands, the average over
            all is plotted.
        path: PNG file to write.

    Returns:
        Description of the figure in words.
    """
    summary = _one_kind(summary)
    designs = [name for name in DESIGNS if name in set(summary["design"])]
    most = int(summary.groupby("design").size().max())
    across = min(2, len(designs))
    down = -(-len(designs) // across)
    size = 4.6 * across, (0.9 + 0.24 * most) * down
    figure = Figure(figsize=size, layout="constrained", dpi=_DOTS_PER_INCH)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for ax in axes[len(designs) :]:
        ax.remove()
    descriptions = []
    for ax, name in zip(axes, designs, strict=False):
        part = summary[summary["design"] == name].set_index("method")
        known = [method for method in (EXACT, *METHODS) if method in part.index]
        part = part.loc[[*known, *(method for method in part.index if method not in known)]]
        _panel(ax, part, name)
        covered = ", ".join(f"{method} {100 * each:.0f} %" for method, each in part["coverage"].items())
        descriptions.append(f"{name}: {covered}")
    figure.savefig(path)
    return f"Coverage of 95 % intervals. {'; '.join(descriptions)}"


def _one_kind(summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per design and method: the average over all kinds, or the only kind."""
    several = summary.groupby(["design", "method"])["kind"].transform("nunique") > 1
    return summary[~several | (summary["kind"] == ALL)]


def _panel(ax: Axes, part: pd.DataFrame, name: str) -> None:
    positions = [float(i) for i in range(len(part))][::-1]
    ax.axvline(_NOMINAL, color=_GREY, linewidth=1)
    for y, (method, row) in zip(positions, part.iterrows(), strict=True):
        ours = str(method).startswith("mgp")
        ax.errorbar(
            100 * row["coverage"], y, xerr=100 * _ERRORS * row["coverage_se"],
            color=_BLUE if ours else _VERMILION, marker="D" if ours else "o", markersize=5, capsize=2,
        )  # fmt: skip
        ax.text(104, y, f"{row['width']:.2f}", va="center", fontsize="small")
    ax.text(104, len(part) - 0.35, "width", va="center", fontsize="small", color=_GREY)
    ax.set_yticks(positions, list(part.index))
    ax.set(xlim=(-2, 102), ylim=(-0.6, len(part) - 0.4), xlabel="coverage of 95 % intervals in %")
    numbers = " to ".join(map(str, sorted({*part["tables"].agg(["min", "max"])})))
    ax.set_title(f"{name} ({numbers} tables)", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
