"""Draw the picture of README and front page: `python docs/pictures.py` from the root of the repository."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "coverage" / "results.csv"
DESIGN, ESTIMAND = "slade", "x1:x2"
METHODS = {
    "complete_cases": "complete rows only",
    "mgp": "pyro_mgp",
    "mice_cart": "mice, trees",
    "iterative": "IterativeImputer",
}
"""Titles of the panels by method."""
N_TABLES = 100
REACH = 1.2
"""Half the width of the panels, beyond which intervals of complete rows are cut off."""
# Background of the dark pages.
_PAGE = "#131416"
# Okabe and Ito's blue and vermilion, lighter on dark backgrounds.
_COLOURS = {"default": ("#0072B2", "#D55E00"), "dark_background": ("#56B4E9", "#E69F00")}


def main() -> None:
    """Draw `intervals.png` and `intervals-dark.png`."""
    results = pd.read_csv(RESULTS)
    results = results[(results["design"] == DESIGN) & (results["estimand"] == ESTIMAND)]
    results = results[results["repetition"] < N_TABLES]
    for style, name in (("default", "intervals.png"), ("dark_background", "intervals-dark.png")):
        page = {"figure.facecolor": _PAGE, "axes.facecolor": _PAGE, "savefig.facecolor": _PAGE}
        with plt.style.context([style, page] if style != "default" else style):
            figure, axes = plt.subplots(1, len(METHODS), figsize=(11, 4.2), sharex=True, sharey=True)
            for ax, (method, title) in zip(axes, METHODS.items(), strict=True):
                _panel(ax, results[results["method"] == method], title, *_COLOURS[style])
            truth = results["truth"].iloc[0]
            axes[0].set_xlim(truth - REACH, truth + REACH)
            axes[0].set_ylabel("simulated table, by estimate")
            figure.supxlabel("pooled slope of x1·x2, with its 95 % interval", fontsize=10)
            figure.tight_layout()
            figure.savefig(HERE / name, dpi=110)
            plt.close(figure)


def _panel(ax: Axes, rows: pd.DataFrame, title: str, holds: str, misses: str) -> None:
    """Draw the intervals of a method, sorted, and the true value."""
    rows = rows.sort_values("estimate").reset_index(drop=True)
    for covered, colour in ((1.0, holds), (0.0, misses)):
        part = rows[rows["covered"] == covered]
        reach = part["width"] / 2
        ax.hlines(part.index, part["estimate"] - reach, part["estimate"] + reach, color=colour, lw=1.2)
        ax.plot(part["estimate"], part.index, "." if covered else "x", color=colour, ms=3)
    ax.axvline(rows["truth"].iloc[0], color=plt.rcParams["text.color"], lw=1)
    ax.set_title(f"{title}\n{rows['covered'].sum():.0f} of {len(rows)} contain the true value", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_yticks([])


if __name__ == "__main__":
    main()
