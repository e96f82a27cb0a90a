"""Pictures of time and memory against the size of tables.

python -m benchmarks.validity.plot benchmarks/validity/results.csv benchmarks/validity/time.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import command
from benchmarks.validity.results import LAYOUT, MIXED, NUMBERS

_DOTS_PER_INCH = 160
# Colours that are distinct with a colour vision deficiency (Okabe and Ito 2008); markers differ as well.
_STYLES = {
    "mgp": ("#0072B2", "o"),
    "miceforest": ("#009E73", "s"),
    "mice_cart": ("#D55E00", "^"),
    "mice_pmm": ("0.4", "D"),
    "mice_rf": ("#CC79A7", "v"),
}
_OTHER = ("black", "x")
_FEW_COLUMNS = 10


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the logarithms of values against those of sizes, between the last two sizes.

    Example:
        >>> slope([10, 100, 1000], [1.0, 2.0, 20.0])
        1.0
    """
    (first, last), (before, after) = sizes[-2:], values[-2:]
    return float(np.log(after / before) / np.log(last / first))


def draw(results: pd.DataFrame, path: Path) -> str:
    """Draw time and memory by rows and by columns, with a line per method, and return a description in words.

    Args:
        results: Table of `LAYOUT.read`.
        path: PNG file to write.
    """
    done = results[results["error"] == ""]
    numbers = done[done["kind"] == NUMBERS]
    panels = (
        ("n_rows", "mixed columns, rows", done[done["kind"] == MIXED]),
        ("n_rows", f"{_FEW_COLUMNS} numbers, rows", numbers[numbers["n_columns"] == _FEW_COLUMNS]),
        ("n_columns", "1,000 rows, columns", numbers[numbers["n_rows"] == 1000]),
    )
    figure = Figure(figsize=(4.2 * len(panels), 6.8), layout="constrained", dpi=_DOTS_PER_INCH)
    axes, words = figure.subplots(2, len(panels), squeeze=False), list[str]()
    for column, (size, title, part) in enumerate(panels):
        for ax, what, label in zip(axes[:, column], ("seconds", "gigabytes"), ("seconds", "GB"), strict=True):
            _panel(ax, part, size, what)
            ax.set(xlabel=title, ylabel=label)
        words.append(f"{title}: " + ", ".join(_described(part, size)))
    figure.suptitle("Twenty imputations on one core; slopes are those between the last two sizes")
    figure.savefig(path)
    return "; ".join(words)


def _panel(ax: Axes, part: pd.DataFrame, size: str, what: str) -> None:
    for method, own in part.dropna(subset=[what]).sort_values(size).groupby("method", sort=False):
        colour, marker = _STYLES.get(str(method), _OTHER)
        sizes, values = own[size].tolist(), own[what].clip(lower=0.01).tolist()
        label = f"{method}, slope {slope(sizes, values):.1f}" if len(own) > 1 else str(method)
        ax.plot(sizes, values, color=colour, marker=marker, markersize=4, label=label)
    ax.set(xscale="log", yscale="log")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=7)


def _described(part: pd.DataFrame, size: str) -> list[str]:
    last = part.sort_values(size).groupby("method", sort=False).tail(1)
    return [f"{row.method} {row.seconds:.0f} s at {getattr(row, size):,}" for row in last.itertuples()]


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the pictures; return the exit status."""
    parser = command.new_parser("validity.plot", __doc__)
    parser.add_argument("results", help="CSV file of python -m benchmarks.validity")
    parser.add_argument("picture", help="PNG file to write")

    def run(given: argparse.Namespace) -> None:
        command.say(draw(LAYOUT.read(given.results), Path(given.picture)))

    return command.execute(parser, argv, run)


if __name__ == "__main__":
    sys.exit(main())
