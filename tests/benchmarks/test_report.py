"""Summary, ranks, tests and report of made-up results."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import report
from benchmarks.paper.plots import spread
from benchmarks.paper.ranking import rank
from benchmarks.paper.results import LAYOUT, Run, read
from benchmarks.runs.results import Results


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """MGP is best everywhere, then MICE, then the mean; the paper's settings failed on one table."""
    results = Results(tmp_path / "results.csv", LAYOUT)
    for dataset in ("protein", "parkinson"):
        for rate in (10, 20, 30):
            for split in (0, 1):
                for place, method in enumerate(("mgp", "mice", "mean", "mgp_paper")):
                    row = {"rmse": 0.3 + 0.1 * place + 0.02 * split, "seconds": 1.0}
                    failed = method == "mgp_paper" and dataset == "protein"
                    if method == "mgp":
                        row |= {"crps": 0.15, "coverage_95": 0.95}
                    results.append(
                        Run("quick", dataset, rate, split, method),
                        {"error": "KeyError: 'x'"} if failed else row,
                    )
    return tmp_path / "results.csv"


def test_means_over_splits_stand_beside_the_published_figures(path: Path) -> None:
    summary = report.summarise(read(path)).set_index(["dataset", "rate", "method"])
    mice = summary.loc["parkinson", 10, "mice"]
    assert mice["rmse"] == pytest.approx(0.41)
    assert mice["standard_error"] == pytest.approx(np.std([0.4, 0.42], ddof=1) / math.sqrt(2))
    assert (mice["published"], mice["published_standard_error"]) == (0.47, 0.03)
    assert summary.loc["parkinson", 10, "mgp_paper"]["published"] == 0.43
    assert math.isnan(summary.loc["parkinson", 10, "mgp"]["published"])
    assert summary.loc["protein", 20, "mgp_paper"]["failed"] == 2


def test_all_published_figures_are_there() -> None:
    published = report.published()
    assert len(published) == 4 * 8 * 5
    assert published.query("method == 'mgp' and dataset == 'parkinson'")["rmse"].tolist() == [
        0.43, 0.48, 0.64, 0.73,
    ]  # fmt: skip


def test_ranks_are_averaged_over_blocks_and_methods_without_results_left_out(path: Path) -> None:
    ranking = rank(read(path))
    assert ranking.ranks == {"mgp": 1.0, "mice": 2.0, "mean": 3.0}
    assert ranking.left_out == ("mgp_paper",)
    assert ranking.blocks == 6
    assert ranking.p_value == pytest.approx(math.exp(-6), rel=1e-6)


def test_the_critical_difference_is_that_of_demsar(path: Path) -> None:
    """Demšar's table 5: q = 2.343 for three classifiers at 5 %."""
    assert rank(read(path)).critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 6)), abs=1e-3)


def test_without_enough_methods_there_are_ranks_but_no_tests(path: Path) -> None:
    table = read(path)
    ranking = rank(table[table["method"].isin(["mean", "mgp"])])
    assert ranking.ranks == {"mgp": 1.0, "mean": 2.0}
    assert not ranking.is_tested
    assert "Friedman" not in ranking.describe()


def test_the_command_writes_tables_figures_and_failures(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(path), "-o", str(tmp_path / "out")]) == 0
    printed = [Path(line) for line in capsys.readouterr().out.split()]
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {file.name for file in printed} == {
        "report.md", "summary.csv", "rmse_protein.png", "rmse_parkinson.png", "ranks.png",
    }  # fmt: skip
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "| MICE | 0.410 ± 0.010 (0.51 ± 0.03) | 0.410 ± 0.010 (0.47 ± 0.03) |" in text
    assert "| MGP | **0.310 ± 0.010** | **0.310 ± 0.010** |" in text
    assert "| MGP (paper) | failed (0.47 ± 0.04) | 0.610 ± 0.010 (0.43 ± 0.05) |" in text
    assert "48 runs, of which 6 failed." in text
    assert "- MGP (paper) on Protein, 10 %, split 0: KeyError: 'x'" in text
    assert "![RMSE on Protein by the share of missing cells; at 30 %, best first: MGP 0.31," in text
    assert "### Fair CRPS" in text
    assert "### Negative log predictive density" not in text


def test_a_method_with_fewer_splits_says_so(path: Path) -> None:
    table = read(path)
    fewer = table[~((table["method"] == "mice") & (table["split"] == 1))]
    text = "\n".join(report._sections(fewer, report.summarise(fewer), rank(fewer), {}))
    assert "| MICE | 0.400, 1 of 2 splits (0.51 ± 0.03) |" in text


def test_results_of_two_profiles_are_refused(path: Path, tmp_path: Path) -> None:
    Results(path, LAYOUT).append(Run("paper", "protein", 10, 0, "mean"), {"rmse": 1.0})
    with pytest.raises(ValueError, match=r"several profiles, \['quick', 'paper'\]"):
        report.write(path, tmp_path / "out")


def test_labels_are_spread_around_the_places_they_want() -> None:
    assert spread([0.0, 5.0], 1.0) == [0.0, 5.0]
    assert spread([1.0, 1.0, 1.0], 1.0) == [0.0, 1.0, 2.0]
    places = spread([0.0, 0.1, 0.9, 3.0, 3.1], 0.5)
    assert np.diff(places).min() >= 0.5 - 1e-12
    assert np.mean(places) == pytest.approx(np.mean([0.0, 0.1, 0.9, 3.0, 3.1]))
