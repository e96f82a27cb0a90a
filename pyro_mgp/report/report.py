"""The HTML report on imputations: figures, tables and pictures for `template.html`; needs matplotlib.

The page is self-contained, with its pictures inside. The template escapes every value: text from a table
cannot become an element of the page.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from pyro_mgp import plots
from pyro_mgp._support.messages import FitWarning, listing
from pyro_mgp.analysis.relevance import relevance
from pyro_mgp.analysis.variance_shares import variance_shares
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.table import TableCodec, TableWarning, missing
from pyro_mgp.evaluation.calibration import CAVEAT, Calibration, Verdict
from pyro_mgp.evaluation.missingness import patterns
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.results import summary
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.storage import atomic
from pyro_mgp.storage.header import our_version

# Largest numbers of columns with pictures of their own, cells in a picture of cells, such pictures, patterns.
_MOST_COLUMNS, _MOST_CELLS, _MOST_OF_CELLS, _MOST_PATTERNS = 24, 20, 3, 12
# Variables of one part of the page; None if it is left out.
Part = dict[str, Any] | None
# Observed and imputed values of columns as text.
Sides = Mapping[Any, Mapping[str, str]]
_SIDES = ("observed", "imputed")
_GENERATED = b'<meta name="generator" content="pyro_mgp'
# Bytes of an SVG above which a PNG is used if it is smaller, and dots per inch of the PNG.
_LARGEST_SVG, _DPI = 60_000, 160


def write_report(
    draws: Imputations,
    path: Path,
    imputer: MGPImputer,
    calibration: Calibration | None,
    *,
    name: str = "a table",
    settings: Mapping[str, str] | None = None,
) -> None:
    """Write a self-contained HTML page on imputations: missing cells, draws, model, calibration and settings.

    The file is written atomically. It shows values of cells: keep it as safe as the table. `imputer` has
    drawn the imputations, `name` is that of the table, and `settings` are further ones to report, by name.
    """
    imputed = [label for label, values in draws.values.items() if not pd.isna(values).all()]
    compared = summary.summarise(draws).groupby("column", sort=False)
    sides = {label: {side: _side(part, side) for side in _SIDES} for label, part in compared}
    variables = {
        "name": name,
        "settings": settings or {},
        "draws": draws,
        "imputer": imputer,
        "holes": missing(draws.frame),
        "calibration": calibration,
        "verdict": _verdict(draws, calibration),
        "caveat": CAVEAT,
        "trust": _trust(draws, calibration),
        "columns": _columns(draws.frame, imputer, sides),
        "missing_cells": _missing_cells(draws.frame),
        "values": _values(draws, imputed, sides),
        "cells": _cells(draws, imputed),
        "relevance": _relevance(draws, imputer),
        "explained": _explained(draws, imputer),
        "training": _training(imputer),
        "mixing": _mixing(draws),
        "warnings": _warnings(draws, imputer, calibration),
        "made": {"changed": _changed_settings(imputer), "chosen": _chosen_settings(imputer)},
    }
    page = render(variables)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.atomic_file(path) as partial:
        partial.write_text(page, "utf-8")


def _columns(frame: pd.DataFrame, imputer: MGPImputer, sides: Sides) -> list[list[str]]:
    """Return the rows of the table that compares observed and imputed values of each column."""
    rows, none = [], dict.fromkeys(_SIDES, "")
    kinds: dict[Any, str] = dict.fromkeys(frame.columns, "no variable")
    kinds |= {column.name: str(column.kind) for column in imputer.codec_.columns}
    kinds |= {k: f"derived: {s.derived}" for k, s in (imputer.specs or {}).items() if s.derived}
    for label, holes in zip(frame.columns, missing(frame).T, strict=True):
        count = f"{holes.sum():,} ({share_text(holes.mean())})" if holes.any() else "none"
        own = sides.get(label, none).values()
        rows.append([str(label), kinds[label], f"{(~holes).sum():,}", count, *own])
    return rows


def _side(part: pd.DataFrame, side: str) -> str:
    """Format the observed or the imputed values of one column as text."""
    if part["level"].isna().all():
        return " ± ".join(summary.mean_and_sd(part.iloc[0], side))
    pairs = part[["level", f"{side}_mean"]].head(4).to_numpy().tolist()
    shares = [f"{summary.shortened(str(level), 16)} {share_text(share, 0)}" for level, share in pairs]
    return ", ".join(shares) + (", …" if len(part) > len(pairs) else "")


def _missing_cells(frame: pd.DataFrame) -> dict[str, Any]:
    """Plot the missing cells and their patterns."""
    holes = missing(frame)
    if not holes.any():
        return {}
    counts, n_columns = patterns(frame)["rows"].tolist(), frame.shape[1]
    cell_map = _figure(2.4 + 0.42 * n_columns, 4.4)
    of_patterns = _figure(3.4 + 0.42 * min(n_columns, 40), 1.9 + 0.3 * min(len(counts), _MOST_PATTERNS))
    plots.plot_missingness(frame, cell_map.subplots())
    plots.plot_patterns(frame, of_patterns.subplots(), n=_MOST_PATTERNS)
    means = dict(zip(frame.columns, holes.mean(0).tolist(), strict=True))
    shares = [f"{_short(label)} {share_text(mean)}" for label, mean in means.items() if mean]
    return {"map": image(cell_map), "patterns": image(of_patterns), "counts": counts, "shares": shares}


def _verdict(draws: Imputations, calibration: Calibration | None) -> dict[str, str]:
    """Return headline, reason and CSS class of the box that states the calibration verdict."""
    if calibration is None:
        unchecked = "no cells were held out to check whether intervals from the draws contain the true values"
        reason = unchecked if draws.values else "there is nothing to impute"
        return {"headline": "Not judged", "reason": reason, "look": ""}
    verdict, wrong = calibration.verdict, calibration.miscalibrated["column"].tolist()
    if wrong and not verdict.is_bad:
        names = repr(wrong[0]) if len(wrong) == 1 else listing(wrong, 8)
        reason = f"all columns together: {verdict}; {calibration.why}"
        return {"headline": f"Not well calibrated in {names}", "reason": reason, "look": "bad"}
    look = {Verdict.WELL: "good", Verdict.FEW: ""}.get(verdict, "bad")
    return {"headline": str(verdict), "reason": calibration.why, "look": look}


def _trust(draws: Imputations, calibration: Calibration | None) -> Part:
    """Return the contents of the calibration section: a table of figures, and plots."""
    if calibration is None:
        return {} if draws.values else None
    records: list[dict[Any, Any]] = calibration.table.to_dict("records")
    if len(records) > 1:
        records.insert(0, calibration.overall.to_dict())
    table = calibration.shown()
    table.insert(1, "verdict", table.pop("verdict"))
    pairs = [_calibration_pair(calibration, row) for row in records[: _MOST_COLUMNS + 1]]
    return {"head": table.columns.tolist(), "rows": table.to_numpy().tolist(), "pairs": pairs}


def _calibration_pair(calibration: Calibration, row: dict[Any, Any]) -> Part:
    """Plot coverage and PIT of one column, or of all if the column is None, and describe the plots."""
    coverage, pit = _figure(3.6, 3.7), _figure(3.6, 3.7)
    overall = row["column"] is None
    columns = [] if overall else [row["column"]]
    plots.plot_calibration(calibration, columns, overall=overall, figure=coverage)
    plots.plot_pit(calibration, columns, overall=overall, figure=pit)
    name = "all held-out cells" if overall else _short(row["column"])
    levels = [f"{100 * level:g}" for level in calibration.levels]
    shares = ", ".join(f"{100 * row[f'coverage_{level}']:.0f} % at {level} %" for level in levels)
    return row | {"coverage": image(coverage), "pit": image(pit), "name": name, "shares": shares}


def _values(draws: Imputations, labels: list[Label], sides: Sides) -> Part:
    """Plot the distributions of observed and imputed values."""
    shown = []
    for label in labels[:_MOST_COLUMNS]:
        figure, n = _figure(5.4, 3.7), draws.values[label].shape[1]
        plots.plot_densities(draws, [label], figure=figure)
        shown.append({"image": image(figure), "name": _short(label), "n": n, **sides[label]})
    return {"columns": shown, "n_more": len(labels) - len(shown)} if shown else None


def _cells(draws: Imputations, labels: list[Label]) -> list[dict[str, Any]] | None:
    """Plot individual missing cells of the columns that have the most of them."""
    cells, shown = draws.cells().groupby("column"), []
    by_count = sorted(labels, key=lambda label: -draws.values[label].shape[1])
    for label in by_count[:_MOST_OF_CELLS]:
        own = cells.get_group(label)
        n_shown = min(len(own), _MOST_CELLS)
        figure = _figure(5.2, 1.6 + 0.22 * n_shown)
        plots.plot_cells(draws, label, figure.subplots(), n=_MOST_CELLS)
        if own["mean"].notna().any() and own["mode"].isna().all():
            width = (own["q95"] - own["q05"]).median()
            finding = f"The median width of their 90 % intervals is {width:.4g}."
        else:
            share = share_text(float(own["mode_share"].mean()), 0)
            finding = f"The most frequent value of a cell makes up {share} of its draws, on average."
        about = {"name": _short(label), "finding": finding, "n": len(own), "n_shown": n_shown}
        shown.append(about | {"image": image(figure)})
    return shown or None


def _relevance(draws: Imputations, imputer: MGPImputer) -> Part:
    """Plot the relevance of each column as a predictor of the others."""
    if not imputer.order_:
        return None
    found = _quietly(relevance, draws, imputer)
    figure = _figure(3.6 + 0.5 * found.shape[1], 2.0 + 0.42 * len(found))
    plots.plot_relevance(found, figure.subplots())
    best = found.head(12).dropna(how="all").idxmax(axis=1)
    strongest = [f"{_short(label)} most by {_short(source)}" for label, source in best.items()]
    return {"image": image(figure), "strongest": strongest}


def _explained(draws: Imputations, imputer: MGPImputer) -> Part:
    """Plot what parts of each column's link explain of its variance."""
    if not imputer.order_:
        return None
    found = _quietly(variance_shares, draws, imputer)
    figure = _figure(6.0, 1.4 + 0.3 * len(found))
    plots.plot_variance_shares(found, figure.subplots())
    most = found.dropna().head(12).idxmax(axis=1)
    return {"image": image(figure), "most": [f"{_short(label)}: {part}" for label, part in most.items()]}


def _quietly(describe: Callable[..., pd.DataFrame], draws: Imputations, imputer: MGPImputer) -> pd.DataFrame:
    """Describe an imputer at the rows of the table, without warnings that the fit has given before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        warnings.simplefilter("ignore", FitWarning)
        return describe(imputer, draws.frame)


def _training(imputer: MGPImputer) -> Part:
    """Plot the training loss, and return it as an image."""
    if not imputer.history_.loss:
        return None
    figure = _figure(5.6, 4.4 if imputer.history_.validation else 3.0)
    plots.plot_loss(imputer, figure=figure)
    return image(figure)


def _mixing(draws: Imputations) -> Part:
    """Return the table of R-hat and effective sample sizes, and what they say."""
    mixing = draws.mixing
    if mixing is None:
        return None
    rows = [
        [
            _short(label),
            "slow" if label in mixing.slow else "well",
            *(f"{x:.{0 if x > 99 else 2}f}" for x in own),
        ]
        for label, *own in mixing.table.to_numpy().tolist()
    ]
    return {"rows": rows, "words": mixing.words}


def _warnings(draws: Imputations, imputer: MGPImputer, calibration: Calibration | None) -> Part:
    """Collect warnings of fitting, of chains, of columns that are mostly missing, and of calibration."""
    half = len(draws.frame) / 2
    return {
        "table": _table_warnings(draws.frame, imputer),
        "slow": [] if draws.mixing is None else [_short(label) for label in draws.mixing.slow],
        "sparse": [_short(label) for label, values in draws.values.items() if values.shape[1] > half],
        "miscalibrated": [] if calibration is None else calibration.miscalibrated.to_dict("records"),
        "not_judged": [] if calibration is None else calibration.left_out.to_dict("records"),
    }


def _table_warnings(frame: pd.DataFrame, imputer: MGPImputer) -> list[str]:
    """Return the warnings that fitting gives about the table."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rules = imputer.rules(frame.columns.tolist()).learn(frame)
        given = imputer.warp, imputer.discrete_support, rules.modelled_specs, rules.limits(frame)
        modelled = rules.modelled(frame)
        TableCodec.fit(modelled, *given)
        imputer.codec_.warn_of_atoms(modelled, rules.modelled_specs)
    found = (str(each.message) for each in caught if issubclass(each.category, TableWarning))
    return list(dict.fromkeys(found))


def _changed_settings(imputer: MGPImputer) -> str:
    """List the settings that differ from the defaults."""
    defaults = MGPImputer().get_params()
    ours = {k: v for k, v in imputer.get_params().items() if k not in ("random_state", "progress", "device")}
    changed = {k: v for k, v in ours.items() if v is not defaults[k] and v != defaults[k]}
    return ", ".join(f"{name}={summary.shortened(repr(value), 300)}" for name, value in changed.items())


def _chosen_settings(imputer: MGPImputer) -> list[list[str]]:
    """Return the rows of the table of settings that were left to the fit, with the reason for each."""
    return [list(map(str, row)) for row in imputer.settings_.to_frame().itertuples()]


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(min(width, 14.0), min(height, 14.0)), layout="constrained")


def _short(label: Any) -> str:
    return summary.shortened(str(label), 40)


def image(figure: Figure) -> dict[str, Any]:
    """Convert a figure to an SVG image, or to a PNG image if the SVG is large and the PNG smaller.

    `source` is a data URL; `width` and `height` are in inches.
    """
    # A fixed salt and no dates: equal figures give equal bytes.
    with mpl.rc_context({"svg.hashsalt": "pyro_mgp", "svg.fonttype": "path"}):
        content, kind = _saved(figure, "svg", metadata={"Date": None, "Creator": None}), "svg+xml"
    if len(content) > _LARGEST_SVG:
        png = _saved(figure, "png", dpi=_DPI, metadata={"Software": None})
        content, kind = min((content, kind), (png, "png"), key=lambda pair: len(pair[0]))
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return {"source": source, "width": figure.get_figwidth(), "height": figure.get_figheight()}


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, facecolor="white", **options)
    return stream.getvalue()


def share_text(x: float, decimals: int = 1) -> str:
    """Return a share as text, such as "12.5 %"."""
    return summary.percent(x, decimals).replace("%", " %")


def render(variables: Mapping[str, object]) -> str:
    """Render `template.html` with the values of its variables, and return the HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["share"] = share_text
    template = resources.files(__package__).joinpath("template.html").read_text("utf-8")
    return environment.from_string(template).render(variables, version=our_version())


def check_replaceable(path: Path, overwrite: bool) -> None:
    """Raise a ValueError if `path` is a folder, or a file that may not be replaced by a page."""
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, expected a file to write the page into")
    atomic.check_replaceable(path, overwrite, lambda page: _GENERATED in page.read_bytes()[:1_000])
