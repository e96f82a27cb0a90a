"""Figures that README states are those of the result files."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from benchmarks.coverage import summary

ROOT = Path(__file__).parents[2]


def test_readme_states_the_coverage_on_public_tables() -> None:
    results = pd.read_csv(ROOT / "benchmarks" / "coverage" / "results.csv")
    ours = results[(results["method"] == "mgp") & results["design"].str.startswith("real_")]
    shares = summary.per_design(ours).set_index(["design", "kind"])["coverage"] * 100
    shares = shares.drop(["cells", summary.ALL], level="kind").round()
    least = shares.pop(("real_concreteslump", "regression"))
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    sentence = rf"in {shares.min():.0f} to {shares.max():.0f} %, and those .* columns in {least:.0f} %"
    assert ours["design"].nunique() == 7 and "seven public tables" in text
    assert re.search(sentence, text), sentence
