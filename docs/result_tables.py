"""Sphinx extension: tables and single figures in the documentation, read from result files at every build.

- the directive `results` shows a table of a benchmark, with commit and processor of what it shows;
- the roles of `FigureRole` give single figures: {covered}`design method estimand`.

So no figure of the documentation can be older than the file it comes from.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from scipy.stats import binomtest
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from benchmarks.coverage import summary
from benchmarks.coverage.designs import DESIGNS
from benchmarks.coverage.methods import EXACT, METHODS
from benchmarks.coverage.simulation import CELLS
from benchmarks.mixed.comparison import METHODS as MIXED_METHODS
from benchmarks.paper.data import DATASETS as PAPER_DATASETS
from benchmarks.paper.methods.registry import METHODS as PAPER_METHODS
from benchmarks.runs import markdown, provenance
from benchmarks.tables import report as tables_report
from benchmarks.tables import summary as tables_summary
from benchmarks.tables.results import LAYOUT as TABLES_LAYOUT

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
# Ratio of variances between imputations of a method that does not impute, up to rounding.
_NOTHING = 1e-9
Shown = tuple[str, Path, list[str]]
"""A table in Markdown, its result file, and the parts of the file that it shows."""


@cache
def coverage_results() -> pd.DataFrame:
    """Return all repetitions of the coverage study."""
    return pd.read_csv(BENCHMARKS / "coverage" / "results.csv")


@cache
def estimands() -> pd.DataFrame:
    """Return the summary of each estimand of each method and design of the coverage study."""
    return in_order(summary.per_estimand(coverage_results()))


@cache
def designs() -> pd.DataFrame:
    """Return the averages over the estimands of each method and design of the coverage study."""
    return in_order(summary.per_design(coverage_results()))


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows sorted by design and method, in the order of the study."""
    places = [list(DESIGNS), [EXACT, *METHODS]]
    keys = [
        table[column].map({name: i for i, name in enumerate(order)}).fillna(len(order))
        for column, order in zip(("design", "method"), places, strict=True)
    ]
    return table.iloc[np.lexsort(keys[::-1])]


def chosen(table: pd.DataFrame, patterns: Iterable[str]) -> pd.DataFrame:
    """Return the rows of designs with names that match one of the patterns, in the order of the patterns."""
    parts = [table[table["design"].map(lambda name, p=p: fnmatch.fnmatch(name, p))] for p in patterns]
    found = pd.concat(parts)
    if found.empty:
        raise ValueError(f"no results of the designs {list(patterns)}")
    return found


def coverage_by_estimand(patterns: Sequence[str]) -> Shown:
    """Bias, coverage and width of each estimand of some designs."""
    lines = [["design", "method", "estimand", "tables", "bias", "coverage, %", "width"]]
    found = chosen(estimands(), patterns)
    for row in found.to_dict("records"):
        lines.append([
            row["design"], f"`{row['method']}`", row["estimand"], f"{row['n']}",
            f"{row['bias']:+.3f} ± {row['bias_se']:.3f}",
            share_of(row["coverage"], row["n"]), f"{row['width']:.3g}",
        ])  # fmt: skip
    return _of_coverage(lines, found)


def share_of(share: float, n: int) -> str:
    """Return a share of n tables in per cent, with its 95 % interval by Wilson."""
    low, high = binomtest(round(share * n), n).proportion_ci(method="wilson")
    return f"{100 * share:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def coverage_by_design(patterns: Sequence[str]) -> Shown:
    """Averages over the estimands of some designs, with ratios to exact draws where there are some."""
    lines = [[
        "design", "method", "tables", "absolute bias", "coverage, %", "least, %", "z²",
        "variance between imputations ÷ exact", "width ÷ exact",
    ]]  # fmt: skip
    found = summary_of_all_kinds(chosen(designs(), patterns))
    for row in found.to_dict("records"):
        ratio = f"{row['between']:.2f} ({row['least_between']:.2f} to {row['most_between']:.2f})"
        lines.append([
            row["design"], f"`{row['method']}`", f"{row['tables']}", f"{row['absolute_bias']:.3f}",
            f"{100 * row['coverage']:.1f} ± {100 * row['coverage_se']:.1f}",
            f"{100 * row['least_coverage']:.0f}", f"{row['z2']:.2f}",
            ratio if row["between"] > _NOTHING else "",
            "" if pd.isna(row["width_ratio"]) else f"{row['width_ratio']:.2f}",
        ])  # fmt: skip
    return _of_coverage(lines, found)


def summary_of_all_kinds(averages: pd.DataFrame) -> pd.DataFrame:
    """Return one row per design and method: the average over all kinds of estimands, or the only kind."""
    estimated = averages[averages["kind"] != CELLS]
    several = estimated.groupby(["design", "method"])["kind"].transform("nunique") > 1
    return estimated[~several | (estimated["kind"] == summary.ALL)]


def coverage_of_public_tables(patterns: Sequence[str]) -> Shown:
    """Coverage of correlations, coefficients and log variances of public tables, by method."""
    found = chosen(designs(), patterns or ["real_*"])
    kinds = [kind for kind in found["kind"].unique() if kind != summary.ALL]
    lines = [["design", "method", "tables", *(f"{kind}, %" for kind in kinds)]]
    for (design, method), part in found.groupby(["design", "method"], sort=False):
        by_kind = part.set_index("kind")["coverage"]
        shares = [f"{100 * by_kind[kind]:.0f}" if kind in by_kind else "" for kind in kinds]
        lines.append([str(design), f"`{method}`", f"{part['tables'].max()}", *shares])
    return _of_coverage(lines, found)


def _of_coverage(lines: list[list[str]], found: pd.DataFrame) -> Shown:
    parts = [f"{design} {method}" for design, method in zip(found["design"], found["method"], strict=True)]
    return markdown.table(lines), BENCHMARKS / "coverage" / "results.csv", parts


def accuracy_over_tables(_: Sequence[str]) -> Shown:
    """Shares of tables and patterns in which each method is best, over 21 public tables."""
    path = BENCHMARKS / "tables" / "results.csv"
    table = TABLES_LAYOUT.read(path)
    rankings = [
        tables_report.rank(table, study) for study in (tables_summary.BY_RMSE, tables_summary.BY_ENERGY)
    ]
    return tables_report.over_cells(table, rankings), path, sorted(table["method"].unique())


def accuracy_of_paper_tables(_: Sequence[str]) -> Shown:
    """RMSE on the paper's public tables, means over splits."""
    path = BENCHMARKS / "paper" / "results.csv"
    results = pd.read_csv(path)
    results = results[results["error"].isna()]
    means = results.groupby(["dataset", "rate", "method"], sort=False)["rmse"].mean().unstack()
    methods = [name for name in PAPER_METHODS if name in means]
    lines = [["table, missing", *(PAPER_METHODS[name].title for name in methods)]]
    for dataset, rate in sorted(means.index, key=lambda key: (list(PAPER_DATASETS).index(key[0]), key[1])):
        own = means.loc[(dataset, rate), methods]
        texts = ["" if pd.isna(x) else f"**{x:.3f}**" if x == own.min() else f"{x:.3f}" for x in own]
        lines.append([f"{PAPER_DATASETS[dataset].title}, {rate} %", *texts])
    return markdown.table(lines), path, methods


def scores_of_mixed_table(_: Sequence[str]) -> Shown:
    """Scores of held-out cells of the penguins, means over ten holdouts."""
    path = BENCHMARKS / "mixed" / "penguins.csv"
    scores = pd.read_csv(path)
    methods = [name for name in MIXED_METHODS if name in set(scores["method"])]
    lines = [["column", "score", *(f"`{name}`" for name in methods)]]
    for column in scores["column"].unique():
        part = scores[scores["column"] == column].groupby("method")
        for score, best in (("accuracy", max), ("log_score", min), ("rmse", min), ("crps", min)):
            own = part[score].mean()[methods]
            if own.notna().all():
                texts = [f"**{x:.3f}**" if x == best(own) else f"{x:.3f}" for x in own]
                lines.append([f"`{column}`", score.replace("_", " "), *texts])
    seconds = scores.groupby(["method", "split"])["seconds"].sum().groupby("method").mean()
    lines.append(["all", "seconds", *(f"{seconds[name]:.1f}" for name in methods)])
    return markdown.table(lines), path, methods


def time_of_valid_imputations(_: Sequence[str]) -> Shown:
    """Seconds and memory of twenty imputations by size of the table."""
    path = BENCHMARKS / "validity" / "results.csv"
    results = pd.read_csv(path)
    methods = list(dict.fromkeys(results["method"]))
    lines = [["table", "rows", "columns", *(f"`{name}`" for name in methods)]]
    for (kind, rows, columns), part in results.groupby(["kind", "n_rows", "n_columns"], sort=True):
        by_method = part.set_index("method")
        texts = []
        for name in methods:
            run = by_method.loc[name] if name in by_method.index else None
            texts.append("" if run is None else _time_and_memory(run))
        lines.append([str(kind), f"{rows:,}", f"{columns}", *texts])
    return markdown.table(lines), path, methods


def _time_and_memory(run: Any) -> str:
    if isinstance(run["error"], str):
        return f"> {run['limit']} s"
    memory = "" if pd.isna(run["gigabytes"]) else f", {run['gigabytes']:.2f} GB"
    return f"{run['seconds']:.3g} s{memory}"


def speed(_: Sequence[str]) -> Shown:
    """Figures of `benchmarks.speed`."""
    path = BENCHMARKS / "speed" / "speed.csv"
    rows = pd.read_csv(path).fillna("")
    lines = [["what", "measured", "target", ""]]
    for row in rows.to_dict("records"):
        lines.append([row["what"], f"{row['measured']:.3g} {row['unit']}", row["asked"], row["detail"]])
    return markdown.table(lines), path, list(rows["what"])


RESULTS: dict[str, Callable[[Sequence[str]], Shown]] = {
    "coverage-by-estimand": coverage_by_estimand,
    "coverage-by-design": coverage_by_design,
    "coverage-of-public-tables": coverage_of_public_tables,
    "tables": accuracy_over_tables,
    "paper": accuracy_of_paper_tables,
    "mixed": scores_of_mixed_table,
    "validity": time_of_valid_imputations,
    "speed": speed,
}
"""Tables that the directive `results` shows, by name."""


class ResultsDirective(SphinxDirective):
    """Table of a benchmark with commit and processor; the content names designs, or patterns of them."""

    required_arguments = 1
    option_spec = {"designs": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Return the table and the line below it."""
        try:
            text, path, parts = RESULTS[self.arguments[0]](self.options.get("designs", "").split())
        except (KeyError, ValueError) as error:
            raise self.error(f"no results {self.arguments[0]!r}: {error}") from error
        self.env.note_dependency(str(path))
        origins = [each for each in provenance.read(path) if each.part in set(parts)]
        missing = set(parts) - {each.part for each in origins}
        if missing:
            raise self.error(f"{provenance.beside(path)} says nothing about {sorted(missing)}")
        name = path.relative_to(BENCHMARKS.parent).as_posix()
        below = f"*`{name}`; {provenance.describe(origins)}*"
        lines = [*text.splitlines(), "", below]
        parent = nodes.container(classes=["results"])
        self.state.nested_parse(StringList(lines, source=str(path)), self.content_offset, parent)
        return [parent]


class FigureRole(SphinxRole):
    """A figure of an estimand of the coverage study.

    `covered` is the share of the intervals of a design, method and estimand that contain the true value,
    `tables` their number, and `width-ratio` the mean width of one method divided by that of another.
    """

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the figure as text."""
        try:
            return [nodes.Text(self._figure())], []
        except (IndexError, ValueError) as error:
            return [], [self.inliner.reporter.error(f"{self.name} {self.text!r}: {error}", line=self.lineno)]

    def _figure(self) -> str:
        if self.name == "width-ratio":
            design, wide, narrow, estimand = self.text.split(maxsplit=3)
            return f"{found(design, wide, estimand)['width'] / found(design, narrow, estimand)['width']:.1f}"
        design, method, estimand = self.text.split(maxsplit=2)
        row = found(design, method, estimand)
        return f"{row['n']}" if self.name == "tables" else f"{100 * row['coverage']:.0f} %"


def found(design: str, method: str, estimand: str) -> pd.Series[Any]:
    """Return the summary of an estimand; a ValueError if there is none."""
    rows = estimands()
    rows = rows[(rows["design"] == design) & (rows["method"] == method) & (rows["estimand"] == estimand)]
    if len(rows) != 1:
        raise ValueError(f"expected one row of results, found {len(rows)}")
    return rows.iloc[0]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register directive and roles."""
    app.add_directive("results", ResultsDirective)
    for name in ("covered", "tables", "width-ratio"):
        app.add_role(name, FigureRole())
    return {"version": "1", "parallel_read_safe": True}
