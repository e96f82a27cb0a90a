"""Contents of plots: their points, labels and legends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import same_color
from matplotlib.dates import num2date
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from pyro_mgp import MGPImputer, pool
from pyro_mgp.analysis.relevance import relevance
from pyro_mgp.data.cells import cells_of, holes_of
from pyro_mgp.data.table import missing
from pyro_mgp.evaluation.missingness import ampute, flux
from pyro_mgp.inference.training import History
from pyro_mgp.plots import (
    plot_calibration,
    plot_cells,
    plot_densities,
    plot_energy_scores,
    plot_flux,
    plot_fmi,
    plot_loss,
    plot_missingness,
    plot_patterns,
    plot_relevance,
    plot_scatter,
    plot_strips,
    plot_tipping_point,
    plot_tipping_points,
    plot_value_of,
    plot_variance_shares,
)
from pyro_mgp.plots._columns import plotted
from pyro_mgp.plots._style import BLUE, VERMILION, text
from pyro_mgp.results.imputations import Imputations

PENGUINS = Path(__file__).parents[2] / "examples" / "data" / "penguins.csv"


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    with matplotlib.rc_context({"backend": "agg"}):
        before = dict(matplotlib.rcParams)
        yield
        assert dict(matplotlib.rcParams) == before, "a picture changed matplotlib's style for all others"
        plt.close("all")


def scan() -> pd.DataFrame:
    delta = np.array([-2.0, -1.0, 0.0])
    return pd.DataFrame(
        {
            "delta": delta,
            "estimate": 1 + delta,
            "low": delta,
            "high": 2.5 + delta,
            "tipped": [True, True, False],
        }
    )


def test_a_scan_shows_estimates_intervals_and_where_it_tips() -> None:
    _, given = plt.subplots()
    ax = plot_tipping_point(scan(), given, null=0.25)
    assert ax is given
    same, tipped = ax.containers
    np.testing.assert_allclose(same.lines[0].get_xydata(), [[0, 1]])
    np.testing.assert_allclose(tipped.lines[0].get_xydata(), [[-2, -1], [-1, 0]])
    ends = tipped.lines[2][0].get_segments()
    np.testing.assert_allclose(ends, [[[-2, -2], [-2, 0.5]], [[-1, -1], [-1, 1.5]]])
    assert ax.lines[0].get_ydata()[0] == 0.25
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["same conclusion as without a shift", "changed conclusion"]


def test_without_axes_a_figure_is_made_and_the_legend_names_only_present_groups() -> None:
    ax = plot_tipping_point(scan().assign(tipped=False))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["same conclusion as without a shift"]


def scan_of_both() -> pd.DataFrame:
    shifts = [(0.0, 0.0), (0.0, 2.0), (-1.0, 0.0), (-1.0, 2.0)]
    scanned = pd.DataFrame(shifts, columns=["delta_of_reference", "delta"])
    return scanned.assign(estimate=[-3.0, -1.0, -2.5, -0.5], tipped=[False, False, False, True])


def scored() -> pd.DataFrame:
    rows = {"imputer": ["a", "$b"] * 3, "column": ["x", "x", 7, 7, None, None]}
    return pd.DataFrame(rows).assign(score_sd=[0.5, 0.4, np.nan, 0.7, 0.5, 0.45])


def test_energy_scores_are_shown_by_column_with_the_best_imputer_first() -> None:
    ax = plot_energy_scores(scored(), Figure().subplots())
    best, other = ax.lines
    assert (best.get_label(), other.get_label()) == (r"\$b", "a")
    np.testing.assert_allclose(best.get_xydata(), [[0.4, 0], [0.7, 1], [0.45, 2]])
    assert [each.get_text() for each in ax.get_yticklabels()] == ["x", "7", "all columns"]


def values_of() -> pd.DataFrame:
    return pd.DataFrame({"row": [("a", 1), 3], "column": ["$x", 7], "removed": [0.5, 0.25]})


def test_measurements_are_bars_with_the_best_on_top() -> None:
    ax = plot_value_of(values_of(), ax=Figure().subplots())
    assert [bar.get_width() for bar in ax.patches] == [50, 25]
    assert [each.get_text() for each in ax.get_yticklabels()] == [r"row ('a', 1), \$x", "row 3, 7"]
    first = plot_value_of(values_of().drop(columns="row"), Figure().subplots(), n=1)
    assert first.get_title() == "the first 1 of 2"
    assert [each.get_text() for each in first.get_yticklabels()] == [r"\$x"]


def test_a_scan_of_both_arms_hatches_pairs_of_shifts_that_tip() -> None:
    ax = plot_tipping_points(scan_of_both(), Figure().subplots())
    assert [each.get_text() for each in ax.texts] == ["-3", "-1", "-2.5", "-0.5"]
    assert [each.get_text() for each in ax.get_yticklabels()] == ["0", "-1"]
    _, hatched = ax.collections
    (square,) = hatched.get_paths()
    assert hatched.get_hatch() and square.get_extents().bounds == (1, 1, 1, 1)


# ------------------------------------------------------------------------------------------- tables and draws


@cache
def penguins() -> pd.DataFrame:
    together = [["sex"], ["bill_length_mm", "bill_depth_mm"], ["body_mass_g"], ["species"]]
    return ampute(pd.read_csv(PENGUINS), 0.5, patterns=together, random_state=0)


@cache
def hostile() -> pd.DataFrame:
    """Missing cells in columns of every kind; labels that are not text, or look like mathematics."""
    rng = np.random.default_rng(2)
    n_rows = 120
    table = pd.DataFrame(
        {
            7: rng.normal(size=n_rows).astype(np.float32),
            "$whole$": rng.integers(0, 9, n_rows),
            "many": rng.integers(0, 2000, n_rows),
            "flag": rng.random(n_rows) < 0.3,
            "_flag?": np.where(rng.random(n_rows) < 0.1, None, rng.random(n_rows) < 0.5),
            "text": rng.choice(["$a", "_b", "c\nc", "d" * 60], n_rows),
            "level": pd.Categorical(
                rng.choice(["low", "high"], n_rows), ["low", "never", "high"], ordered=True
            ),
            "nominal": pd.Categorical(rng.choice([9, 5, 1], n_rows), [9, 5, 1]),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n_rows), unit="D"),
            "zoned": pd.date_range("2021-03-01", periods=n_rows, freq="h", tz="Europe/Berlin"),
            "took": pd.to_timedelta(rng.integers(1, 99, n_rows), unit="min"),
            "tail": rng.lognormal(0, 3, n_rows),
            "constant": 1.5,
        }
    )
    table = ampute(table.set_index([table.index % 7, table.index]), 0.9, random_state=0)
    table.loc[table["constant"].isna(), "constant"] = 1.5
    return table


def resampled(frame: pd.DataFrame, m: int = 6) -> Imputations:
    """Imputations that draw from the observed cells."""
    rng = np.random.default_rng(0)
    values = {}
    for label, column in frame.items():
        holes = holes_of(column)
        if holes.any():
            values[label] = rng.choice(cells_of(column)[~holes], (m, holes.sum()))
    return Imputations(frame, values, m)


def numbers(n_missing: int, n_rows: int = 200, m: int = 4) -> Imputations:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 2)), columns=["x", "y"])
    frame.iloc[:n_missing, 0] = np.nan
    return Imputations(frame, {"x": rng.normal(1.0, 0.5, (m, n_missing))}, m)


def labels(m: int = 4) -> Imputations:
    sex = pd.Categorical(["male", None, "female", "male", None], ["male", "female", "other"])
    draws = [["male", "female"], ["male", "male"], ["female", "male"], ["male", "male"]][:m]
    return Imputations(pd.DataFrame({"sex": sex, "x": np.arange(5.0)}), {"sex": draws}, m)


def relevances(n_rows: int = 3, n_columns: int = 4) -> pd.DataFrame:
    table = np.arange(n_rows * n_columns, dtype=float).reshape(n_rows, n_columns) / 10
    table[np.arange(n_rows), np.arange(n_rows)] = np.nan
    return pd.DataFrame(table, index=range(n_rows), columns=[f"$c{j}" for j in range(n_columns)])


def shares(n_columns: int = 3) -> pd.DataFrame:
    names = ["linear", "curved", "nearby rows", "unexplained"]
    return pd.DataFrame([[0.5, -0.1, 0.2, 0.4]] * n_columns, range(n_columns), columns=names)


HISTORY = History(loss=[9.0, 5.0, 4.0, 3.5], validation=[-1.2, -0.9], steps=[2, 4], best_step=4)


# -------------------------------------------------------------------------------- what all have in common

ONE_PANEL: dict[str, Callable[..., Any]] = {
    "missingness": lambda **ax: plot_missingness(hostile(), **ax),
    "missingness of penguins": lambda **ax: plot_missingness(penguins(), **ax),
    "patterns": lambda **ax: plot_patterns(hostile(), **ax),
    "patterns of penguins": lambda **ax: plot_patterns(penguins(), **ax),
    "flux": lambda **ax: plot_flux(hostile(), **ax),
    "flux of penguins": lambda **ax: plot_flux(penguins(), **ax),
    "relevance": lambda **ax: plot_relevance(relevances(), **ax),
    "relevance of many": lambda **ax: plot_relevance(relevances(30, 50), **ax),
    "shares": lambda **ax: plot_variance_shares(shares(), **ax),
    "shares of many": lambda **ax: plot_variance_shares(shares(60), **ax),
    "fmi": lambda **ax: plot_fmi(pool([(1.2, 0.04), (1.5, 0.05)], names=["$x"]), **ax),
    "tipping point": lambda **ax: plot_tipping_point(scan(), **ax),
    "value": lambda **ax: plot_value_of(values_of(), **ax),
    "energy": lambda **ax: plot_energy_scores(scored(), **ax),
    "tipping points": lambda **ax: plot_tipping_points(scan_of_both(), **ax),
}
for _label in hostile().columns[hostile().isna().any()].tolist():
    for _plot in (plot_strips, plot_cells):
        ONE_PANEL[f"{_plot.__name__} of {_label}"] = lambda plot=_plot, label=_label, **ax: plot(
            resampled(hostile()), label, **ax
        )
for _x, _y in (("when", "took"), (7, "zoned"), ("flag", "text"), ("nominal", "$whole$"), ("tail", "_flag?")):
    ONE_PANEL[f"scatter of {_x} and {_y}"] = lambda x=_x, y=_y, **ax: plot_scatter(
        resampled(hostile()), x, y, **ax
    )
SEVERAL_PANELS: dict[str, Callable[..., Any]] = {
    "loss": lambda **figure: plot_loss(HISTORY, **figure),
    "densities": lambda **figure: plot_densities(resampled(hostile()), **figure),
    "densities of penguins": lambda **figure: plot_densities(resampled(penguins()), **figure),
}


@pytest.mark.parametrize("name", ONE_PANEL)
def test_one_panel_is_drawn_on_the_axes_given_and_no_other(name: str) -> None:
    given = Figure(figsize=(6, 4)).subplots()
    assert ONE_PANEL[name](ax=given) is given
    given.figure.draw_without_rendering()
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "name",
    [
        "missingness",
        "patterns",
        "flux",
        "relevance",
        "shares",
        "fmi",
        "tipping point",
        "tipping points",
        "energy",
    ],
)
def test_without_axes_one_figure_is_made(name: str) -> None:
    ax = ONE_PANEL[name]()
    assert plt.get_fignums() == [ax.figure.number]
    ax.figure.draw_without_rendering()


@pytest.mark.parametrize("name", SEVERAL_PANELS)
def test_several_panels_are_drawn_on_the_figure_given_or_a_new_one(name: str) -> None:
    given = Figure(layout="constrained")
    axes = SEVERAL_PANELS[name](figure=given)
    assert list(axes) == given.axes
    given.draw_without_rendering()
    _, right = Figure(layout="constrained").subfigures(1, 2)
    assert all(ax.figure is right for ax in SEVERAL_PANELS[name](figure=right))
    assert plt.get_fignums() == []
    new = SEVERAL_PANELS[name]()
    assert plt.get_fignums() == [new[0].figure.number]


@pytest.mark.parametrize("name", ["missingness of penguins", "plot_cells of text", "plot_strips of when"])
def test_tick_labels_do_not_overlap(name: str) -> None:
    ax = ONE_PANEL[name]()
    ax.figure.draw_without_rendering()
    for axis in (ax.xaxis, ax.yaxis):
        boxes = [
            label.get_window_extent() for label in axis.get_ticklabels() if label.get_rotation() in (0, 90)
        ]
        for one, next_one in itertools.pairwise(boxes):
            assert not one.shrunk(0.98, 0.9).overlaps(next_one.shrunk(0.98, 0.9))


def test_labels_are_short_lines_without_mathematics() -> None:
    assert text("a\n b") == "a b"
    assert text("cost in $ or $") == r"cost in \$ or \$"
    assert text(text("$")) == r"\$"
    assert text("x" * 30) == "x" * 23 + "…"
    assert text(7) == "7"


# -------------------------------------------------------------------------------------------------- holes


def test_a_map_shows_each_cell_of_a_small_table() -> None:
    frame = hostile()
    ax = plot_missingness(frame)
    np.testing.assert_array_equal(ax.images[0].get_array(), missing(frame))
    assert ax.images[0].get_extent() == [-0.5, len(frame.columns) - 0.5, len(frame), 0]
    assert [tick.get_text() for tick in ax.get_xticklabels()][:2] == ["7", r"\$whole\$"]
    assert ax.texts[0].get_text() == f"{missing(frame)[:, 0].mean():.0%}".replace("%", " %")


def test_a_map_of_many_rows_combines_rows_and_still_shows_one_missing_cell() -> None:
    holes = np.zeros((100_000, 3), dtype=bool)
    holes[4, 0] = holes[:200, 1] = holes[50_000:, 2] = True
    ax = plot_missingness(pd.DataFrame(np.where(holes, np.nan, 1.0)))
    shown = np.asarray(ax.images[0].get_array())
    assert shown.shape == (500, 3)
    assert shown[0].tolist() == pytest.approx([0.2 + 0.8 / 200, 1.0, 0.0])
    assert shown[1, :2].tolist() == [0.0, 0.0]
    assert shown[[249, 250], 2].tolist() == [0.0, 1.0]
    assert ax.get_ylabel() == "row (200 to a line)"


def test_patterns_are_sorted_by_frequency() -> None:
    frame = pd.DataFrame({"x": [1.0, None, None, 1.0], "y": ["a", "b", None, "b"]})
    ax = plot_patterns(frame)
    np.testing.assert_array_equal(ax.collections[0].get_array(), [[0, 0], [1, 0], [1, 1]])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [
        "2 rows (50 %)",
        "1 row (25 %)",
        "1 row (25 %)",
    ]
    assert ax.get_ylim() == (3, 0)
    assert ax.get_xlabel() == ""


def test_a_note_counts_patterns_and_columns_that_are_not_shown() -> None:
    frame = pd.DataFrame(np.ones((80, 50)))
    frame[45] = np.nan
    for i in range(39):
        frame.iloc[i, i] = np.nan
    ax = plot_patterns(frame, n=3)
    assert np.asarray(ax.collections[0].get_array()).shape == (3, 40)
    assert ax.get_xlabel() == "not shown: 37 rows in 37 other patterns, 10 columns with fewer missing cells"
    assert "45" in [tick.get_text() for tick in ax.get_xticklabels()]


def test_points_are_influx_and_outflux_and_complete_columns_are_squares() -> None:
    frame = penguins()
    ax = plot_flux(frame)
    table = flux(frame)
    complete, incomplete = ax.lines[1:]
    whole = table["observed"] == 1
    np.testing.assert_allclose(complete.get_xydata(), table.loc[whole, ["influx", "outflux"]])
    np.testing.assert_allclose(incomplete.get_xydata(), table.loc[~whole, ["influx", "outflux"]])
    assert (complete.get_marker(), incomplete.get_marker()) == ("s", "o")
    named = "\n".join(words.get_text() for words in ax.texts).split("\n")
    assert {"sex", "body_mass_g", "flipper_length_mm"} <= set(named)


def test_names_of_columns_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(500, 60))).mask(rng.random((500, 60)) < np.linspace(0, 0.5, 60))
    ax = plot_flux(frame)
    ax.figure.draw_without_rendering()
    boxes = [words.get_window_extent().shrunk(0.8, 0.8) for words in ax.texts]
    assert len(boxes) > 3
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


# -------------------------------------------------------------------------------------------------- draws


def test_densities_are_those_of_a_gaussian_kernel() -> None:
    draws = numbers(100, 400)
    (ax,) = plot_densities(draws)
    observed, *imputed = ax.lines
    assert len(imputed) == draws.m
    assert observed.get_linewidth() > 2 * imputed[0].get_linewidth()
    assert same_color(observed.get_color(), BLUE)
    assert all(same_color(line.get_color(), VERMILION) for line in imputed)
    for line, cells in zip(ax.lines, [draws.frame["x"].dropna().to_numpy(), *draws.values["x"]], strict=True):
        at, heights = line.get_xydata().T
        spread = min(cells.std(), np.subtract(*np.quantile(cells, [0.75, 0.25])) / 1.349)
        kernel = gaussian_kde(cells, 0.9 * spread * len(cells) ** -0.2 / cells.std(ddof=1))
        np.testing.assert_allclose(heights, kernel(at), atol=0.01 * heights.max())
        # A little of the tails is cut off.
        assert 0.97 < heights.sum() * (at[1] - at[0]) < 1.001


def test_few_missing_cells_share_a_line_and_leave_ticks() -> None:
    draws = numbers(3)
    (ax,) = plot_densities(draws)
    observed, together, ticks = ax.lines
    assert (observed.get_linestyle(), together.get_linestyle()) == ("-", "--")
    np.testing.assert_array_equal(ticks.get_xdata(), draws.values["x"].ravel())
    words = [each.get_text() for each in ax.figure.legends[0].get_texts()]
    assert words == ["observed", "imputed, 4 times", "all imputations together"]


def test_far_tails_are_cut_off() -> None:
    frame = pd.DataFrame({"x": [*np.linspace(0, 1, 999), 1e6, None]})
    (ax,) = plot_densities(Imputations(frame, {"x": [[0.5]]}, 1))
    assert ax.get_xlim()[1] < 2
    frame = pd.DataFrame({"x": [*np.random.default_rng(0).lognormal(0, 3, 200), None]})
    (ax,) = plot_densities(Imputations(frame, {"x": [[0.5]]}, 1))
    assert 10 < ax.get_xlim()[1] < 300


def test_shares_of_levels_are_bars_and_of_imputations_circles() -> None:
    (ax,) = plot_densities(labels())
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([2 / 3, 1 / 3])
    assert [line.get_ydata().tolist() for line in ax.lines] == [[0.5, 0.5], [1, 0], [0.5, 0.5], [1, 0]]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["male", "female"]


def test_whole_numbers_of_few_values_are_bars_at_their_values() -> None:
    frame = pd.DataFrame({"n": pd.array([2, 4, 4, None], dtype="Int64")})
    (ax,) = plot_densities(Imputations(frame, {"n": np.array([[4], [8]])}, 2))
    assert [bar.get_x() + bar.get_width() / 2 for bar in ax.patches] == pytest.approx([2, 4, 8])
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([1 / 3, 2 / 3, 0])


def test_the_first_columns_of_many_or_all_requested_columns_are_shown() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 15)))
    frame.iloc[0] = np.nan
    draws = resampled(frame, 2)
    axes = plot_densities(draws)
    assert len(axes) == 12
    assert axes[0].figure.get_suptitle() == "the first 12 of 15 incomplete columns"
    assert [ax.get_xlabel() for ax in plot_densities(draws, [14, 3])] == ["14", "3"]


def test_strips_hold_the_observed_cells_first_then_each_imputation() -> None:
    draws = numbers(40)
    ax = plot_strips(draws, "x")
    strips = [line for line in ax.lines if line.get_marker() in ("o", "D")]
    assert [strip.get_marker() for strip in strips] == ["o", "D", "D", "D", "D"]
    for k, (strip, cells) in enumerate(
        zip(strips, [draws.frame["x"].dropna(), *draws.values["x"]], strict=True)
    ):
        np.testing.assert_array_equal(strip.get_ydata(), np.sort(cells))
        assert np.abs(strip.get_xdata() - k).max() < 0.3
    medians = [line.get_ydata()[0] for line in ax.lines if line.get_linewidth() == 1.8]
    assert medians == pytest.approx([draws.frame["x"].median(), *np.median(draws.values["x"], axis=1)])


def test_strips_of_many_are_thinned() -> None:
    frame = pd.DataFrame({"x": np.append(np.arange(5000.5), np.nan)})
    ax = plot_strips(Imputations(frame, {"x": np.full((50, 1), 7.0)}, 50), "x")
    strips = [line for line in ax.lines if line.get_marker() in ("o", "D")]
    assert len(strips) == 21
    assert len(strips[0].get_ydata()) == 300
    assert strips[0].get_ydata()[[0, -1]].tolist() == [0.0, 5000.0]
    assert ax.get_xlabel() == "imputation, the first 20 of 50 (0: observed)"


def test_strips_of_labels_are_circles_whose_area_is_the_share() -> None:
    ax = plot_strips(labels(), "sex")
    observed, first, second, *_ = ax.collections
    np.testing.assert_array_equal(observed.get_offsets(), [[0, 0], [0, 1]])
    assert (observed.get_sizes() / observed.get_sizes().sum()).tolist() == pytest.approx([2 / 3, 1 / 3])
    np.testing.assert_array_equal(first.get_offsets(), [[1, 0], [1, 1]])
    np.testing.assert_array_equal(second.get_offsets(), [[2, 0]])


def test_scatter_shows_means_and_intervals_of_missing_cells() -> None:
    draws = numbers(5)
    ax = plot_scatter(draws, "y", "x")
    observed, imputed = ax.lines
    np.testing.assert_array_equal(observed.get_xydata(), draws.frame[["y", "x"]].iloc[5:])
    drawn = draws.values["x"]
    np.testing.assert_allclose(imputed.get_xydata(), np.column_stack([draws.frame["y"][:5], drawn.mean(0)]))
    across, upwards = ax.collections
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    ends = np.array(upwards.get_segments())
    np.testing.assert_allclose(ends[:, :, 1], np.column_stack([low, high]))
    np.testing.assert_allclose(ends[:, :, 0], draws.frame["y"][:5].to_numpy()[:, None].repeat(2, 1))
    assert all((segment[0] == segment[1]).all() for segment in across.get_segments())


def test_scatter_of_labels_shows_the_most_frequent_draw() -> None:
    ax = plot_scatter(labels(), "sex", "x")
    observed, imputed = ax.lines
    np.testing.assert_array_equal(np.rint(observed.get_xdata()), [0, 1, 0])
    np.testing.assert_array_equal(np.rint(imputed.get_xdata()), [0, 0])
    np.testing.assert_array_equal(imputed.get_ydata(), [1, 4])


def test_scatter_notes_the_number_of_imputed_points() -> None:
    ax = plot_scatter(numbers(50), "x", "y", n=10)
    assert len(ax.lines[1].get_xdata()) == 10
    assert ax.get_legend().get_texts()[1].get_text() == "imputed: mean, 90 % (10 of 50)"
    assert "of" not in plot_scatter(numbers(50), "x", "y").get_legend().get_texts()[1].get_text()


def test_cells_are_sorted_by_their_medians_with_both_intervals() -> None:
    draws = numbers(8)
    ax = plot_cells(draws, "x")
    drawn = draws.values["x"]
    order = np.argsort(np.median(drawn, axis=0))
    (medians,) = ax.lines
    np.testing.assert_allclose(
        medians.get_xydata(), np.column_stack([np.median(drawn, axis=0)[order], range(8)])
    )
    wide, narrow = ax.collections
    for lines, levels in ((wide, [0.05, 0.95]), (narrow, [0.25, 0.75])):
        ends = np.array(lines.get_segments())[:, :, 0]
        np.testing.assert_allclose(ends, np.quantile(drawn, levels, axis=0).T[order])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [str(i) for i in order]
    assert ax.get_ylabel() == "row"


def test_some_cells_of_many_are_chosen_evenly() -> None:
    ax = plot_cells(numbers(100), "x", n=5)
    assert ax.get_ylabel() == "row (5 of 100 missing cells)"
    medians = np.sort(np.median(numbers(100).values["x"], axis=0))
    assert ax.lines[0].get_xdata()[[0, -1]].tolist() == pytest.approx(medians[[0, -1]])


def test_cells_of_labels_are_bars_of_shares() -> None:
    ax = plot_cells(labels(), "sex")
    assert [bar.get_width() for bar in ax.patches] == [0.75, 0.75, 0.25, 0.25]
    assert [bar.get_x() for bar in ax.patches] == [0, 0, 0.75, 0.75]
    assert [each.get_text() for each in ax.get_legend().get_texts()] == ["male", "female"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["1", "4"]


def test_rare_levels_share_a_bar() -> None:
    names = [f"level {i}" for i in range(9)]
    frame = pd.DataFrame({"name": [*names, None]})
    ax = plot_cells(Imputations(frame, {"name": [[name] for name in names]}, 9), "name")
    assert ax.get_legend().get_texts()[-1].get_text() == "3 others"
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(1)


def test_times_are_plotted_as_dates_and_durations_in_a_suitable_unit() -> None:
    when = pd.Series(pd.to_datetime(["2020-01-01", "2020-03-01", None]).tz_localize("Europe/Berlin"))
    took = pd.Series(pd.to_timedelta([30, 90, None], unit="min"))
    drawn = {
        "when": np.array([["2020-02-01"]], dtype="datetime64[us]"),
        "took": np.array([[3_600_000_000 * 4]], dtype="timedelta64[us]"),
    }
    draws = Imputations(pd.DataFrame({"when": when, "took": took}), drawn, 1)
    ax = plot_scatter(draws, "when", "took")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("when (UTC)", "took (hours)")
    observed, imputed = ax.lines
    assert [num2date(x).isoformat()[:16] for x in observed.get_xdata()] == [
        "2019-12-31T23:00",
        "2020-02-29T23:00",
    ]
    assert num2date(imputed.get_xdata()[0]).isoformat()[:10] == "2020-02-01"
    assert observed.get_ydata().tolist() == [0.5, 1.5]
    assert imputed.get_ydata().tolist() == [4.0]


def test_cells_that_may_stay_missing_are_left_out() -> None:
    frame = pd.DataFrame({"x": [1.0, None, None], "y": [1.0, 2.0, 3.0]})
    draws = Imputations(frame, {"x": [[np.nan, 2.0], [np.nan, 3.0]]}, 2, may_stay_missing=["x"])
    assert plot_scatter(draws, "x", "y").lines[1].get_xydata().tolist() == [[2.5, 3.0]]
    assert [tick.get_text() for tick in plot_cells(draws, "x").get_yticklabels()] == ["2"]
    assert plot_strips(draws, "x").lines[-1] is not None
    plot_densities(draws)


def test_labels_drawn_for_a_column_without_observed_cells_are_levels() -> None:
    frame = pd.DataFrame({"name": pd.Series([None, None], dtype=object), "x": [1.0, 2.0]})
    draws = Imputations(frame, {"name": [["a", "b"], ["a", "a"]]}, 2)
    assert [each.get_text() for each in plot_cells(draws, "name").get_legend().get_texts()] == ["a", "b"]


def test_numbers_of_type_object_are_plotted_as_numbers() -> None:
    frame = pd.DataFrame({"n": pd.Series([1, None, 3, 9], dtype=object)})
    draws = Imputations(frame, {"n": np.array([[2], [4]], dtype=object)}, 2)
    assert plotted(draws, "n").levels is None


# -------------------------------------------------------------------------------- training and what follows


def test_loss_and_score_are_plotted_at_their_steps() -> None:
    loss, score = plot_loss(SimpleNamespace(history_=HISTORY))  # type: ignore[arg-type]
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [[1, 9], [2, 5], [3, 4], [4, 3.5]])
    np.testing.assert_array_equal(score.lines[0].get_xydata(), [[2, -1.2], [4, -0.9]])
    assert score.lines[1].get_xdata()[0] == 4
    assert len(plot_loss(History(loss=[3.0, 2.0]))) == 1


def test_bars_of_variance_shares_follow_each_other() -> None:
    bars = plot_variance_shares(shares(1)).patches
    np.testing.assert_allclose([bar.get_width() for bar in bars], [0.5, 0.0, 0.2, 0.4])
    np.testing.assert_allclose([bar.get_x() for bar in bars], [0.0, 0.5, 0.5, 0.7])


def test_relevance_is_written_into_squares_of_few_columns() -> None:
    table = relevances()
    ax = plot_relevance(table)
    np.testing.assert_array_equal(ax.collections[0].get_array().filled(np.nan), table)
    words = np.array([each.get_text() for each in ax.texts]).reshape(table.shape)
    assert words[0].tolist() == ["×", "0.10", "0.20", "0.30"]
    many = plot_relevance(relevances(20, 20))
    assert not many.texts
    np.testing.assert_array_equal(many.lines[0].get_xydata(), np.arange(20)[:, None] + [0.5, 0.5])


def test_plots_of_an_imputer_and_its_draws_end_to_end() -> None:
    frame = penguins()[["sex", "bill_length_mm", "flipper_length_mm"]].iloc[::4]
    imputer = MGPImputer(random_state=0, n_neighbors=0, max_steps=5).fit(frame)
    loss, *_ = plot_loss(imputer, figure=Figure())
    np.testing.assert_array_equal(loss.lines[0].get_ydata(), imputer.history_.loss)
    table = relevance(imputer)
    ax = plot_relevance(table, Figure().subplots())
    np.testing.assert_array_equal(ax.collections[0].get_array().filled(np.nan), table)
    draws = imputer.impute(m=3)
    assert len(plot_densities(draws, figure=Figure())) == len(draws.values)
    for label in draws.values:
        for picture in (plot_strips, plot_cells):
            picture(draws, label, Figure().subplots()).figure.draw_without_rendering()


def test_fmi_and_lambda_of_each_coefficient() -> None:
    fits = [([1.2, 3], [0.04, 1]), ([1.5, 3.1], [0.05, 1]), ([0.9, 3], [0.045, 1])]
    pooled = pool(fits, names=["a", "b"])
    ax = plot_fmi(pooled)
    fmi, share = ax.lines
    np.testing.assert_allclose(fmi.get_xydata(), np.column_stack([pooled.table["fmi"], [0, 1]]))
    np.testing.assert_allclose(share.get_xydata(), np.column_stack([pooled.table["lambda"], [0, 1]]))
    assert fmi.get_marker() != share.get_marker()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (lambda: plot_missingness(pd.DataFrame()), "0 rows x 0 columns"),
        (lambda: plot_patterns(pd.DataFrame({"x": []})), "0 rows x 1 columns"),
        (lambda: plot_patterns(penguins(), n=0), "must be at least 1, got 0"),
        (lambda: plot_flux(pd.DataFrame({"x": [1.0]})), "no missing cells"),
        (
            lambda: plot_densities(Imputations(pd.DataFrame({"x": [1.0]}), {}, 2)),
            "no column has imputed cells",
        ),
        (lambda: plot_densities(numbers(3), ["x", "y"]), "'y' has no imputed cells; those with some are"),
        (lambda: plot_strips(numbers(3), "z"), "no column 'z'"),
        (lambda: plot_scatter(numbers(3), "x", "x"), "different columns"),
        (lambda: plot_scatter(numbers(3), "x", "y", n=0), "must be at least 1, got 0"),
        (lambda: plot_cells(numbers(3), "x", n=0), "must be at least 1, got 0"),
        (lambda: plot_loss(History()), "nothing was trained"),
        (lambda: plot_relevance(relevances().iloc[:0]), "no column was modelled"),
        (lambda: plot_variance_shares(shares(0)), "no column was modelled"),
    ],
)
def test_invalid_arguments_are_refused_before_a_figure_is_made(
    picture: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        picture()
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("plot", "arguments", "message"),
    [
        (plot_densities, (), r"draws must be what impute returns, of type Imputations; got DataFrame"),
        (plot_strips, ("x",), r"draws must be what impute returns"),
        (plot_cells, ("x",), r"draws must be what impute returns"),
        (plot_fmi, (), r"pooled must be what pool returns, of type Pooled"),
        (plot_loss, (), r"training must be a fitted imputer or its history_, of type History"),
        (plot_calibration, (), r"calibration must be what calibrate returns, of type Calibration"),
    ],
)
def test_objects_of_another_type_are_named(plot: Callable[..., Any], arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        plot(pd.DataFrame({"x": [1.0]}), *arguments)


@pytest.mark.parametrize("plot", [plot_tipping_point, plot_tipping_points, plot_value_of, plot_energy_scores])
def test_tables_without_the_columns_of_a_result_are_refused(plot: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"must be what \w+ returns, with the columns \["):
        plot(pd.DataFrame({"x": [1.0]}))


@pytest.mark.parametrize("plot", [plot_relevance, plot_variance_shares])
def test_results_that_are_no_table_are_refused(plot: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"of type DataFrame; got list"):
        plot([1.0])
