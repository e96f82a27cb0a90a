"""What was imputed, how, and whether it may be trusted: one HTML page for those who have to judge it.

The page needs nothing but itself (see `page`). Every picture says in words, with figures, what it shows.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pyro_mgp._support.messages import listing
from pyro_mgp.analysis.relevance import relevance
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableCodec, TableWarning, missing
from pyro_mgp.evaluation.calibration import CAVEAT, Calibration, Verdict
from pyro_mgp.evaluation.diagnostics import calibrate
from pyro_mgp.evaluation.missingness import patterns
from pyro_mgp.imputer import FitWarning, MGPImputer
from pyro_mgp.report.page import (
    Html,
    check_replaceable,
    described,
    listed,
    page,
    picture,
    table,
    tag,
    together,
    write,
)
from pyro_mgp.results import summary
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.results.summary import shortened
from pyro_mgp.storage.header import our_version

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Rows up to which every cell is hidden once, which takes as many fits; of larger tables a share is.
MOST_ROWS_FOR_FOLDS = 5_000
FOLDS, SHARE = 5, 0.1
# Draws of an imputer that comes without.
_M = 20
# Columns with pictures of their own; cells of a forest, and columns that have one; patterns.
_MOST_COLUMNS, _CELLS, _FORESTS, _PATTERNS = 24, 20, 3, 12

_PAPER = (
    "Jafrasteh, B., Hernández-Lobato, D., Lubián-López, S. P., & Benavente-Fernández, I. (2023). Gaussian "
    "processes for missing value imputation. Knowledge-Based Systems, 273, 110603."
)
_PAPER_AT = "https://arxiv.org/abs/2204.04648"


@dataclass(frozen=True)
class Subject:
    """What is reported on."""

    draws: Imputations
    """The imputations."""
    imputer: MGPImputer | None = None
    """Where they come from."""
    calibration: Calibration | None = None
    """What hidden cells said."""
    name: str = "a table"
    """Of the table."""
    settings: dict[str, str] = field(default_factory=dict)
    """What was asked for, besides the imputer's settings."""


def write_report(
    given: MGPImputer | Imputations,
    path: str | os.PathLike[str],
    *,
    imputer: MGPImputer | None = None,
    calibration: Calibration | bool = True,
    folds: int | None = None,
    share: float | None = None,
    name: str = "a table",
    settings: dict[str, str] | None = None,
    random_state: int = 0,
    overwrite: bool = False,
    progress: bool = True,
) -> Path:
    """Write a page about imputations: holes, draws, model, calibration, how it was made.

    Args:
        given: Imputations, or a fitted imputer whose 20 draws of its own table are taken.
        path: The HTML file; written whole or not at all. It shows values of cells: keep it as safe as the
            table.
        imputer: Where imputations come from; without it the page says nothing of the model.
        calibration: What `diagnostics.calibrate` gave; True runs it, which fits the imputer again; False
            leaves it out.
        folds: For calibration: hide every cell once, in so many folds. None for 5, unless the table has more
            than 5,000 rows, or `share` is given.
        share: For calibration: hide a share of the observed cells instead.
        name: Of the table, for the title.
        settings: More to be said of how it was made, by name.
        random_state: Seed of the calibration.
        overwrite: Replace a page that this package wrote.
        progress: Show progress bars, on terminals only.

    Returns:
        The path.

    Raises:
        ValueError: The file exists and may not be replaced, or both `folds` and `share` are given.
        TypeError: `given` is neither.
        ImportError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> draws = Imputations(pd.DataFrame({"x": [1.0, 2.0, None]}), {"x": [[0.5], [1.5]]}, m=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = write_report(draws, f"{folder}/report.html", name="three cells")
        ...     "<h1>three cells" in page.read_text("utf-8")
        True
    """
    check_replaceable(Path(path), overwrite)
    if folds is not None and share is not None:
        raise ValueError("folds hide every cell once, share hides some: give one of them")
    if isinstance(given, MGPImputer):
        imputer, draws = given, given.impute(m=_M)
    elif isinstance(given, Imputations):
        draws = given
    else:
        raise TypeError(f"expected Imputations or a fitted MGPImputer, got {type(given).__name__}")
    found = calibration if isinstance(calibration, Calibration) else None
    if calibration is True and imputer is not None and draws.values:
        if folds is None and share is None and len(draws.frame) <= MOST_ROWS_FOR_FOLDS:
            folds = FOLDS
        found = calibrate(
            imputer,
            draws.frame,
            columns=list(draws.values),
            folds=folds,
            share=share or SHARE,
            random_state=random_state,
            progress=progress,
        )
    subject = Subject(draws, imputer, found, name, settings or {})
    return write(path, render(subject), overwrite=overwrite)


def render(subject: Subject) -> str:
    """The page as text."""
    title = f"{subject.name}: multiple imputation"
    parts: list[tuple[str, str, Callable[[Subject], Html | None]]] = [
        ("trust", "May these imputations be trusted?", _trust),
        ("columns", "What was imputed", _columns),
        ("holes", "Where cells are missing", _holes),
        ("values", "Observed and imputed values", _values),
        ("cells", "Some missing cells, one by one", _cells),
        ("informs", "Which column informs which", _informs),
        ("training", "How the model learnt", _training),
        ("warnings", "Warnings", _warnings),
        ("made", "How this was made", _made),
        ("cite", "How to cite", _cite),
    ]
    made = [(anchor, heading, write_section(subject)) for anchor, heading, write_section in parts]
    shown = [(anchor, heading, content) for anchor, heading, content in made if content]
    links = listed(tag("a", heading, href=f"#{anchor}") for anchor, heading, _ in shown)
    head = tag("header", tag("h1", title), _lead(subject), tag("nav", links, aria_label="Sections"))
    sections = [
        tag("section", tag("h2", heading, id=anchor), content, aria_labelledby=anchor)
        for anchor, heading, content in shown
    ]
    return page(title, our_version(), head, *sections)


# ------------------------------------------------------------------------------------------- what and whether


def _lead(subject: Subject) -> Html:
    draws = subject.draws
    n_rows, n_columns = draws.frame.shape
    holes = missing(draws.frame)
    facts = [
        ("Rows", f"{n_rows:,}"),
        ("Columns", f"{n_columns:,}"),
        ("Missing cells", f"{holes.sum():,} ({_share(holes.mean() if holes.size else 0.0)})"),
        ("Incomplete columns", f"{holes.any(0).sum():,}"),
        ("Complete rows", f"{(~holes.any(1)).sum():,}"),
        ("Imputations", f"{draws.m:,}"),
    ]
    return together([described(facts), _verdict(subject)])


def _verdict(subject: Subject) -> Html:
    if subject.calibration is None:
        why = (
            "there is nothing to impute." if not subject.draws.values
            else "no cells were hidden to see whether draws of them hold what they promise."
        )  # fmt: skip
        return tag("p", tag("strong", "Not judged: "), why, class_="verdict")
    verdict, found = subject.calibration.verdict, subject.calibration.table
    neutral = [str(Verdict.WELL), str(Verdict.FEW)]
    wrong = found.loc[~found["verdict"].isin(neutral), "column"].tolist()
    look = {Verdict.WELL: "good", Verdict.FEW: ""}.get(verdict, "bad")
    words = _sentence(subject.calibration.why)
    if wrong and str(verdict) in neutral:
        strong = tag("strong", f"Not well calibrated in {_names(wrong)}. ")
        rest = f"All columns together: {verdict}; {subject.calibration.why}."
        return tag("p", strong, rest, class_="verdict bad")
    return tag("p", tag("strong", _sentence(str(verdict))), " ", words, class_=f"verdict {look}".strip())


def _trust(subject: Subject) -> Html | None:
    calibration = subject.calibration
    if calibration is None:
        if not subject.draws.values or subject.imputer is None:
            return None
        return tag("p", "Calibration was left out of this report.")
    words = tag("p", calibration.words)
    how = tag(
        "p",
        f"{_sentence(calibration.how)} Each was drawn {calibration.m} times. Intervals of a calibrated "
        "imputer hold the share of hidden cells that they promise.",
        class_="dim",
    )
    return together([words, how, _calibration_table(calibration), *_calibration_pictures(calibration)])


def _calibration_table(calibration: Calibration) -> Html:
    names = [f"{100 * level:g}" for level in calibration.levels]
    head = ["Column", "Verdict", "Hidden cells", *(f"In {name} %" for name in names)]
    titles = {
        "RMSE/sd": "rmse_sd",
        "CRPS/sd": "crps_sd",
        "Accuracy": "accuracy",
        "Log score": "log_score",
    }
    extra = [(title, key) for title, key in titles.items() if calibration.table[key].notna().any()]
    rows = calibration.table.to_dict("records")
    if len(rows) > 1:
        rows = [calibration.overall.to_dict() | {"column": "all columns"}, *rows]
    cells = [
        [
            str(row["column"]),
            row["verdict"],
            f"{row['cells']:,}",
            *(f"{100 * row[f'coverage_{name}']:.1f} %" for name in names),
            *(_figure(row[key]) for _, key in extra),
        ]
        for row in rows
    ]
    caption = (
        "Hidden cells within their intervals (of levels: smallest sets), by nominal level; errors in "
        "standard deviations of the column"
    )
    return table(caption, [*head, *(title for title, _ in extra)], cells, left=2)


def _calibration_pictures(calibration: Calibration) -> Iterator[Html]:
    from matplotlib.figure import Figure

    from pyro_mgp.plots import plot_calibration, plot_pit

    def of_all(columns: list[Label], overall: bool, which: str, row: Any) -> Iterator[Html]:
        names = [f"{100 * level:g}" for level in calibration.levels]
        held = ", ".join(f"{100 * row[f'coverage_{name}']:.0f} % at {name} %" for name in names)
        figure = Figure(figsize=(3.6, 3.7), layout="constrained")
        plot_calibration(calibration, columns, overall=overall, figure=figure)
        yield picture(
            figure,
            f"Coverage of {which} against nominal level, with the band of calibrated imputers: {held}. "
            f"Verdict: {row['verdict']}.",
            f"Coverage, {which}: {row['verdict']}. Below the diagonal, intervals are too narrow.",
        )
        figure = Figure(figsize=(3.6, 3.7), layout="constrained")
        plot_pit(calibration, columns, overall=overall, figure=figure)
        mean = "" if math.isnan(row["pit_mean"]) else f" Mean {row['pit_mean']:.2f}, 0.5 if calibrated."
        yield picture(
            figure,
            f"Histogram of where the truth stands among its draws (PIT), {which}, with the band of "
            f"calibrated imputers.{mean}",
            f"Place of the truth among its draws, {which}: flat if calibrated.",
        )

    rows = calibration.table
    if len(rows) > 1:
        yield tag("div", *of_all([], True, "all hidden cells", calibration.overall), class_="pair")
        yield tag("h3", "Column by column")
    pairs = [
        tag("div", *of_all([row["column"]], False, _short(row["column"]), row), class_="pair")
        for _, row in rows.head(_MOST_COLUMNS).iterrows()
    ]
    yield tag("div", *pairs, class_="pairs")


# -------------------------------------------------------------------------------------------------- the table


def _columns(subject: Subject) -> Html:
    draws = subject.draws
    frame, holes = draws.frame, missing(draws.frame)
    compared = summary.summarise(draws)
    kinds = _kinds(subject)
    rows = []
    for label, here in zip(frame.columns, holes.T, strict=True):
        part = compared[[each == label for each in compared["column"]]]
        observed, imputed = _sides(part) if len(part) else ("", "")
        missed = f"{here.sum():,} ({_share(here.mean())})" if here.any() else "none"
        rows.append([str(label), kinds[label], f"{(~here).sum():,}", missed, observed, imputed])
    caption = f"Mean ± sd, or shares of levels; imputed: of all {draws.m} draws of each missing cell"
    head = ["Column", "Kind", "Observed", "Missing", "Observed values", "Imputed values"]
    remark = tag(
        "p",
        "Imputed values need not be distributed as observed ones: cells may be missing more often in some "
        "rows than in others. They should be plausible.",
        class_="dim",
    )
    return together([table(caption, head, rows, left=2), remark])


def _kinds(subject: Subject) -> dict[Label, str]:
    frame = subject.draws.frame
    labels: list[Label] = list(frame.columns)
    if subject.imputer is None:
        return {label: str(frame[label].dtype) for label in labels}
    codec = {column.name: str(column.kind) for column in subject.imputer.codec_.columns}
    specs = subject.imputer.specs or {}
    derived = {label: f"derived: {spec.derived}" for label, spec in specs.items() if spec.derived}
    return {label: derived.get(label) or codec.get(label, "no variable") for label in labels}


def _sides(part: pd.DataFrame) -> tuple[str, str]:
    """Observed and imputed values of one column in words."""
    first = part.iloc[0]
    if part["level"].isna().all():
        places = summary.decimals(first["observed_sd"])
        texts = []
        for side in ("observed", "imputed"):
            moments = first[f"{side}_mean"], first[f"{side}_sd"]
            times = first["unit"] and summary.times(*moments, first["unit"])
            mean, sd = times or [summary.number(moment, places) for moment in moments]
            texts.append(f"{mean} ± {sd}")
        return texts[0], texts[1]
    shown = part.head(4)
    more = ", …" if len(part) > len(shown) else ""
    sides = [
        ", ".join(
            f"{shortened(str(level), 16)} {_share(share, 0)}"
            for level, share in zip(shown["level"], shown[f"{side}_mean"], strict=True)
        )
        for side in ("observed", "imputed")
    ]
    return sides[0] + more, sides[1] + more


def _holes(subject: Subject) -> Html:
    frame, holes = subject.draws.frame, missing(subject.draws.frame)
    if not holes.any():
        return tag("p", "No cell is missing.")
    from pyro_mgp.plots import plot_missingness, plot_patterns

    n_rows, n_columns = frame.shape
    incomplete = [label for label, here in zip(frame.columns, holes.T, strict=True) if here.any()]
    shares = ", ".join(
        f"{_short(label)} {_share(here.mean())}"
        for label, here in zip(frame.columns, holes.T, strict=True)
        if here.any() and label in incomplete[:12]
    )
    figure, ax = _panel(min(12.0, 2.4 + 0.42 * n_columns), 4.4)
    plot_missingness(frame, ax)
    map_ = picture(
        figure,
        f"Map of the table: {holes.sum()} of {holes.size} cells are missing. Missing shares: {shares}"
        f"{' and others' if len(incomplete) > 12 else ''}.",
        "Rows from top to bottom as they stand in the table; a stripe is a missing cell.",
    )
    found = patterns(frame)
    counts = found["rows"].tolist()
    figure, ax = _panel(min(14.0, 3.4 + 0.42 * min(n_columns, 40)), 1.9 + 0.3 * min(len(counts), _PATTERNS))
    plot_patterns(frame, ax, n=_PATTERNS)
    complete = int((~holes.any(1)).sum())
    patterns_ = picture(
        figure,
        f"{len(counts)} patterns of missing cells; the most frequent has {counts[0]} of {n_rows} rows. "
        f"{complete} rows are complete.",
        "Which cells are missing together, and in how many rows.",
    )
    return together([map_, patterns_])


def _values(subject: Subject) -> Html | None:
    draws = subject.draws
    shown = _imputed_columns(draws)
    if not shown:
        return None
    from matplotlib.figure import Figure

    from pyro_mgp.plots import plot_densities

    compared, pictures = summary.summarise(draws), []
    for label in shown[:_MOST_COLUMNS]:
        figure = Figure(figsize=(5.4, 3.7), layout="constrained")
        plot_densities(draws, [label], figure=figure)
        observed, imputed = _sides(compared[[each == label for each in compared["column"]]])
        n = draws.values[label].shape[1]
        alt = f"Distribution of {_short(label)}. Observed: {observed}. Imputed, {n} cells: {imputed}."
        pictures.append(
            picture(figure, alt, f"{_short(label)}: {n} missing {'cell' if n == 1 else 'cells'}.")
        )
    more = len(shown) - _MOST_COLUMNS
    rest = tag("p", f"{more} more incomplete columns are not shown.", class_="dim") if more > 0 else None
    intro = tag(
        "p", "What was observed is blue; what was imputed is vermilion, a curve or circle for each draw."
    )
    return together([intro, tag("div", *pictures, class_="grid"), rest])


def _cells(subject: Subject) -> Html | None:
    draws = subject.draws
    shown = sorted(_imputed_columns(draws), key=lambda label: -draws.values[label].shape[1])[:_FORESTS]
    if not shown:
        return None
    from pyro_mgp.plots import plot_cells

    cells, pictures = draws.cells(), []
    for label in shown:
        own = cells[[each == label for each in cells["column"]]]
        figure, ax = _panel(5.2, 1.6 + 0.22 * min(len(own), _CELLS))
        plot_cells(draws, label, ax, n=_CELLS)
        if own["mean"].notna().any() and own["mode"].isna().all():
            width = (own["q95"] - own["q05"]).median()
            said = f"The median width of their 90 % intervals is {width:.4g}."
        else:
            share = _share(float(own["mode_share"].mean()), 0)
            said = f"The most frequent value of a cell has {share} of its draws, on average."
        alt = f"Draws of {min(len(own), _CELLS)} of {len(own)} missing cells of {_short(label)}. {said}"
        caption = f"{_short(label)}: draws of {'the' if len(own) <= _CELLS else 'some'} missing cells."
        pictures.append(picture(figure, alt, caption))
    return tag("div", *pictures, class_="grid")


# -------------------------------------------------------------------------------------------------- the model


def _informs(subject: Subject) -> Html | None:
    imputer = subject.imputer
    if imputer is None or not imputer.order_:
        return None
    from pyro_mgp.plots import plot_relevance

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        warnings.simplefilter("ignore", FitWarning)
        found = relevance(imputer, subject.draws.frame)
    figure, ax = _panel(min(14.0, 3.6 + 0.5 * found.shape[1]), min(14.0, 2.0 + 0.42 * len(found)))
    plot_relevance(found, ax)
    most = [
        f"{_short(label)} most by {_short(row.idxmax())}"
        for label, row in found.head(12).iterrows()
        if row.notna().any()
    ]
    return picture(
        figure,
        f"How much each column tells about each imputed one: {'; '.join(most)}.",
        "How much the learnt function of a column (row) changes with another one (column), in standard "
        "deviations of both; compare within a row.",
    )


def _training(subject: Subject) -> Html | None:
    imputer = subject.imputer
    if imputer is None or not imputer.history_.loss:
        return None
    from matplotlib.figure import Figure

    from pyro_mgp.plots import plot_loss

    history = imputer.history_
    figure = Figure(figsize=(5.6, 4.4 if history.validation else 3.0), layout="constrained")
    plot_loss(imputer, figure=figure)
    steps, first, last = len(history.loss), history.loss[0], history.loss[-1]
    end = (
        "it stopped when nothing improved" if history.converged else "all steps that were allowed were taken"
    )
    alt = f"Loss over {steps} training steps, from {first:.4g} to {last:.4g} nats; {end}."
    return picture(figure, alt, f"Loss (negative evidence bound) at each step; {end}.")


def _warnings(subject: Subject) -> Html:
    said = _said(subject)
    if not said:
        return tag("p", "None.")
    return listed(said)


def _said(subject: Subject) -> list[str]:
    """What the owner of the table may want to look at."""
    said, draws = [], subject.draws
    if subject.imputer is not None:
        said += _of_the_table(draws.frame, subject.imputer)
    if draws.values and draws.m < 20:
        said.append(
            f"{draws.m} imputations are few: with 20 or more, pooled intervals depend less on chance."
        )
    sparse = [label for label, values in draws.values.items() if values.shape[1] > len(draws.frame) / 2]
    if sparse:
        said.append(f"More than half of the cells of {_names(sparse)} are missing.")
    if subject.calibration is not None:
        rows = subject.calibration.table
        for _, row in rows[~rows["verdict"].isin([str(Verdict.WELL), str(Verdict.FEW)])].iterrows():
            said.append(f"{row['column']!r} is {row['verdict']}: {row['why']}.")
        said += [
            f"{row.column!r} {row.why}: not judged ({row.cells} cells)."
            for row in subject.calibration.left_out.itertuples()
        ]
    elif draws.values:
        said.append("Nobody has looked whether the draws are calibrated.")
    if draws.values:
        said.append(CAVEAT.replace("this says", "calibration says"))
    return said


def _of_the_table(frame: pd.DataFrame, imputer: MGPImputer) -> list[str]:
    """What fitting says of the table, said again."""
    rules = Rules.parse(imputer.specs, frame.columns.tolist())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        modelled = frame if rules.trivial else rules.modelled(rules.deduce(frame))
        TableCodec.fit(modelled, imputer.warp, imputer.discrete_support, rules.modelled_specs)
    return list(dict.fromkeys(str(each.message) for each in told if issubclass(each.category, TableWarning)))


def _made(subject: Subject) -> Html:
    draws, imputer = subject.draws, subject.imputer
    facts = [("Package", f"pyro_mgp {our_version()}"), ("Table", subject.name), *subject.settings.items()]
    parts = []
    if imputer is not None:
        facts.append(("Seed", str(imputer.seed_)))
        changed = _changed(imputer)
        parts.append(tag("p", tag("strong", "Settings that are not the defaults: "), changed or "none", "."))
        if imputer.order_:
            chain = " → ".join(shortened(name, 40) for name in imputer.order_[:60])
            parts.append(tag("p", tag("strong", "Order of the chain: "), chain, "."))
    method = tag(
        "p",
        f"Each of the {draws.m} imputations is drawn from the posterior predictive distribution of a chain "
        "of sparse Gaussian processes: one for each incomplete column, which it predicts from the others, "
        "later ones seeing what earlier ones predict. Analyse every completed table and pool the results by "
        "Rubin's rules.",
    )
    safe = tag("p", "This page shows values of cells: keep it as safe as the table.", class_="dim")
    return together([described(facts), method, *parts, safe])


def _changed(imputer: MGPImputer) -> str:
    """The settings that differ from the defaults, in words."""
    usual = MGPImputer().get_params()
    ignored = {"random_state", "progress", "device"}
    changed = {
        name: value
        for name, value in imputer.get_params().items()
        if name not in ignored and value is not usual[name] and value != usual[name]
    }
    return ", ".join(f"{name}={shortened(repr(value), 300)}" for name, value in changed.items())


def _cite(subject: Subject) -> Html:
    return listed(
        [
            tag("span", _PAPER, " ", tag("a", "arXiv:2204.04648", href=_PAPER_AT)),
            f"pyro_mgp, version {our_version()}: multiple imputation by a chain of sparse Gaussian "
            "processes, in Pyro (software).",
            "Rubin, D. B. (1987). Multiple imputation for nonresponse in surveys. Wiley. (Pooling.)",
        ]
    )


# ------------------------------------------------------------------------------------------------------ words


def _imputed_columns(draws: Imputations) -> list[Label]:
    """Columns of which some cell was drawn in some imputation."""
    return [label for label, values in draws.values.items() if not pd.isna(values).all()]


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _share(share: float, decimals: int = 1) -> str:
    return summary.percent(share, decimals).replace("%", " %")


def _short(label: Any) -> str:
    return shortened(str(label), 40)


def _names(labels: Sequence[Label]) -> str:
    return repr(labels[0]) if len(labels) == 1 else listing(labels, 8)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _figure(x: float) -> str:
    return "" if math.isnan(x) else f"{x:.2f}"
