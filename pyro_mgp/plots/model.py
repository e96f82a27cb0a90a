"""Plots of a fitted model, of the calibration of its draws, and of pooled analyses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from numpy.typing import NDArray
from scipy import stats

from pyro_mgp._support.checks import at_least, result_of
from pyro_mgp._support.messages import listing
from pyro_mgp.analysis.pooling import Pooled
from pyro_mgp.data.column_spec import Label
from pyro_mgp.evaluation.calibration import Calibration
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.inference.training import History
from pyro_mgp.plots import _style as style
from pyro_mgp.plots._style import VERMILION, blue, ink, pale_blue, paper, reference, shade

# Largest number of columns at which entries are written into the matrix.
_MOST_WRITTEN = 12
# Largest number of columns with a panel, beside the panel of all cells.
_MOST_PANELS = 11
_BINS, _FEW_BINS, _FEW_CELLS = 10, 5, 60


def plot_loss(training: MGPImputer | History, *, figure: FigureBase | None = None) -> NDArray[Any]:
    """Plot the loss at each training step, and below it the score of held-out cells if there are any.

    The loss is the negative ELBO, the score the mean predictive log density of held-out cells or, where none
    are held out, the ELBO per observed cell. A line marks the step whose parameters were kept. `training` is
    a fitted imputer, or its `history_`.

    Raises:
        ValueError: If the history has no steps.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from pyro_mgp.inference.training import History
        >>> history = History(loss=[9.0, 5.0, 4.0], validation=[-1.2, -0.9], steps=[1, 3], best_step=3)
        >>> loss, score = plot_loss(history, figure=Figure())
        >>> score.lines[0].get_ydata().tolist()
        [-1.2, -0.9]
    """
    history: History = getattr(training, "history_", training)
    result_of("a fitted imputer or its history_", "training", history, History)
    if not history.loss:
        raise ValueError("nothing was trained: the history holds no steps")
    scored = bool(history.validation)
    axes = style.panels(figure, 1 + scored, across=1, width=6.0, height=2.4 if scored else 3.2, sharex=True)
    steps = np.arange(1, len(history.loss) + 1)
    axes[0].plot(steps, history.loss, color=blue(), linewidth=1.5, marker="." if len(steps) <= 100 else "")
    axes[0].set_ylabel("loss (nats)")
    if scored:
        line = {"color": VERMILION, "linewidth": 1.2, "marker": "s", "markersize": 4}
        axes[1].plot(history.steps, history.validation, **line)
        axes[1].set_ylabel("score\n(nats per cell)")
        for ax in axes:
            ax.axvline(history.best_step, color=reference(), linewidth=1, linestyle="--", label="kept")
        axes[1].legend(loc="best", frameon=False)
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    return axes


def plot_relevance(relevance: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Plot a matrix of relevance: one row per modelled column, relevant inputs in the strongest colour.

    Compare columns within a row, since rows of labels and counts have other units. Values are written into
    the squares of up to 12 columns. Crosses mark columns that are not inputs. A colour bar takes some of the
    space of the axes. `relevance` is a result of the function of this name.

    Raises:
        ValueError: If no column was modelled.

    Example:
        >>> from matplotlib.figure import Figure
        >>> table = pd.DataFrame({"x": [0.9], "z": [0.1], "y": [np.nan]}, index=["y"])
        >>> ax = plot_relevance(table, Figure().subplots())
        >>> [text.get_text() for text in ax.texts]
        ['0.90', '0.10', '×']
    """
    result_of("what relevance returns", "relevance", relevance, pd.DataFrame)
    if relevance.empty:
        raise ValueError("no column was modelled: there is no relevance to plot")
    values = relevance.to_numpy(dtype=np.float64)
    n_rows, n_columns = values.shape
    ax = style.axes_or_new(ax, 3.4 + 0.5 * n_columns, 1.8 + 0.42 * n_rows)
    largest = float(np.nanmax(values, initial=0.0)) or 1.0
    look = {"cmap": style.blues(), "vmin": 0.0, "vmax": largest, "edgecolor": style.grey(0.1)}
    look["linewidth"] = 1.0 if n_columns <= 40 else 0.0
    image = style.matrix(ax, values, relevance.index.tolist(), relevance.columns.tolist(), **look)
    ax.set_xlabel("informed by")
    if n_columns > _MOST_WRITTEN:
        rows, columns = np.nonzero(np.isnan(values))
        ax.plot(columns + 0.5, rows + 0.5, "x", color=reference(), markersize=3)
    for (i, j), value in np.ndenumerate(values if n_columns <= _MOST_WRITTEN else values[:0]):
        colour = reference() if np.isnan(value) else paper() if value > 0.55 * largest else ink()
        words = "×" if np.isnan(value) else f"{value:.2f}"
        ax.text(j + 0.5, i + 0.5, words, ha="center", va="center", fontsize="small", color=colour)
    ax.figure.colorbar(image, ax=ax, label="relevance", pad=0.02)
    return ax


def plot_variance_shares(shares: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Plot what the parts of each column's link explain of its variance, as stacked bars.

    `shares` is a result of `analysis.variance_shares`. Negative shares, which parts have that oppose each
    other, count as zero.

    Raises:
        ValueError: If no column was modelled.

    Example:
        >>> from matplotlib.figure import Figure
        >>> shares = pd.DataFrame({"linear": [0.7], "unexplained": [0.3]}, index=["y"])
        >>> len(plot_variance_shares(shares, Figure().subplots()).patches)
        2
    """
    result_of("what variance_shares returns", "shares", shares, pd.DataFrame)
    if shares.empty:
        raise ValueError("no column was modelled: there are no shares to plot")
    ax = style.tidy(style.axes_or_new(ax, 6.0, 1.4 + 0.3 * len(shares)))
    start, places = np.zeros(len(shares)), np.arange(len(shares))
    looks: list[dict[str, Any]] = [{"color": style.BLUE}, {"color": style.SKY}]
    looks += [{"color": paper(), "edgecolor": blue(), "hatch": "///"}, {"color": shade()}]
    for (part, column), look in zip(shares.items(), looks, strict=False):
        widths = column.fillna(0.0).clip(lower=0.0).to_numpy(np.float64)
        ax.barh(places, widths, left=start, height=0.7, label=str(part), **look)
        start += widths
    ax.set(xlabel="share of the variance", xlim=(0, max(1.0, start.max())))
    ax.invert_yaxis()
    style.name_ticks(ax, "y", places.tolist(), shares.index.tolist())
    style.legend_above(ax)
    return ax


def plot_calibration(
    calibration: Calibration,
    columns: Sequence[Label] | None = None,
    *,
    overall: bool = True,
    figure: FigureBase | None = None,
) -> NDArray[Any]:
    """Plot the coverage of intervals against their nominal level, for all held-out cells and each column.

    A calibrated imputer follows the diagonal; below it, intervals are too narrow. The pale band contains 95 %
    of calibrated imputers at each level alone, given the number of held-out cells (in the first panel the
    effective number, since cells of one row are correlated). Discs mark the levels of `calibration`. Lines of
    miscalibrated columns are vermilion and dashed.

    `calibration` is a result of `calibrate`. The first panel shows all cells together if `overall` is true.
    Then each of `columns` has a panel; None for the first 11, miscalibrated ones before others.

    Raises:
        ValueError: If no cell of a column was held out, or there is nothing to plot.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from pyro_mgp.evaluation.diagnostics import calibrate
        >>> x = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=["a", "b"])
        >>> draws = lambda frame, m, seed: [frame.fillna(0.1 * j) for j in range(m)]
        >>> axes = plot_calibration(calibrate(draws, x, m=9, levels=[0.5]), figure=Figure())
        >>> [ax.get_title() for ax in axes]
        ['all 10 cells', 'a (5 cells)', 'b (5 cells)']
    """
    shown = _panels(calibration, columns, overall)
    axes = style.panels(figure, len(shown), across=3, width=3.0, height=3.0, sharex=True, sharey=True)
    nominal, levels = np.linspace(0, 1, 101), np.array(calibration.levels)
    for ax, (title, cells, n_effective, bad) in zip(axes, shown, strict=True):
        held = stats.ecdf(cells["needed"]).cdf
        n = round(n_effective)
        band = [100 * (stats.binom.ppf(q, n, nominal) / n) for q in (0.025, 0.975)]
        ax.fill_between(100 * nominal, *band, color=pale_blue(), linewidth=0, label="if calibrated")
        ax.plot([0, 100], [0, 100], color=reference(), linewidth=1, linestyle="--")
        colour, line = (VERMILION, "--") if bad else (blue(), "-")
        inside = 100 * held.evaluate(nominal)
        ax.plot(100 * nominal, inside, line, color=colour, linewidth=2, label="held-out cells")
        ax.plot(100 * levels, 100 * held.evaluate(levels), "o", color=colour)
        ax.set_title(title, fontsize="medium")
        ticks = range(0, 101, 25)
        ax.set(xlim=(0, 100), ylim=(0, 100), aspect="equal", xticks=ticks, yticks=ticks)
    axes[0].figure.supxlabel("level of the interval, or set of levels (%)", fontsize="medium")
    axes[0].figure.supylabel("held-out cells inside (%)", fontsize="medium")
    axes[0].legend(loc="lower right", frameon=False, fontsize="small")
    return axes


def plot_pit(
    calibration: Calibration,
    columns: Sequence[Label] | None = None,
    *,
    overall: bool = True,
    figure: FigureBase | None = None,
) -> NDArray[Any]:
    """Plot histograms of the rank of true values among their draws (PIT), for all numbers and each column.

    They are flat if calibrated, each bar within the pale band in 95 % of cases. High bars at both ends mean
    that draws are too certain, a hill in the middle that they are too uncertain, and a slope that they are
    too low or too high. For columns of levels it is the rank of the true level by probability, which is high
    on the right if draws are too certain.

    Panels and errors are those of `plot_calibration`; the first panel shows all numbers (all levels if there
    are none).
    """
    shown = _panels(calibration, columns, overall)
    axes = style.panels(figure, len(shown), across=3, width=3.0, height=2.2, sharex=True)
    for ax, (title, cells, n_effective, bad) in zip(axes, shown, strict=True):
        numbers = cells[cells["kind"] == "number"]
        if len(numbers) < len(cells) and len(numbers):
            n_effective *= len(numbers) / len(cells)
            title = f"all {len(numbers)} cells of numbers"
        _draw_histogram(ax, (numbers if len(numbers) else cells)["pit"].to_numpy(), n_effective, bad)
        ax.set_title(title, fontsize="medium")
    axes[0].figure.supxlabel("rank of the true value among its draws (PIT)", fontsize="medium")
    axes[0].figure.supylabel("density (1 if calibrated)", fontsize="medium")
    return axes


def _draw_histogram(ax: Axes, pit: NDArray[np.float64], n_effective: float, bad: bool) -> None:
    bins = _BINS if len(pit) >= _FEW_CELLS else _FEW_BINS
    n = round(n_effective)
    low, high = stats.binom.ppf([0.025, 0.975], n, 1 / bins) * bins / n
    ax.axhspan(low, high, color=pale_blue(), linewidth=0)
    ax.axhline(1.0, color=reference(), linewidth=1, linestyle="--")
    heights = np.histogram(pit, bins, (0.0, 1.0))[0] * bins / len(pit)
    colour, hatch = (VERMILION, "///") if bad else (blue(), None)
    middle = (np.arange(bins) + 0.5) / bins
    ax.bar(middle, heights, 0.9 / bins, color="none", edgecolor=colour, linewidth=1.6, hatch=hatch)
    ax.set(xlim=(0, 1), ylim=(0, max(1.1 * heights.max(), 1.1 * high, 2.0)), xticks=(0, 0.25, 0.5, 0.75, 1))
    ax.set_xticklabels(["0", "¼", "½", "¾", "1"])


def _panels(
    calibration: Calibration, columns: Sequence[Label] | None, overall: bool
) -> list[tuple[str, pd.DataFrame, float, bool]]:
    """Return title, held-out cells, effective number of cells and miscalibration flag of each panel."""
    result_of("what calibrate returns", "calibration", calibration, Calibration)
    cells, found = calibration.cells, []
    if overall:
        is_bad = calibration.verdict.is_bad
        found.append((f"all {len(cells)} cells", cells, calibration.effective_cells, is_bad))
    judged, bad = (each["column"].tolist() for each in (calibration.table, calibration.miscalibrated))
    bad_first = sorted(judged, key=lambda label: label not in bad)[:_MOST_PANELS]
    for label in bad_first if columns is None else columns:
        if label not in judged:
            raise ValueError(f"no cell of column {label!r} was held out, only of {listing(judged)}")
        own = cells[[each == label for each in cells["column"]]]
        title = f"{style.text(label, 18)} ({len(own)} cells)"
        found.append((title, own, float(len(own)), label in bad))
    if not found:
        raise ValueError("nothing to plot: pass columns, or overall=True")
    return found


def plot_tipping_point(scan: pd.DataFrame, ax: Axes | None = None, *, null: float = 0.0) -> Axes:
    """Plot the pooled estimate and its interval against the shift; squares mark a changed conclusion.

    `scan` is a result of `tipping_point`; a horizontal line marks the null value of the estimate.
    """
    result_of(
        "what tipping_point returns",
        "scan",
        scan,
        pd.DataFrame,
        ["delta", "estimate", "low", "high", "tipped"],
    )
    ax = style.axes_or_new(ax)
    ax.axhline(null, color=reference(), linewidth=1, linestyle="--")
    ax.axvline(0.0, color=shade(), linewidth=6, zorder=0)
    for tipped, colour, marker, name in (
        (False, blue(), "o", "same conclusion as without a shift"),
        (True, VERMILION, "s", "changed conclusion"),
    ):
        rows = scan[scan["tipped"] == tipped]
        if len(rows):
            reach = [rows["estimate"] - rows["low"], rows["high"] - rows["estimate"]]
            look: dict[str, Any] = {"fmt": marker, "color": colour, "capsize": 3, "label": name}
            ax.errorbar(rows["delta"], rows["estimate"], reach, **look)
    ax.set_xlabel("shift of the imputed cells (δ)")
    ax.set_ylabel("pooled estimate, with its interval")
    ax.legend(frameon=False, loc="best")
    return style.tidy(ax)


def plot_tipping_points(scan: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Plot the pooled estimate for each pair of shifts; hatched squares have a changed conclusion.

    `scan` is a result of `tipping_points`.

    Example:
        >>> from matplotlib.figure import Figure
        >>> scan = pd.DataFrame({"delta": [0.0, 2.0], "delta_of_reference": 0.0, "estimate": [-3.0, -1.0]})
        >>> ax = plot_tipping_points(scan.assign(tipped=[False, True]), Figure().subplots())
        >>> [each.get_text() for each in ax.texts]
        ['-3', '-1']
    """
    result_of(
        "what tipping_points returns", "scan", scan, pd.DataFrame, ["delta", "delta_of_reference", "tipped"]
    )
    ax = style.axes_or_new(ax, 6.0, 4.6)
    by_shifts = scan.pivot(index="delta_of_reference", columns="delta")
    estimates, changed = by_shifts["estimate"].iloc[::-1], by_shifts["tipped"].iloc[::-1]
    names = [[f"{shift:g}" for shift in axis] for axis in (estimates.index, estimates.columns)]
    style.matrix(ax, estimates.to_numpy(), *names, cmap=style.blues(), alpha=0.6)
    hatched = np.ma.masked_where(~changed.to_numpy(dtype=bool), estimates.to_numpy())
    ax.pcolor(hatched, hatch="//", facecolor="none", edgecolor=VERMILION, linewidth=0)
    for (i, j), estimate in np.ndenumerate(estimates.to_numpy()):
        box = {"facecolor": paper(), "edgecolor": "none", "pad": 1.5}
        ax.text(j + 0.5, i + 0.5, f"{estimate:.3g}", ha="center", va="center", fontsize="small", bbox=box)
    ax.set_xlabel("shift of the other arms' cells after dropout")
    ax.set_ylabel("shift of the reference arm's cells")
    ax.set_title("pooled estimate; hatched: changed conclusion", fontsize="medium")
    return ax


def plot_value_of(ranked: pd.DataFrame, ax: Axes | None = None, *, n: int = 20) -> Axes:
    """Plot what the first n measurements are expected to remove of a variance, the best on top.

    `ranked` is a result of `MGPImputer.value_of` or `value_of_measuring`.

    Example:
        >>> from matplotlib.figure import Figure
        >>> ranked = pd.DataFrame({"row": [7, 3], "column": "x", "removed": [0.6, 0.1]})
        >>> ax = plot_value_of(ranked, ax=Figure().subplots())
        >>> [tick.get_text() for tick in ax.get_yticklabels()]
        ['row 7, x', 'row 3, x']
    """
    result_of("what value_of returns", "ranked", ranked, pd.DataFrame, ["removed"])
    shown = ranked.head(at_least("n", n, 1))
    names = [
        ", ".join(
            f"row {row[part]}" if part == "row" else str(row[part])
            for part in ("row", "column")
            if part in row
        )
        for row in shown.to_dict("records")
    ]
    ax = style.axes_or_new(ax, 6.0, 1.2 + 0.28 * len(shown))
    ax.barh(np.arange(len(shown)), 100 * shown["removed"], color=blue(), height=0.7)
    style.name_ticks(ax, "y", np.arange(len(shown)), names)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlabel("expected to be removed, % of the variance")
    if len(ranked) > len(shown):
        ax.set_title(f"the first {len(shown)} of {len(ranked)}", fontsize="small", color=reference())
    return style.tidy(ax)


def plot_energy_scores(scored: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Plot the energy-I-scores of imputers, by column and of all columns, in standard deviations.

    `scored` is a result of `energy_scores`. Lower is better; the imputers of the legend are in the order of
    their scores of all columns, of which the best has discs.

    Example:
        >>> from matplotlib.figure import Figure
        >>> rows = {"imputer": ["a", "b"] * 2, "column": ["x", "x", None, None], "score_sd": [0.5, 0.4] * 2}
        >>> ax = plot_energy_scores(pd.DataFrame(rows), Figure().subplots())
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['b', 'a']
    """
    result_of("what energy_scores returns", "scored", scored, pd.DataFrame, ["imputer", "column", "score_sd"])
    of_all = scored[scored["column"].isna()].sort_values("score_sd", kind="stable")
    columns = [*dict.fromkeys(scored["column"].dropna()), None]
    rows = {column: row for row, column in enumerate(columns)}
    ax = style.axes_or_new(ax, 6.0, 1.4 + 0.3 * len(columns))
    reach = scored["score_sd"].agg(["min", "max"])
    ax.hlines([*rows.values()], *reach, color=shade(), linewidth=0.8, zorder=0)
    colours = style.colours()
    for k, name in enumerate(of_all["imputer"]):
        own = scored[scored["imputer"] == name]
        at = [rows[None if pd.isna(column) else column] for column in own["column"]]
        look: dict[str, Any] = {"color": colours[k % len(colours)], "label": style.text(name)}
        ax.plot(own["score_sd"], at, style.MARKERS[k % len(style.MARKERS)], **look)
    style.name_ticks(ax, "y", [*rows.values()], [*columns[:-1], "all columns"])
    ax.set_ylim(len(columns) - 0.4, -0.6)
    ax.set_xlabel("energy-I-score in standard deviations (lower is better)")
    style.legend_above(ax)
    return style.tidy(ax)


def plot_fmi(pooled: Pooled, ax: Axes | None = None) -> Axes:
    """Plot the fraction of missing information (fmi) and λ of each coefficient.

    Discs are fmi; squares are λ, the share of the variance that is due to missing cells. fmi also includes
    the uncertainty of the variance between m imputations: if the two are far apart, increase m.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from pyro_mgp import pool
        >>> ax = plot_fmi(pool([(1.2, 0.04), (1.5, 0.05)], names=["x"]), Figure().subplots())
        >>> [line.get_label() for line in ax.lines]
        ['fmi', 'λ']
    """
    result_of("what pool returns", "pooled", pooled, Pooled)
    table = pooled.table
    rows = np.arange(len(table))
    ax = style.axes_or_new(ax, 6.0, 1.4 + 0.28 * len(table))
    ax.hlines(rows, 0, 1, color=shade(), linewidth=0.8, zorder=0)
    ax.hlines(rows, table["lambda"], table["fmi"], color=VERMILION, linewidth=1.5, zorder=1)
    ax.plot(table["fmi"], rows, "o", color=VERMILION, markersize=7, label="fmi")
    ax.plot(table["lambda"], rows, "s", color=blue(), markerfacecolor=paper(), markersize=5, label="λ")
    style.name_ticks(ax, "y", rows, table.index.tolist())
    ax.set(xlim=(0, 1), ylim=(len(table) - 0.4, -0.6))
    ax.set_xlabel(f"share due to missing cells (m = {pooled.m})")
    style.legend_above(ax, "right")
    return style.tidy(ax)
