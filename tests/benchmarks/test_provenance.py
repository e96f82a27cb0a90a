"""Every kept result says which commit and which processor it comes from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.runs import provenance
from benchmarks.runs.provenance import Origin

FOLDER = Path(provenance.__file__).parents[1]
PARTS = {
    "coverage/results.csv": ["design", "method"],
    "mixed/penguins.csv": ["method"],
    "paper/results.csv": ["method"],
    "speed/speed.csv": ["what"],
    "tables/results.csv": ["method"],
    "validity/results.csv": ["method"],
}


def test_all_files_of_results_are_listed_here() -> None:
    kept = {path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.csv")}
    assert {name for name in kept if ".provenance." not in name} == {*PARTS, "paper/published.csv"}


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_a_file_has_an_origin_and_no_origin_is_without_a_part(name: str) -> None:
    parts = set(pd.read_csv(FOLDER / name, dtype=str)[PARTS[name]].agg(" ".join, axis=1))
    assert {each.part for each in provenance.read(FOLDER / name)} == parts


def test_an_origin_is_added_once_and_earlier_ones_stay(tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    earlier = Origin("groups mgp", "0123abc", "2020-01-01", "a processor, with a comma, 2 cores")
    provenance.write(results, [earlier])
    provenance.add(results, ["groups mgp", "visits mgp", "groups mgp"])
    provenance.add(results, ["visits mgp"])
    first, *added = provenance.read(results)
    assert first == earlier
    assert [each.part for each in added] == ["groups mgp", "visits mgp"]
    assert {each.commit for each in added} == {provenance.commit()}
    assert not (tmp_path / "results.csv").exists()


def test_origins_are_described_by_their_commits_and_processors() -> None:
    two = [Origin(part, "0123abc", "2020-01-01", "a processor") for part in ("x", "y")]
    assert provenance.describe(two) == "commit `0123abc` (2020-01-01); a processor"
