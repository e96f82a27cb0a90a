"""Report the results of `python -m benchmarks.paper.tables`, beside the published figures.

The report has the RMSE beside the published one, the other scores, average ranks with Friedman's and
Nemenyi's tests, and figures. The published figures (`published.csv`) are the four RMSE tables of Jafrasteh,
Hernández-Lobato, Lubián-López and Benavente-Fernández, *Gaussian Processes for Missing Value Imputation*,
Knowledge-Based Systems 273:110603, 2023 (arXiv 2204.04648): mean and standard error over five splits.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import command
from benchmarks.paper import results
from benchmarks.paper.data import DATASETS
from benchmarks.paper.methods.registry import METHODS
from benchmarks.paper.ranking import Ranking, rank
from benchmarks.runs import markdown

_PUBLISHED = Path(__file__).with_name("published.csv")
_SCORES = {
    "rmse": ("RMSE, mean over columns", 3),
    "rmse_pooled": ("RMSE, root of the mean over columns", 3),
    "crps": ("Fair CRPS", 3),
    "nlpd": ("Negative log predictive density", 2),
    "coverage_50": ("Coverage of the central 50 % interval", 3),
    "coverage_90": ("Coverage of the central 90 % interval", 3),
    "coverage_95": ("Coverage of the central 95 % interval", 3),
    "width_50": ("Width of the central 50 % interval", 2),
    "width_90": ("Width of the central 90 % interval", 2),
    "width_95": ("Width of the central 95 % interval", 2),
    "seconds": ("Seconds to learn and impute", 1),
    "peak_gigabytes": ("Peak memory in GB", 2),
}
# Scores whose smallest value in a column is set in bold.
_SMALLEST_IS_BEST = {"rmse", "rmse_pooled", "crps", "nlpd"}


def write(path: str | os.PathLike[str], out: Path) -> list[Path]:
    """Write `report.md`, `summary.csv` and the figures into a folder.

    Args:
        path: CSV file of the results of one profile.
        out: Folder to write into; it is created if necessary, and files of the same names are replaced.

    Returns:
        Paths of the written files.

    Raises:
        ValueError: If the file holds no results, or results of several profiles.
        OSError: If the file cannot be read or the folder cannot be written.
    """
    from benchmarks.paper import plots

    table = results.read(path)
    profiles = table["profile"].unique()
    if len(profiles) > 1:
        raise ValueError(
            f"expected results of one profile in {str(path)!r}, got several profiles, {list(profiles)}: "
            "split the file"
        )
    summary = summarise(table)
    ranking = rank(table)
    out.mkdir(parents=True, exist_ok=True)
    pictures = plots.write(summary, ranking, out)
    summary.to_csv(out / "summary.csv", index=False, float_format="%.6g")
    text = "\n\n".join(_sections(table, summary, ranking, pictures))
    (out / "report.md").write_text(text + "\n", "utf-8")
    return [out / "report.md", out / "summary.csv", *(out / name for name in pictures)]


def published() -> pd.DataFrame:
    """Return the published `rmse` and `standard_error` by `rate`, `method` (name in the paper), `dataset`."""
    return pd.read_csv(_PUBLISHED).rename(columns={"missing_percent": "rate"})


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Average the scores over splits.

    Args:
        table: Results as `results.read` returns them.

    Returns:
        One row per `dataset`, `rate` and `method`: each score's mean over the splits that succeeded, their
        number `splits`, the `standard_error` of the RMSE over them, the number of runs that `failed`;
        `published` and `published_standard_error` where the paper has the method on this table.
    """
    keys = ["dataset", "rate", "method"]
    groups = table.groupby(keys, sort=False)
    summary = groups[list(_SCORES)].mean()
    summary["standard_error"] = groups["rmse"].sem()
    summary["splits"] = groups["rmse"].count()
    summary["failed"] = groups["error"].agg(lambda errors: int((errors != "").sum()))
    summary = summary.reset_index()
    names = {name: method.published for name, method in METHODS.items()}
    theirs = published().rename(
        columns={"method": "theirs", "rmse": "published", "standard_error": "published_standard_error"}
    )
    summary["theirs"] = summary["method"].map(names)
    return summary.merge(theirs, "left", on=["dataset", "rate", "theirs"]).drop(columns="theirs")


def _sections(
    table: pd.DataFrame, summary: pd.DataFrame, ranking: Ranking, pictures: dict[str, str]
) -> Iterator[str]:
    """Yield the paragraphs of `report.md`."""
    yield f"# Imputation of the paper's tables, profile {table['profile'].iloc[0]!r}"
    yield (
        "The unit of a column is the standard deviation of its mean-filled training rows. Figures are means "
        "over splits, ± their standard error where there are several; the best is bold. Figures in "
        "parentheses are those of the paper, over five splits of all rows."
    )
    for rate in sorted(summary["rate"].unique()):
        yield f"## RMSE with {rate} % of the cells missing"
        yield _with_published(summary[summary["rate"] == rate])
    yield "## Ranks"
    yield ranking.describe()
    for name, alternative in pictures.items():
        yield f"![{alternative}]({name})"
    yield "## Other scores"
    for score, (title, decimals) in _SCORES.items():
        if score != "rmse" and summary[score].notna().any():
            yield f"### {title}"
            yield _by_table_and_rate(summary, score, decimals)
    yield "## Runs"
    yield markdown.about_runs(table, _named)


def _with_published(part: pd.DataFrame) -> str:
    """Return one of the paper's four tables in Markdown: methods × datasets."""
    best = part.groupby("dataset")[["rmse", "splits"]].agg({"rmse": "min", "splits": "max"})
    cells = {
        (row["method"], row["dataset"]): _beside(row, *best.loc[row["dataset"]])
        for row in part.to_dict("records")
    }
    return _markdown(part, cells, [(name, DATASETS[name].title) for name in _datasets(part)])


def _beside(row: dict[Hashable, Any], best: float, most_splits: float) -> str:
    """Return a cell of the table: our figure, notes about failed or missing runs, the published figure."""
    parts = ["failed"]
    if row["splits"]:
        ours = f"{row['rmse']:.3f}" + (f" ± {row['standard_error']:.3f}" if row["splits"] > 1 else "")
        parts = [f"**{ours}**" if row["rmse"] == best else ours]
        parts += [f"{row['failed']} failed"] if row["failed"] else []
        parts += [f"{row['splits']} of {most_splits:.0f} splits"] if row["splits"] < most_splits else []
    if not pd.isna(row["published"]):
        parts[-1] += f" ({row['published']:.2f} ± {row['published_standard_error']:.2f})"
    return ", ".join(parts)


def _by_table_and_rate(summary: pd.DataFrame, score: str, decimals: int) -> str:
    """Return a table of one score in Markdown: methods × datasets and rates."""
    best = summary.groupby(["dataset", "rate"])[score].min() if score in _SMALLEST_IS_BEST else None
    cells: dict[tuple[str, Hashable], str] = {}
    for row in summary.to_dict("records"):
        place = row["dataset"], row["rate"]
        text = "" if pd.isna(row[score]) else f"{row[score]:.{decimals}f}"
        is_best = best is not None and row[score] == best[place]
        cells[row["method"], place] = f"**{text}**" if is_best else text
    rates = sorted(summary["rate"].unique())
    places = [
        ((name, rate), f"{DATASETS[name].title} {rate} %") for name in _datasets(summary) for rate in rates
    ]
    scored = summary.loc[summary[score].notna()]
    return _markdown(scored, cells, places)


def _markdown(
    part: pd.DataFrame, cells: Mapping[tuple[str, Hashable], str], places: Sequence[tuple[Hashable, str]]
) -> str:
    """Return a Markdown table with a row per method of `part` and a column per place."""
    lines = [["", *(title for _, title in places)]]
    for method in (name for name in METHODS if name in set(part["method"])):
        lines.append([METHODS[method].title, *(cells.get((method, place), "") for place, _ in places)])
    return markdown.table(lines)


def _datasets(part: pd.DataFrame) -> list[str]:
    present = set(part["dataset"])
    return [name for name in DATASETS if name in present]


def _named(row: Mapping[Hashable, Any]) -> str:
    where = f"{DATASETS[row['dataset']].title}, {row['rate']} %, split {row['split']}"
    return f"{METHODS[row['method']].title} on {where}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print the names of its files; return the exit status."""
    parser = command.new_parser("paper.report", __doc__)
    parser.add_argument("results", metavar="RESULTS", help="CSV file that `benchmarks.paper.tables` wrote")
    parser.add_argument("-o", "--out", metavar="DIR", required=True, help="folder to write into")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    for path in write(args.results, Path(args.out)):
        command.say(str(path))


if __name__ == "__main__":
    sys.exit(main())
