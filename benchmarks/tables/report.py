"""Report the results of `python -m benchmarks.tables`.

The report has the shares of cells, tables × patterns, in which each method has the lowest RMSE or CRPS, ranks
with Friedman's and Nemenyi's tests, coverage, time relative to chained extra trees, a table of each pattern,
and pictures.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import command
from benchmarks.paper.ranking import Ranking, rank
from benchmarks.runs import markdown
from benchmarks.tables import summary
from benchmarks.tables.methods.registry import METHODS
from benchmarks.tables.patterns import PATTERNS
from benchmarks.tables.results import DATASETS, LAYOUT

_SCORES = {"rmse": "RMSE", "crps": "Fair CRPS"}
_COVERAGES = ("coverage_90", "coverage_95")


def write(path: str | os.PathLike[str], out: Path) -> list[Path]:
    """Write `report.md`, `summary.csv` and pictures into a folder.

    Args:
        path: CSV file of results for one number of rows.
        out: Folder to write into; it is created if necessary, and files of the same names are replaced.

    Returns:
        Paths of the written files.

    Raises:
        ValueError: If the file holds no successful run, or results for several numbers of rows.
        OSError: If the file cannot be read or the folder cannot be written.
    """
    from benchmarks.tables import plots

    table = LAYOUT.read(path)
    sizes = sorted(table["rows"].unique().tolist())
    if len(sizes) > 1:
        raise ValueError(
            f"expected results for one number of rows in {str(path)!r}, got {sizes}: split the file"
        )
    if table["rmse"].isna().all():
        raise ValueError(f"no run in {str(path)!r} has succeeded")
    rankings = [rank(table, study) for study in (summary.BY_RMSE, summary.BY_ENERGY)]
    out.mkdir(parents=True, exist_ok=True)
    pictures = plots.write(table, rankings, out)
    summarise(table).to_csv(out / "summary.csv", index=False, float_format="%.6g")
    text = "\n\n".join(_sections(table, rankings, pictures))
    (out / "report.md").write_text(text + "\n", "utf-8")
    return [out / "report.md", out / "summary.csv", *(out / name for name in pictures)]


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Return the means of all numbers over seeds, one row per `dataset`, `pattern` and `method`, and `seeds`.

    Args:
        table: Results as `Layout.read` returns them.
    """
    groups = table[table["error"] == ""].groupby([*summary.CELL, "method"], sort=False)
    means = groups.mean(numeric_only=True).drop(columns=["rows", "seed"])
    return means.assign(seeds=groups.size()).reset_index()


def _sections(table: pd.DataFrame, rankings: list[Ranking], pictures: Mapping[str, str]) -> Iterator[str]:
    """Yield the paragraphs of `report.md`."""
    rows = int(table["rows"].iloc[0])
    yield f"# Imputation of public tables, {f'at most {rows:,} rows' if rows else 'all rows'}"
    yield (
        "A cell is a table with a pattern of missing cells. The score of a method in a cell is the mean over "
        "the seeds for which all methods with a score in the cell have one, in standard deviations of the "
        "complete columns; the best is bold."
    )
    yield "## Methods over all cells"
    yield over_cells(table, rankings)
    yield from _about_mgp(table)
    for ranking in rankings:
        yield ranking.describe()
    for name, alternative in pictures.items():
        yield f"![{alternative}]({name})"
    for score, title in _SCORES.items():
        scores = summary.by_cell(table, score)
        patterns = scores.index.get_level_values("pattern")
        for pattern in (name for name in PATTERNS if name in patterns):
            yield f"## {title}, {pattern}"
            yield _by_table(scores[patterns == pattern].droplevel("pattern"))
    yield "## Runs"
    yield markdown.about_runs(table, _named)


def over_cells(table: pd.DataFrame, rankings: list[Ranking]) -> str:
    """Return a table in Markdown with a line per method: wins, ranks, coverage and time."""
    rmse, crps = (summary.wins(summary.by_cell(table, score)) for score in _SCORES)
    coverages = [summary.by_cell(table, name).mean() for name in _COVERAGES]
    ratios = summary.time_ratios(table)
    lines = [[
        "", "cells", "lowest RMSE", "mean excess", "largest", "lowest CRPS", "mean excess", "largest",
        "rank by RMSE", "by energy distance", "coverage of 90 %", "of 95 %", "time ratio", "largest",
    ]]  # fmt: skip
    for method, won in rmse.items():
        lines.append([
            METHODS[method].title,
            f"{won.cells}",
            *_wins(won),
            *_wins(crps.get(method)),
            *(_number(ranking.ranks.get(method), ".1f") for ranking in rankings),
            *(_number(means.get(method), ".3f") for means in coverages),
            _number(ratios[method].mean() if method in ratios else None, ".2f"),
            _number(ratios[method].max() if method in ratios else None, ".2f"),
        ])  # fmt: skip
    return markdown.table(lines)


def _wins(won: summary.Wins | None) -> list[str]:
    if won is None:
        return ["", "", ""]
    return [f"{number:.1%}" for number in (won.lowest, won.mean_excess, won.largest_excess)]


def _number(number: float | None, form: str) -> str:
    return "" if number is None or pd.isna(number) else f"{number:{form}}"


def _about_mgp(table: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about the figures of MGP that are asked for."""
    for score, title in _SCORES.items():
        if won := summary.wins(summary.by_cell(table, score)).get("mgp"):
            yield (
                f"MGP has the lowest {title} in {won.lowest:.1%} of {won.cells} cells; its largest excess "
                f"over the best is {won.largest_excess:.1%} ({won.where})."
            )
    if covered := summary.coverage(table).get("mgp"):
        yield (
            f"The coverage of its 95 % intervals is .93 to .97 in {covered.close:.1%} of the cells, and "
            f"{covered.lowest:.3f} to {covered.highest:.3f} over all; "
            f"{'all are' if covered.is_acceptable else 'not all are'} within .90 to .98."
        )
    ratios = summary.time_ratios(table)
    if "mgp" in ratios:
        slowest = ratios["mgp"].dropna()
        yield (
            f"It takes {slowest.mean():.2f} times as long as chained extra trees on average, at most "
            f"{slowest.max():.2f} times ({', '.join(slowest.index[int(slowest.argmax())])})."
        )


def _by_table(scores: pd.DataFrame) -> str:
    """Return the scores of one pattern, tables × methods, in Markdown."""
    methods = list(scores.columns[scores.notna().any()])
    lines = [["", *(METHODS[method].title for method in methods)]]
    for name in (name for name in DATASETS if name in scores.index):
        own = [float(value) for value in scores.loc[[name], methods].to_numpy(float)[0]]
        best = np.nanmin(own)
        texts = [_number(value, ".3f") for value in own]
        bold = [f"**{text}**" if value == best else text for text, value in zip(texts, own, strict=True)]
        lines.append([DATASETS[name].title, *bold])
    return markdown.table(lines)


def _named(row: Mapping[Any, Any]) -> str:
    where = f"{DATASETS[row['dataset']].title}, {row['pattern']}, seed {row['seed']}"
    return f"{METHODS[row['method']].title} on {where}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print the names of its files; return the exit status."""
    parser = command.new_parser("tables.report", __doc__)
    parser.add_argument("results", metavar="RESULTS", help="CSV file that `benchmarks.tables` wrote")
    parser.add_argument("-o", "--out", metavar="DIR", help="folder to write into (default: that of RESULTS)")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    for path in write(args.results, Path(args.out or Path(args.results).parent)):
        command.say(str(path))


if __name__ == "__main__":
    sys.exit(main())
