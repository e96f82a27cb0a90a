"""Paragraphs in Markdown that reports of runs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table; the first line is the head."""
    rule = ["---", *("---:" for _ in lines[0][1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def about_runs(results: pd.DataFrame, named: Callable[[dict[Any, Any]], str]) -> str:
    """Return the number of runs, and a list of those that failed.

    Args:
        results: Results as `Layout.read` returns them.
        named: Function that returns the name of a run for its row.
    """
    failed = results[results["error"] != ""]
    lines = [f"{len(results)} runs, of which {len(failed)} failed."]
    lines += [f"- {named(row)}: {row['error']}" for row in failed.to_dict("records")]
    return "\n".join(lines)
