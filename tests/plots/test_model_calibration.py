"""Plots of calibration show the figures of the calibration table."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from pyro_mgp.evaluation.calibration import Calibration
from pyro_mgp.evaluation.diagnostics import calibrate
from pyro_mgp.plots import plot_calibration, plot_pit


@pytest.fixture(scope="module")
def result() -> Calibration:
    """Draws of `bad` are half as wide as they should be; "$_$" is a column of levels."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=["good", "bad"])
    frame["$_$"] = rng.choice(["a", "b"], 300)

    def draws(holed: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        g, tables = np.random.default_rng(seed), []
        for _ in range(m):
            cells = pd.DataFrame(g.normal(size=(300, 2)) * [1.0, 0.5], columns=["good", "bad"])
            cells["$_$"] = g.choice(["a", "b"], 300)
            tables.append(holed.fillna(cells))
        return tables

    return calibrate(draws, frame, folds=3)


def test_lines_are_the_coverage_at_every_level(result: Calibration) -> None:
    axes = plot_calibration(result, figure=Figure())
    assert [ax.get_title() for ax in axes] == [
        "all 900 cells",
        "bad (300 cells)",
        "good (300 cells)",
        r"\$_\$ (300 cells)",
    ]
    table = result.table.set_index("column")
    for ax, row in zip(axes, [result.overall, *(table.loc[c] for c in ("bad", "good", "$_$"))], strict=True):
        diagonal, line, discs = ax.lines
        assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]
        marked = [100 * row[f"coverage_{level}"] for level in (50, 80, 90, 95)]
        np.testing.assert_allclose(discs.get_ydata(), marked)
        np.testing.assert_allclose(np.interp([50, 80, 90, 95], *line.get_data()), marked, atol=0.5)
        assert (line.get_linestyle() == "--") == (row["verdict"] != "well calibrated")
    assert axes[1].lines[1].get_linestyle() == "--"
    assert axes[2].lines[1].get_linestyle() == "-"


def test_the_band_holds_19_of_20_shares_of_calibrated_cells(result: Calibration) -> None:
    (band,) = plot_calibration(result, ["good"], overall=False, figure=Figure())[0].collections
    x, y = np.rint(band.get_paths()[0].vertices * [1, 3]).T  # per cent, and cells of 300
    low, high = (np.array([of(y[x == level]) for level in range(101)]) for of in (np.min, np.max))
    counts = np.random.default_rng(0).binomial(300, np.linspace(0, 1, 101), size=(2_000, 101))
    inside = ((low <= counts) & (counts <= high)).mean(0)
    assert inside.min() > 0.94
    assert inside[30:70].mean() < 0.965


def test_bars_are_the_density_of_the_pit(result: Calibration) -> None:
    axes = plot_pit(result, ["good", "bad"], figure=Figure())
    assert [ax.get_title() for ax in axes] == [
        "all 600 cells of numbers",
        "good (300 cells)",
        "bad (300 cells)",
    ]
    for ax in axes:
        bars = [bar for bar in ax.patches if bar.get_width() < 0.2]
        assert sum(bar.get_height() for bar in bars) == pytest.approx(10)
    ends = [bar.get_height() for bar in axes[2].patches if bar.get_width() < 0.2]
    assert min(ends[0], ends[-1]) > 2 > max(ends[3:7])


def test_panels_are_drawn_alone(result: Calibration) -> None:
    for draw in (plot_calibration, plot_pit):
        assert [ax.get_title() for ax in draw(result, ["bad"], overall=False, figure=Figure())] == [
            "bad (300 cells)"
        ]
        assert len(draw(result, [], figure=Figure())) == 1
        with pytest.raises(ValueError, match="nothing to plot"):
            draw(result, [], overall=False, figure=Figure())


def test_levels_alone_have_a_histogram() -> None:
    frame = pd.DataFrame({"a": list("xy") * 20, "b": range(40)})
    alone = calibrate(lambda holed, m, seed: [holed.fillna("x")] * m, frame, columns=["a"], m=5, share=0.5)
    (whole, one) = plot_pit(alone, figure=Figure())
    assert whole.get_title() == "all 20 cells"
    assert one.get_title() == "a (20 cells)"


def test_columns_without_held_out_cells_are_refused_and_styles_stay(result: Calibration) -> None:
    mpl.get_backend()  # which is looked for when it is first asked for
    before = mpl.rcParams.copy()
    for draw in (plot_calibration, plot_pit):
        with pytest.raises(ValueError, match=r"no cell of column 'nope' was held out"):
            draw(result, ["nope"], figure=Figure())
        draw(result, figure=Figure())
    assert mpl.rcParams == before
