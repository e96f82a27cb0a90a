"""The report: complete, self-contained, open about missing calibration, and safe whatever the table holds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, Imputations, MGPImputer, cli
from pyro_mgp.evaluation.calibration import CAVEAT, Calibration
from pyro_mgp.evaluation.diagnostics import calibrate
from pyro_mgp.report.report import write_report
from pyro_mgp.results.mixing import Mixing
from tests.report.test_page import Reader

EVIL = "<script>alert('x')</script>"
IMAGE = '"><img src=x onerror=alert(1)> & $x$'


def small(**changes: Any) -> MGPImputer:
    quick = {"max_steps": 2, "n_sweeps": 1, "n_neighbors": 0, "progress": False, "random_state": 3}
    return MGPImputer(**{**quick, **changes})


def hostile(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    frame = pd.DataFrame({EVIL: x + rng.normal(size=n), IMAGE: np.where(x > 0, EVIL, "<b>"), 7: x})
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, n), unit="D")
    frame.loc[frame.index[::6], EVIL] = np.nan
    frame.loc[frame.index[1::9], IMAGE] = None
    frame.loc[frame.index[2::20], "day"] = pd.NaT
    frame.index = pd.Index([f"<i>{i}" for i in range(n)])
    return frame


def check(text: str) -> Reader:
    """Check that a page is well-formed, self-contained and accessible."""
    assert text.startswith("<!DOCTYPE html>\n")
    read = Reader(text.removeprefix("<!DOCTYPE html>\n"))
    elements = read.found
    names = [name for name, _ in elements]
    assert elements[0] == ("html", {"lang": "en"})
    for once in ("head", "title", "body", "main", "h1", "style"):
        assert names.count(once) == 1, once
    assert not {"script", "link", "iframe", "object", "b", "i"} & set(names)
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids))
    for name, attributes in elements:
        assert not [key for key in attributes if key.startswith("on")]
        for key in ("src", "href", "action", "data", "srcset", "background"):
            value = attributes.get(key)
            if value is None:
                continue
            is_link = name == "a" and (value.startswith("#") or value == "https://arxiv.org/abs/2204.04648")
            assert is_link or value.startswith("data:image/"), (name, key, value[:60])
            if value.startswith("#"):
                assert value[1:] in ids
        if name == "img":
            assert len(attributes["alt"] or "") > 30
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    levels = [int(name[1]) for name in names if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1 and max(np.diff(levels)) <= 1
    return read


def headings(text: str) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", text)


@pytest.fixture(scope="module")
def fitted() -> tuple[MGPImputer, Imputations, Calibration]:
    imputer = small().fit(hostile())
    return imputer, imputer.impute(m=4), calibrate(imputer, hostile(), folds=3, m=20, levels=[0.5, 0.9])


def report(
    draws: Imputations,
    path: Path,
    imputer: MGPImputer,
    calibration: Calibration | None = None,
    **options: Any,
) -> str:
    """Write a report, and return its page."""
    write_report(draws, path, imputer, calibration, **options)
    return path.read_text("utf-8")


def test_a_report_is_complete(tmp_path: Path, fitted: tuple[MGPImputer, Imputations, Calibration]) -> None:
    imputer, draws, calibration = fitted
    asked = {"name": EVIL, "settings": {"Asked": IMAGE}}
    text = report(draws, tmp_path / "r.html", imputer, calibration, **asked)
    read = check(text)
    assert headings(text) == [
        "May these imputations be trusted?",
        "What was imputed",
        "Where cells are missing",
        "Observed and imputed values",
        "Some missing cells, one by one",
        "Which column informs which",
        "What predictions rely on",
        "How the model learnt",
        "Whether the chains mixed",
        "Warnings",
        "How this was made",
        "How to cite",
    ]
    for words in (
        EVIL,
        IMAGE,
        calibration.words,
        CAVEAT.split(":")[0],
        "4 imputations are few",
        "max_steps=2",
        "2204.04648",
        f"{100 * calibration.overall['coverage_90']:.1f}",
        f"{int(draws.frame[EVIL].isna().sum())} (16.7 %)",
    ):
        assert words in read.text, words
    alts = " ".join(a["alt"] or "" for name, a in read.found if name == "img")
    assert f"{100 * calibration.overall['coverage_50']:.0f} % at 50 %" in alts
    assert f"Loss over {len(imputer.history_.loss)} training steps" in alts
    chosen = " ".join(read.text.split())
    for name, value, reason in imputer.settings_.to_frame().itertuples():
        assert f"{name} {value} {reason}" in chosen


def test_a_report_says_whether_the_chains_mixed(tmp_path: Path) -> None:
    names = ["column", "rhat_mean", "rhat_sd", "ess_mean", "ess_sd", "rhat_cell", "cells_above"]
    table = pd.DataFrame(
        [[EVIL, 2.134, np.nan, 41.3, np.nan, np.inf, 0.4], [7, 1.004, 1.01, 990.0, 870.0, 1.2, 0.0]],
        columns=names,
    )
    frame = pd.DataFrame({EVIL: [1.0, None, 5.0], 7: [None, 2.0, 4.0]})
    values = {EVIL: [[2.0]] * 2, 7: [[1.0]] * 2}
    imputer = small().fit(frame.fillna(3.0))
    slow = [
        "mix slowly in columns",
        "other: fit with n_sweeps=89 or more. Missing cells are",
        "slow 2.13 nan 41.30 nan inf 0.40",
        "mix slowly in: <script",
    ]
    well = ["The chains mix well", "7 well 1.00 1.01 990 870 1.20 0.00"]
    for own, words in ((table, slow), (table[1:], well)):
        draws = Imputations(frame, values, 2, mixing=Mixing(own, 20, 50, 10))
        read = check(report(draws, tmp_path / "r.html", imputer))
        for each in words:
            assert each in " ".join(read.text.split()), each
    without = report(Imputations(frame, values, 2), tmp_path / "r.html", imputer)
    assert "Whether the chains mixed" not in without


def test_a_report_without_calibration_states_that_it_is_missing(
    tmp_path: Path, fitted: tuple[MGPImputer, Imputations, Calibration]
) -> None:
    text = report(fitted[1], tmp_path / "r.html", fitted[0])
    read = check(text)
    assert "Not judged. No cells were held out" in read.text
    assert "The calibration of the draws was not checked." in read.text
    assert "Calibration was left out of this report." in read.text
    assert report(fitted[1], tmp_path / "again.html", fitted[0]) == text


def test_specs_and_warnings_of_fitting_are_reported(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0) ** 2, "one": 1.0})
    frame["total"] = frame["a"] + frame["b"]
    frame.loc[::7, ["b", "total", "one"]] = np.nan
    specs = {"total": ColumnSpec(derived="a + b")}
    with pytest.warns(UserWarning, match="constant"):
        imputer = small(specs=specs).fit(frame)
    text = report(imputer.impute(m=20), tmp_path / "r.html", imputer)
    read = check(text)
    assert "derived: a + b" in read.text
    assert "Column 'one' is constant where it is observed" in read.text
    assert "Calibration was left out of this report." in read.text


def test_a_table_without_missing_cells_has_a_report(tmp_path: Path) -> None:
    frame = hostile().dropna()
    text = report(Imputations(frame, {}, m=2), tmp_path / "r.html", small().fit(frame))
    read = check(text)
    assert "There is nothing to impute" in read.text
    assert "No cell is missing." in read.text


# -------------------------------------------------------------------------------------- on the command line


@pytest.fixture
def out(tmp_path: Path) -> Path:
    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.sin(np.arange(40.0)), "name": "Ann <Lee>"})
    frame.loc[::5, "y"] = np.nan
    frame.to_csv(tmp_path / "t&t.csv", index=False)
    argv = ["impute", str(tmp_path / "t&t.csv"), "-o", str(tmp_path / "out"), "-m", "3", "--steps", "2"]
    assert cli.main([*argv, "--drop", "name", "--quiet", "--seed", "5"]) == 0
    return tmp_path / "out"


def test_the_command_writes_a_report_into_the_folder(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["report", str(out), "--share", "30"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"written     {out / 'report.html'}\n"
    assert captured.err == ""
    read = check((out / "report.html").read_text("utf-8"))
    assert "t&t.csv: multiple imputation" in read.text
    assert "Columns left outname" in read.text
    assert "Seed5" in read.text
    assert "30 % of the observed cells, fitted without them" in read.text
    assert "Imputations3" in read.text
    assert "Not judged" not in read.text
    # A folder with its report is still one that a new run may replace.
    table = str(out.parent / "t&t.csv")
    assert (
        cli.main(["impute", table, "-o", str(out), "-m", "2", "--steps", "1", "--quiet", "--overwrite"]) == 0
    )
    assert not (out / "report.html").exists()


def test_the_command_overwrites_its_own_pages_only(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = out.parent / "page.html"
    quiet = ["report", str(out), "-o", str(page), "--no-calibration", "--quiet"]
    assert cli.main(quiet) == 0
    assert capsys.readouterr().out == ""
    assert "Calibration was left out" in page.read_text("utf-8")
    assert cli.main(quiet) == 2
    assert "exists already: choose another path, or pass --overwrite" in capsys.readouterr().err
    assert cli.main([*quiet, "--overwrite"]) == 0
    page.write_text("mine")
    assert cli.main([*quiet, "--overwrite"]) == 2
    assert "was not written by pyro_mgp" in capsys.readouterr().err
    assert page.read_text() == "mine"


def test_a_page_that_appears_during_the_calibration_stays(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = out / "report.html"
    monkeypatch.setattr(
        "pyro_mgp.cli.report.calibrate", lambda *_, **how: page.write_text(f"mine {how['folds']}")
    )
    assert cli.main(["report", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert page.read_text() == "mine 5"


@pytest.mark.parametrize(("flags", "inputs"), [([], "earlier"), (["--search"], "auto")])
def test_fits_of_the_calibration_keep_the_choices_of_the_imputer(
    out: Path, flags: list[str], inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[MGPImputer, dict[str, Any]]]()

    def record(imputer: MGPImputer, *_: object, **how: Any) -> None:
        seen.append((imputer, how))

    monkeypatch.setattr("pyro_mgp.cli.report.calibrate", record)
    assert cli.main(["report", str(out), "--folds", "3", "--jobs", "2", *flags]) == 0
    [(imputer, how)] = seen
    assert imputer.inputs == inputs
    assert (how["folds"], how["n_jobs"], how["m"]) == (3, 2, 40)
    assert not imputer.progress  # bars of several processes would overwrite each other


def test_without_matplotlib_the_error_names_what_to_install(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    assert cli.main(["report", str(out)]) == 2
    assert "need matplotlib: pip install 'pyro_mgp[plots]'" in capsys.readouterr().err


def test_errors_are_one_line(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in [
        ([str(out.parent)], "was not written by `pyro-mgp impute`"),
        ([str(out / "nowhere")], "was not written by `pyro-mgp impute`"),
        ([str(out / "draws")], "expected 'pyro_mgp.impute'"),
        ([str(out), "--share", "51"], "--share must be at most 50 per cent, got 51"),
    ]:
        assert cli.main(["report", *argv]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.startswith("pyro-mgp: error: ") and err.count("\n") == 1
    assert not (out / "report.html").exists()
    for argv in (["--share", "10", "--folds", "3"], ["--folds", "1"]):
        with pytest.raises(SystemExit):
            cli.main(["report", str(out), *argv])
