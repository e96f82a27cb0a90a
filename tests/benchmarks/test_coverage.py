"""Designs of the coverage study, least squares, tasks and the summary of repetitions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from benchmarks.coverage import plot, r_mice, simulation
from benchmarks.coverage.designs import DESIGNS
from benchmarks.coverage.methods import METHODS


def complete(design, n_tables):
    """Return the complete rows of many tables."""
    tables = [design.draw(np.random.default_rng(k)).dropna() for k in range(n_tables)]
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("name", DESIGNS)
def test_complete_rows_estimate_the_true_slope_without_bias(name):
    """In all designs missingness depends on regressors only, which leaves complete rows unbiased."""
    design = DESIGNS[name]
    rows = complete(design, 200)
    slopes, variances = simulation.least_squares(rows["y"], design.inputs(rows))
    error = np.sqrt(variances[1 + design.term])
    assert abs(slopes[1 + design.term] - design.truth) < 4 * error
    assert error < 0.1 * abs(design.truth)


@pytest.mark.parametrize(("name", "rate"), [("fimd_2.5.3_x", 0.5), ("product_20", 0.2), ("product_50", 0.5)])
def test_share_of_missing_cells_is_that_of_the_design(name, rate):
    tables = [DESIGNS[name].draw(np.random.default_rng(k)) for k in range(50)]
    holes = pd.concat(tables).isna().mean()
    np.testing.assert_allclose(holes[holes > 0], rate, atol=0.02)


def test_least_squares_are_those_of_statsmodels():
    rows = complete(DESIGNS["product_30"], 1)
    inputs = DESIGNS["product_30"].inputs(rows)
    slopes, variances = simulation.least_squares(rows["y"], inputs)
    fit = sm.OLS(rows["y"], sm.add_constant(np.column_stack(inputs))).fit()
    np.testing.assert_allclose(slopes, fit.params)
    np.testing.assert_allclose(np.sqrt(variances), fit.bse)


@pytest.mark.parametrize("method", ["mgp", "mgp_per_cell", "iterative", "complete_cases"])
def test_methods_impute_all_missing_cells_and_keep_observed_ones(method):
    frame = DESIGNS["fimd_3.2.3_y"].draw(np.random.default_rng(0))
    tables = METHODS[method](frame, 3, 1)
    assert len(tables) == 3
    for table in tables:
        assert not table.isna().to_numpy().any()
        kept = table if method == "complete_cases" else table[frame["y"].notna()]
        pd.testing.assert_frame_equal(kept, frame.dropna())


def test_tasks_leave_out_finished_repetitions():
    designs, methods = ["fimd_2.5.3_x", "fimd_3.2.3_x"], ["complete_cases"]
    first = pd.DataFrame(simulation.run(simulation.tasks(designs, methods, 3)))
    assert simulation.tasks(designs, methods, 3, first) == []
    rest = simulation.tasks(designs, methods, 4, first)
    assert rest == [(design, "complete_cases", 3) for design in designs]
    again = pd.DataFrame(simulation.run(simulation.tasks(designs, methods, 3)))
    pd.testing.assert_frame_equal(first.drop(columns="seconds"), again.drop(columns="seconds"))


def test_summary_as_computed_by_hand():
    design = "fimd_2.5.3_x"
    results = pd.DataFrame(
        {
            "design": design,
            "method": "mgp",
            "repetition": range(4),
            "estimate": [0.9, 1.1, 1.2, 1.2],
            "low": [0.5, 0.9, 1.1, 0.8],
            "high": [1.3, 1.3, 1.5, 1.6],
            "seconds": [1.0, 2.0, 3.0, 10.0],
        }
    )
    (row,) = simulation.summary(results).to_dict("records")
    assert row["n"] == 4 and row["coverage"] == 0.75 and row["seconds"] == 2.5
    assert row["bias"] == pytest.approx(0.1) and row["percent_bias"] == pytest.approx(10)
    assert row["width"] == pytest.approx((0.8 + 0.4 + 0.4 + 0.8) / 4)
    assert row["coverage_se"] == pytest.approx(np.sqrt(0.75 * 0.25 / 4))
    assert row["bias_se"] == pytest.approx(results["estimate"].std() / 2)


@pytest.mark.parametrize(
    ("designs", "methods", "sentence"),
    [
        (["fimd"], ["mgp"], r"designs are \['fimd_2.5.3_x'.*got 'fimd'"),
        (["product_20"], ["gan"], r"methods are .*got 'gan'"),
    ],
)
def test_unknown_designs_and_methods_are_refused(designs, methods, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulation.tasks(designs, methods, 1)


def test_without_r_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(r_mice.shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match="r-cran-mice"):
        simulation.tasks(["product_20"], ["mice_pmm"], 1)


def test_the_plot_describes_the_summary(tmp_path):
    rows = [("fimd_2.5.3_x", "mgp", 0.94), ("fimd_2.5.3_x", "mice_norm", 0.5), ("wave_30", "mgp", 1.0)]
    summary = pd.DataFrame(rows, columns=["design", "method", "coverage"]).assign(
        n=100, coverage_se=0.02, width=0.4
    )
    description = plot.draw(summary, tmp_path / "coverage.png")
    assert description.endswith("fimd_2.5.3_x: mgp 94 %, mice_norm 50 %; wave_30: mgp 100 %")
    assert (tmp_path / "coverage.png").read_bytes().startswith(b"\x89PNG")
