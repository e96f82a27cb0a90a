"""Tables, ranks and figures of the results, beside the paper's.

The published figures (`published.csv`) are the four RMSE tables of Jafrasteh, Hernández-Lobato,
Lubián-López and Benavente-Fernández, *Gaussian Processes for Missing Value Imputation*, Knowledge-Based
Systems 273:110603, 2023 (arXiv 2204.04648): mean and standard error over five splits.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import results
from benchmarks.data import DATASETS
from benchmarks.ranking import Ranking, rank
from benchmarks.systems import SYSTEMS

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
# Scores of which the smallest of a column is set in bold.
_SMALLEST_IS_BEST = {"rmse", "rmse_pooled", "crps", "nlpd"}


def write(path: str | os.PathLike[str], out: Path) -> list[Path]:
    """Write `report.md`, `summary.csv` and the figures into a folder.

    Args:
        path: CSV file of the results of one profile.
        out: The folder; made if need be, files of the same names replaced.

    Returns:
        What was written.

    Raises:
        ValueError: If the file holds no results, or those of several profiles.
        OSError: If it cannot be read, or the folder not written.
    """
    from benchmarks import plots

    table = results.read(path)
    profiles = table["profile"].unique()
    if len(profiles) > 1:
        raise ValueError(f"{str(path)!r} holds results of several profiles, {list(profiles)}: split them")
    summary = summarise(table)
    ranking = rank(table)
    out.mkdir(parents=True, exist_ok=True)
    pictures = plots.write(summary, ranking, out)
    summary.to_csv(out / "summary.csv", index=False, float_format="%.6g")
    text = "\n\n".join(_sections(table, summary, ranking, pictures))
    (out / "report.md").write_text(text + "\n", "utf-8")
    return [out / "report.md", out / "summary.csv", *(out / name for name in pictures)]


def published() -> pd.DataFrame:
    """The paper's figures: `rate`, `method` (the paper's name), `dataset`, `rmse`, `standard_error`."""
    with files("benchmarks").joinpath("published.csv").open("r", encoding="utf-8") as file:
        return pd.read_csv(file).rename(columns={"missing_percent": "rate"})


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Means over splits.

    Args:
        table: Results, see `results.read`.

    Returns:
        One row per `dataset`, `rate` and `method`: each score's mean over the splits that succeeded, their
        number `splits`, the `standard_error` of the RMSE over them, the number of runs that `failed`;
        `published` and `published_standard_error`, where the paper has the method on this table.
    """
    keys = ["dataset", "rate", "method"]
    groups = table.groupby(keys, sort=False)
    summary = groups[list(_SCORES)].mean()
    summary["standard_error"] = groups["rmse"].sem()
    summary["splits"] = groups["rmse"].count()
    summary["failed"] = groups["error"].agg(lambda errors: int((errors != "").sum()))
    summary = summary.reset_index()
    names = {name: system.published for name, system in SYSTEMS.items()}
    theirs = published().rename(
        columns={"method": "theirs", "rmse": "published", "standard_error": "published_standard_error"}
    )
    summary["theirs"] = summary["method"].map(names)
    return summary.merge(theirs, "left", on=["dataset", "rate", "theirs"]).drop(columns="theirs")


def _sections(
    table: pd.DataFrame, summary: pd.DataFrame, ranking: Ranking, pictures: dict[str, str]
) -> Iterator[str]:
    """The parts of `report.md`."""
    yield f"# Imputation of the paper's tables, profile {table['profile'].iloc[0]!r}"
    yield (
        "Unit of a column: the standard deviation of its mean-filled training rows. Figures are means over "
        "splits, ± their standard error where there are several; the best is bold. In parentheses: what the "
        "paper reports, over five splits of all rows."
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
    yield _about_runs(table)


def _with_published(part: pd.DataFrame) -> str:
    """One of the paper's four tables: methods × datasets."""
    best = part.groupby("dataset")[["rmse", "splits"]].agg({"rmse": "min", "splits": "max"})
    cells = {
        (row["method"], row["dataset"]): _beside(row, *best.loc[row["dataset"]])
        for row in part.to_dict("records")
    }
    return _markdown(part, cells, [(name, DATASETS[name].title) for name in _datasets(part)])


def _beside(row: dict[Hashable, Any], best: float, most_splits: float) -> str:
    """Our figure, what there is to say about it, and the published one."""
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
    """A score of all methods in all cells."""
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
    known = summary.loc[summary[score].notna()]
    return _markdown(known, cells, places)


def _markdown(
    part: pd.DataFrame, cells: Mapping[tuple[str, Hashable], str], places: Sequence[tuple[Hashable, str]]
) -> str:
    """A table of the methods of `part` and the places; cells that are not there stay empty."""
    lines = [["", *(title for _, title in places)], ["---", *("---:" for _ in places)]]
    for method in _methods(part):
        lines.append([SYSTEMS[method].title, *(cells.get((method, place), "") for place, _ in places)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _methods(part: pd.DataFrame) -> list[str]:
    """The methods of some rows, in the order of `SYSTEMS`."""
    present = set(part["method"])
    return [name for name in SYSTEMS if name in present]


def _datasets(part: pd.DataFrame) -> list[str]:
    present = set(part["dataset"])
    return [name for name in DATASETS if name in present]


def _about_runs(table: pd.DataFrame) -> str:
    failed = table[table["error"] != ""]
    lines = [f"{len(table)} runs, of which {len(failed)} failed."]
    for row in failed.to_dict("records"):
        where = f"{DATASETS[row['dataset']].title}, {row['rate']} %, split {row['split']}"
        lines.append(f"- {SYSTEMS[row['method']].title} on {where}: {row['error']}")
    return "\n".join(lines)
