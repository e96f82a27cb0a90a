"""The picture of `coverage`: how often intervals hold the truth, and how wide they are for that."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.coverage import DESIGNS, METHODS
from pyro_mgp.plots._style import BLUE, REFERENCE, VERMILION, name_ticks, panels, tidy

_DOTS_PER_INCH = 200
_NOMINAL = 95
# Standard errors to each side of a dot.
_ERRORS = 2


def draw(summary: pd.DataFrame, path: Path) -> str:
    """Draw a panel per design with a dot per method, twice its Monte Carlo error to each side.

    Args:
        summary: See `coverage.summary`.
        path: PNG file to write.

    Returns:
        A text that says the same.
    """
    designs = [name for name in DESIGNS if name in set(summary["design"])]
    most = int(summary.groupby("design").size().max())
    figure = Figure(layout="constrained", dpi=_DOTS_PER_INCH)
    across = min(2, len(designs))
    figure.set_size_inches(4.6 * across, (0.9 + 0.24 * most) * -(-len(designs) // across))
    said = []
    for ax, name in zip(panels(figure, len(designs), across=across, width=0, height=0), designs, strict=True):
        part = summary[summary["design"] == name].set_index("method")
        part = part.loc[[method for method in METHODS if method in part.index]]
        _panel(ax, part, name)
        held = ", ".join(f"{method} {100 * each:.0f} %" for method, each in part["coverage"].items())
        said.append(f"{name}: {held}")
    figure.savefig(path)
    return f"Share of 95 % intervals that hold the truth. {'; '.join(said)}"


def _panel(ax: Axes, part: pd.DataFrame, name: str) -> None:
    positions = [float(i) for i in range(len(part))][::-1]
    ax.axvline(_NOMINAL, color=REFERENCE, linewidth=1)
    for y, (method, row) in zip(positions, part.iterrows(), strict=True):
        ours = str(method).startswith("mgp")
        ax.errorbar(
            100 * row["coverage"], y, xerr=100 * _ERRORS * row["coverage_se"],
            color=BLUE if ours else VERMILION, marker="D" if ours else "o", markersize=5, capsize=2,
        )  # fmt: skip
        ax.text(104, y, f"{row['width']:.2f}", va="center", fontsize="small")
    ax.text(104, len(part) - 0.35, "width", va="center", fontsize="small", color=REFERENCE)
    name_ticks(ax, "y", positions, list(part.index))
    ax.set(xlim=(-2, 102), ylim=(-0.6, len(part) - 0.4), xlabel="95 % intervals that hold the truth, in %")
    ax.set_title(
        f"{name} ({' to '.join(map(str, sorted({*part['n'].agg(['min', 'max'])})))} tables)", loc="left"
    )
    tidy(ax)
