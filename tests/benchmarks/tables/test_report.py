"""Summary and report of made-up results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.ranking import rank
from benchmarks.runs.results import Results
from benchmarks.tables import report, summary
from benchmarks.tables.results import LAYOUT, Run

# RMSE by table and method; the second seed adds .02.
_RMSE = {
    "servo": {"mean": 1.0, "mgp": 0.4, "extra_trees": 0.5},
    "yacht": {"mean": 1.0, "mgp": 0.6, "extra_trees": 0.48},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """MGP is best on one of two tables; KNN failed on one, and has one seed of the other."""
    results = Results(tmp_path / "results.csv", LAYOUT)
    for dataset, methods in _RMSE.items():
        for pattern in ("mcar10", "mar30"):
            for seed in (0, 1):
                for method, rmse in methods.items():
                    row = {"rmse": rmse + 0.02 * seed, "energy": rmse / 10, "seconds": 2.0}
                    if method == "mgp":
                        covered = 0.95 if dataset == "servo" else 0.91
                        row |= {"crps": 0.2, "coverage_95": covered, "seconds": 5.0}
                    results.append(Run(1000, dataset, pattern, seed, method), row)
    results.append(Run(1000, "servo", "mar30", 0, "knn"), {"rmse": 0.7})
    results.append(Run(1000, "yacht", "mar30", 0, "knn"), {"error": "KeyError: 'x'"})
    return tmp_path / "results.csv"


def test_methods_are_compared_on_the_seeds_that_all_of_them_have(path: Path) -> None:
    scores = summary.by_cell(LAYOUT.read(path), "rmse")
    assert scores.loc[("servo", "mcar10"), "mgp"] == pytest.approx(0.41)
    # KNN has seed 0 only.
    assert scores.loc[("servo", "mar30"), "mgp"] == pytest.approx(0.40)
    assert scores.loc[("servo", "mar30"), "knn"] == pytest.approx(0.7)
    assert scores.loc[("yacht", "mar30"), "mgp"] == pytest.approx(0.61)
    assert np.isnan(scores.loc[("yacht", "mar30"), "knn"])


def test_wins_are_shares_of_cells_with_the_largest_excess(path: Path) -> None:
    wins = summary.wins(summary.by_cell(LAYOUT.read(path), "rmse"))
    assert (wins["mgp"].cells, wins["mgp"].lowest) == (4, 0.5)
    assert wins["mgp"].largest_excess == pytest.approx(0.61 / 0.49 - 1)
    assert wins["mgp"].where in ("yacht, mcar10", "yacht, mar30")
    assert wins["extra_trees"].largest_excess == pytest.approx(0.5 / 0.4 - 1)
    assert wins["knn"].cells == 1


def test_coverage_time_and_the_best_rival(path: Path) -> None:
    table = LAYOUT.read(path)
    covered = summary.coverage(table)["mgp"]
    assert (covered.close, covered.lowest, covered.highest) == (0.5, 0.91, 0.95)
    assert covered.is_acceptable
    assert summary.time_ratios(table)["mgp"].tolist() == [2.5] * 4
    relative = summary.relative_to_rivals(summary.by_cell(table, "rmse"))
    assert relative["servo", "mar30"] == pytest.approx(0.4 / 0.5 - 1)
    assert relative["yacht", "mcar10"] == pytest.approx(0.61 / 0.49 - 1)


def test_ranks_are_over_tables_and_patterns(path: Path) -> None:
    ranking = rank(LAYOUT.read(path), summary.BY_ENERGY)
    assert ranking.ranks == {"mgp": 1.5, "extra_trees": 1.5, "mean": 3.0}
    assert ranking.blocks == 4
    assert ranking.left_out == ("knn",)
    assert "by energy distance over 4 blocks (tables × patterns)" in ranking.describe()


def test_the_command_writes_figures_tables_and_failures(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(path)]) == 0
    printed = {Path(line) for line in capsys.readouterr().out.split()}
    assert printed == {
        path.parent / name
        for name in (
            "report.md", "summary.csv", "ranks_rmse.png", "ranks_energy.png", "relative.png", "time.png",
        )
    }  # fmt: skip
    text = (path.parent / "report.md").read_text("utf-8")
    assert "at most 1,000 rows" in text
    assert "MGP has the lowest RMSE in 50.0% of 4 cells; its largest excess over the best is 24.5%" in text
    assert ".93 to .97 in 50.0% of the cells, and 0.910 to 0.950 over all; all are within .90 to .98" in text
    assert "It takes 2.50 times as long as chained extra trees on average, at most 2.50 times" in text
    assert "## RMSE, mcar10" in text
    assert "| servo | 1.010 | **0.410** | 0.510 |" in text
    assert "26 runs, of which 1 failed." in text
    assert "- KNN on yacht, mar30, seed 0: KeyError: 'x'" in text
    assert "it is lower in 2 of 4 cells" in text


def test_results_for_several_numbers_of_rows_are_refused(path: Path, tmp_path: Path) -> None:
    Results(path, LAYOUT).append(Run(0, "servo", "mar30", 0, "mean"), {"rmse": 1.0})
    with pytest.raises(ValueError, match=r"one number of rows .* got \[0, 1000\]"):
        report.write(path, tmp_path / "out")


def test_results_without_a_successful_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    Results(path, LAYOUT).append(Run(0, "servo", "mar30", 0, "mean"), {"error": "MemoryError: "})
    with pytest.raises(ValueError, match=r"no run in .* has succeeded"):
        report.write(path, tmp_path / "out")
