"""`pyro-mgp impute`: tables in, completed tables out, one sentence for every error, nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, Imputations, MGPImputer, cli
from pyro_mgp.imputer import FitWarning
from pyro_mgp.results import files
from pyro_mgp.storage.atomic import move_into_place

CSV = """\
name,height,n,seen,site,note
Ann,1.50,7,TRUE,007,"a, ""b"" c"
Bob,,8,,008,
Cid,2e0,NA,FALSE,007,x
Dan,1.75,9,TRUE,nan,x
Eve,1.80,11,FALSE,008,y
Fay,+1.9,10,TRUE,007,y
"""
QUICK = ("-m", "3", "--steps", "2", "--drop", "name", "note")


def run(*argv: object) -> int:
    return cli.main(["impute", *map(str, argv)])


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "table.csv"
    path.parent.mkdir()
    path.write_text(CSV, "utf-8")
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run, for tests that only look."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "table.csv").write_text(CSV, "utf-8")
    assert run(folder / "table.csv", "-o", folder / "out", *QUICK, "--quiet") == 0
    return folder / "out"


def error_of(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """The sentence of a run that must fail with status 2, and with one line only."""
    capsys.readouterr()
    assert run(*argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pyro-mgp: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("pyro-mgp: error: ").rstrip("\n")


def assert_same_files(out: Path, expected: Path) -> None:
    files = [path.relative_to(expected) for path in expected.rglob("*") if path.is_file()]
    assert sorted(files) == sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    assert len(files) == 12
    for file in files:
        if file != Path("imputer/header.json"):  # it keeps how many seconds training took
            assert (out / file).read_bytes() == (expected / file).read_bytes(), file


# ------------------------------------------------------------------------------------------ what is written


def test_everything_promised_is_written(done: Path) -> None:
    tables = ["imputation_01.csv", "imputation_02.csv", "imputation_03.csv"]
    assert sorted(entry.name for entry in done.iterdir()) == sorted(
        [*tables, "cells.csv", "summary.csv", "draws", "imputer", "header.json", "run.json"]
    )
    assert [entry.name for entry in done.parent.iterdir() if entry.name.startswith(".")] == []
    draws = Imputations.load(done / "draws")
    assert draws.m == 3 and list(draws.values) == ["height", "n", "seen", "site"]
    assert len(pd.read_csv(done / "cells.csv")) == 4
    assert MGPImputer.load(done / "imputer").impute(draws.frame, m=3) == draws
    assert json.loads((done / "header.json").read_text())["run"]["dropped"] == ["name", "note"]


def test_observed_cells_leave_letter_by_letter(done: Path) -> None:
    came = CSV.splitlines()
    for path in sorted(done.glob("imputation_*.csv")):
        left = lines(path)
        assert [left[i] for i in (0, 1, 5, 6)] == [came[i] for i in (0, 1, 5, 6)]
        bob, cid, dan = (left[i].split(",") for i in (2, 3, 4))
        assert bob[0] == "Bob" and bob[2] == "8" and bob[4:] == ["008", ""]
        assert float(bob[1]) and bob[3] in ("TRUE", "FALSE")
        assert cid[:2] == ["Cid", "2e0"] and cid[2].lstrip("-").isdigit() and cid[3:] == ["FALSE", "007", "x"]
        assert dan[:4] == ["Dan", "1.75", "9", "TRUE"] and dan[4] in ("007", "008")


def test_completed_text_means_what_the_draws_say(done: Path) -> None:
    draws = Imputations.load(done / "draws")
    for j, path in enumerate(sorted(done.glob("imputation_*.csv"))):
        again = files.read_table(path).frame[draws.frame.columns.tolist()]
        pd.testing.assert_frame_equal(again, draws[j], check_exact=True)


def test_the_same_seed_gives_the_same_files_and_another_seed_others(table: Path, done: Path) -> None:
    again, other = table.parent / "again", table.parent / "other"
    assert run(table, "-o", again, *QUICK, "--quiet") == 0
    assert run(table, "-o", other, *QUICK, "--quiet", "--seed", 1) == 0
    assert_same_files(again, done)
    assert (other / "imputation_01.csv").read_bytes() != (done / "imputation_01.csv").read_bytes()


@pytest.mark.parametrize("format", ["csv", "tsv", "parquet"])
def test_format_changes_the_form_of_the_tables(table: Path, format: str) -> None:
    out = table.parent / "out"
    assert run(table, "-o", out, *QUICK, "--quiet", "--format", format) == 0
    path = out / f"imputation_02.{format}"
    completed = files.read_table(path).frame
    assert completed.columns.tolist() == ["name", "height", "n", "seen", "site", "note"]
    assert completed.isna().sum().tolist() == [0, 0, 0, 0, 0, 1]
    dtypes = ["string", "Float64", "Int64", "boolean", "string", "string"]
    assert completed.dtypes.astype(str).tolist() == dtypes


def test_parquet_comes_back_as_parquet_with_its_dtypes_and_index(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "x": np.array([1.5, np.nan, 2.5, 3.5], dtype=np.float32),
            "kind": pd.Categorical(["b", "a", None, "b"], categories=["b", "a", "unused"]),
            "day": pd.to_datetime(["2020-01-01"] * 3 + [None]),
            "n": pd.array([1, 2, None, 4], dtype="Int16"),
        },
        index=pd.Index(["r", "s", "t", "u"], name="row"),
    )
    frame.to_parquet(tmp_path / "t.parquet")
    out = tmp_path / "out"
    assert run(tmp_path / "t.parquet", "-o", out, "-m", 1, "--steps", 2, "--drop", "day", "--quiet") == 0
    completed = pd.read_parquet(out / "imputation_01.parquet")
    assert completed.isna().sum().tolist() == [0, 0, 1, 0]
    holes = frame.isna()
    pd.testing.assert_frame_equal(completed.mask(holes), frame.mask(holes), check_exact=True)
    assert completed.dtypes.tolist() == frame.dtypes.tolist()


def test_a_table_without_holes_says_so_and_comes_back_as_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "a,b\n1.50,2\n2.5,07\n3.5,04\n"
    (tmp_path / "t.csv").write_text(content)
    assert run(tmp_path / "t.csv", "-o", tmp_path / "new" / "out", "-m", 1) == 0
    assert (tmp_path / "new" / "out" / "imputation_01.csv").read_text() == content
    shown = capsys.readouterr().out
    assert "3 rows, 2 columns; no cell is missing" in shown
    assert "Nothing to impute" in shown


# ------------------------------------------------------------------------------------------------ reading


def test_marks_of_missing_cells_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,-999\n2,5\n3,.\n4,8\n")
    argv = (tmp_path / "t.csv", "-o", tmp_path / "o", "-m", 1, "--steps", 2, "--quiet")
    assert run(*argv, "--missing", "-999", ".") == 0
    assert pd.read_csv(tmp_path / "o" / "cells.csv")["row"].tolist() == [0, 2]


def test_a_first_column_without_a_name_labels_the_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",a,b\nr1,1,2\nr2,,3\nr3,2,5\n")
    assert run(tmp_path / "t.csv", "-o", tmp_path / "out", "-m", 1, "--steps", 2, "--quiet") == 0
    cells = pd.read_csv(tmp_path / "out" / "cells.csv")
    assert cells[["row", "column"]].to_numpy().tolist() == [["r2", "a"]]
    completed = lines(tmp_path / "out" / "imputation_01.csv")
    assert completed[:2] == [",a,b", "r1,1,2"] and completed[2].startswith("r2,")


def test_a_column_that_counts_the_rows_is_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("id,a,b\n1,1,2\n2,,3\n3,2,5\n")
    argv = (tmp_path / "t.csv", "-m", 1, "--steps", 2, "--quiet", "-o")
    assert run(*argv, tmp_path / "out") == 0
    assert "column 'id' counts the rows" in capsys.readouterr().err
    assert run(*argv, tmp_path / "out2", "--drop", "id") == 0
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty: expected a header"),
        (b"\n\n", "is empty: expected a header"),
        (b"a,b\n", "at least two rows, got no rows"),
        (b"a,b\n1,2\n3,4,5\n", "line 3: expected 2 fields, one per name in the header, got 3"),
        (b'a,b\n"1\n1",2\n3\n', "line 4: expected 2 fields, one per name in the header, got 1"),
        (b'a,b\n1,2\n"3,4\n', "line 3: unexpected end of data"),
        (b"a,b\n1,2\n\xe9,3\n", "is not UTF-8 text: line 3 holds the byte 0xe9"),
        (b"a,b\n1,\x002\n", "is not a text file: line 2 holds a zero byte"),
        (b"a;b\n1;2\n", "separated by semicolons"),
        (b"a\tb\n1\t2\n", "separated by tabs: expected ','"),
        (b'"a,b"\n1\n2\n', "only one column"),
        (b"a,b\n1,1\n1,\n", "there is nothing to learn. Fill their missing cells with that value."),
        (b"a,a\n1,2\n", "names 'a' more than once"),
        (b"a,b,\n1,2,\n", "column 3 has no name"),
        (b"a,b\n1,\n2,\n", "Column 'b' is entirely missing"),
        (b"a,b\n1,2\n2,inf\n3,\n", "Correct the cell, or leave it empty."),
        (b"a\n1\n2\n", "only one column"),
    ],
)
def test_csv_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, sentence: str
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert sentence in error_of(capsys, tmp_path / "t.csv", "-o", tmp_path / "out", "--steps", 2)
    assert os.listdir(tmp_path) == ["t.csv"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("absent.csv", "there is no file"),
        ("folder.csv", "is a folder"),
        ("t.xlsx", "expected a file that ends in .csv, .tsv, .parquet"),
        ("t.parquet", "cannot be read as Parquet, or is damaged"),
        ("t.csv.gz", "is not a gzip file"),
    ],
)
def test_files_that_are_no_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    for junk in ("t.xlsx", "t.parquet", "t.csv.gz"):
        (tmp_path / junk).write_bytes(b"PK\x03\x04junk")
    assert sentence in error_of(capsys, tmp_path / name, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_may_not_be_read(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    sentence = error_of(capsys, table, "-o", table.parent / "out")
    assert sentence == f"cannot read or write {str(table)!r}: Permission denied"


def test_dropping_an_unknown_column(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = error_of(capsys, table, "-o", table.parent / "out", "--drop", "age")
    assert sentence == "--drop: there is no column 'age'; the table has name, height, n, seen, site, note"


def test_cuda_where_there_is_none(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    sentence = error_of(capsys, table, "-o", table.parent / "out", "--device", "cuda")
    assert "PyTorch finds no CUDA GPU" in sentence


# --------------------------------------------------------------------------------- nothing is left behind


def stop_with(error: BaseException) -> Callable[..., None]:
    def stop(*args: object, **settings: object) -> None:
        raise error

    return stop


@pytest.mark.parametrize("where", ["imputer.MGPImputer.fit", "imputer.MGPImputer.save"])
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("not\nthis"), 2, "pyro-mgp: error: not this\n"),
        (OSError(28, "No space left", "x"), 2, "pyro-mgp: error: cannot read or write 'x': No space left\n"),
        (FloatingPointError("no longer finite"), 2, "pyro-mgp: error: no longer finite\n"),
        (KeyboardInterrupt(), 130, "pyro-mgp: interrupted, nothing was written\n"),
    ],
)
def test_a_failure_leaves_nothing_behind(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    where: str, error: BaseException, status: int, said: str,
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(f"pyro_mgp.{where}", stop_with(error))
        assert run(table, "-o", table.parent / "out", *QUICK) == status
    captured = capsys.readouterr()
    assert captured.err.endswith(said) and captured.out == ""
    assert os.listdir(table.parent) == ["table.csv"]


KEPT = "finished work is kept: the same command with --resume continues from it"


@pytest.mark.parametrize(
    "where", ["imputer.MGPImputer.impute", "results.files.write_tables", "storage.atomic.move_into_place"]
)
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ((OSError, 5, "Input/output error"), 2, "error: cannot read or write '{out}': Input/output error; "),
        ((OSError, 28, "No space left", "x"), 2, "error: cannot read or write 'x': No space left; "),
        ((OSError, "several workers died"), 2, "error: several workers died; "),
        ((KeyboardInterrupt,), 130, "interrupted, "),
    ],
)
@pytest.mark.slow
def test_what_was_done_before_a_failure_is_kept_and_gone_on_with(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    where: str, error: tuple[Any, ...], status: int, said: str,
) -> None:  # fmt: skip
    out = table.parent / "out"
    stop = stop_with(error[0](*error[1:]))
    with monkeypatch.context() as patch:
        if where == "storage.atomic.move_into_place":  # the last one, of the whole folder
            become = move_into_place
            patch.setattr(
                "pyro_mgp.storage.atomic.move_into_place",
                lambda part, to, **more: (stop if to.name == "out" else become)(part, to, **more),
            )
        else:
            patch.setattr(f"pyro_mgp.{where}", stop)
        assert run(table, "-o", out, *QUICK) == status
    assert capsys.readouterr().err == f"pyro-mgp: {said.format(out=out)}{KEPT}\n"
    assert sorted(os.listdir(table.parent)) == [".out.partial", "table.csv"]
    monkeypatch.setattr("pyro_mgp.imputer.MGPImputer.fit", stop_with(AssertionError("fitted already")))
    assert run(table, "-o", out, *QUICK, "--resume", "--quiet") == 0
    assert "note: resuming the earlier run in" in capsys.readouterr().err
    assert_same_files(out, done)
    assert sorted(os.listdir(table.parent)) == ["out", "table.csv"]


def test_a_fault_of_the_program_is_not_hidden(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_mgp.imputer.MGPImputer.fit", stop_with(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run(table, "-o", table.parent / "out", *QUICK)
    assert os.listdir(table.parent) == ["table.csv"]


# ---------------------------------------------------------------------------------------------- the folder


def test_a_folder_that_exists_is_refused_before_any_work(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_mgp.results.files.read_table", stop_with(AssertionError("too late")))
    sentence = error_of(capsys, table, "-o", table.parent)
    advice = "choose another path, or pass --overwrite"
    assert sentence == f"{str(table.parent)!r} exists already: {advice}"
    assert "was not written by pyro_mgp" in error_of(capsys, table, "-o", table.parent, "--overwrite")
    assert "is a file, expected a folder" in error_of(capsys, table, "-o", table, "--overwrite")
    assert "is a file, not a folder" in error_of(capsys, table, "-o", table / "a" / "b")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "no permission to write into" in error_of(capsys, table, "-o", table.parent / "out")
    assert lines(table) == CSV.splitlines()


def test_overwrite_replaces_what_an_earlier_run_wrote_and_nothing_else(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = table.parent / "out"
    out.mkdir()
    argv = (table, "-o", out, *QUICK, "--quiet", "--overwrite")
    assert run(*argv) == 0  # an empty folder
    assert run(*argv, "-m", 2) == 0
    assert len(list(out.glob("imputation_*"))) == 2
    (out / "analysis.R").write_text("mine")
    assert "also holds 'analysis.R'" in error_of(capsys, *argv)
    assert (out / "analysis.R").read_text() == "mine"
    (out / "analysis.R").unlink()
    (out / "header.json").write_text("{}")
    assert "was not written by pyro_mgp" in error_of(capsys, *argv)
    (out / "header.json").write_text('{"format": "pyro_mgp.impute"}')  # lists no files
    assert "also holds 'cells.csv'" in error_of(capsys, *argv)
    for broken in ('"files": 5', '"files": null', '"checksums": null'):
        (out / "header.json").write_text(f'{{"format": "pyro_mgp.impute", {broken}}}')
        assert "has a damaged header.json" in error_of(capsys, *argv)
    assert (out / "imputation_01.csv").exists()


# ------------------------------------------------------------------------------------------------ the screen


def test_what_the_screen_shows(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.parent / "out"
    assert run(table, "-o", out, *QUICK) == 0
    captured = capsys.readouterr()
    shown = captured.out.splitlines()
    assert captured.err == ""
    assert shown[0] == f"{table}: 6 rows, 4 columns; 4 missing cells (16.7%) in 4 columns"
    assert shown[1] == "left out    name, note (1 missing cell left missing)"
    assert shown[3].split() == ["column", "missing", "observed", "imputed"]
    assert [line.split()[0] for line in shown[4:8]] == ["height", "n", "seen", "site"]
    for said in ("chain  ", "2 steps, the most that --steps allows", "3 tables", f"written     to {out}"):
        assert said in captured.out
    hint = "\n".join(line.strip() for line in shown if line.startswith("    "))
    found: dict[str, object] = {}
    exec(hint[hint.index("from pyro_mgp") :], found)  # the advice must work as it stands
    assert isinstance(found["draws"], Imputations) and isinstance(found["imputer"], MGPImputer)


def test_a_limit_of_steps_that_nobody_set_is_the_default(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(table, "-o", table.parent / "out", "-m", 1, "--drop", "name", "note") == 0
    assert " steps, the default\n" in capsys.readouterr().out


def test_quiet_shows_nothing(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(table, "-o", table.parent / "out", *QUICK, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_letters_that_the_screen_cannot_show_do_not_stop_the_run(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (table.parent / "screen").open("w", encoding="ascii") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        assert run(table, "-o", table.parent / "out", *QUICK) == 0
    assert " ? " in (table.parent / "screen").read_text()


# ------------------------------------------------------------------------------------------ settings, help


def test_warnings_of_ours_are_one_line_each(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("-m", 1, "--steps", 1, "--quiet", "-o")
    assert run(table, *argv, table.parent / "paper", "--paper", "--drop", "name", "note") == 0
    assert capsys.readouterr().err == (
        "pyro-mgp: warning: n_inducing=100 is more than the 6 rows of the table; using 6\n"
    )
    table.write_text("a,b\n1,2\n,\n2,3\n3,5\n")  # both fit and impute mention the empty row
    assert run(table, *argv, table.parent / "empty") == 0
    said = capsys.readouterr().err
    assert said.startswith("pyro-mgp: warning: 1 row is entirely missing") and said.count("\n") == 1
    with pytest.warns(FitWarning):  # and elsewhere warnings are as they were
        warnings.warn("later", FitWarning, stacklevel=1)


def test_settings_reach_the_imputer(table: Path) -> None:
    settings = ("--steps", 3, "--columns", "all", "--seed", 5, "--device", "cpu")
    assert run(table, "-o", table.parent / "out", *QUICK, *settings, "--quiet") == 0
    imputer = MGPImputer.load(table.parent / "out" / "imputer")
    assert (imputer.max_steps, imputer.columns, imputer.seed_) == (3, "all", 5)
    assert imputer.kernel == "auto" and not imputer.progress


def test_help_mentions_every_option_and_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["impute", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    options = (
        "-m --out --seed --drop --missing --format --overwrite --quiet --steps --columns --paper --device"
    )
    written = "imputation_01.csv cells.csv summary.csv draws/ imputer/ header.json"
    for said in (*options.split(), *written.split(), "examples:"):
        assert said in text


# ------------------------------------------------------------------------------------------------------ notes


def test_a_note_says_which_option_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y,z\n" + "".join(f"{i if i % 9 else '?'},{i * i},{i % 4}\n" for i in range(30)))
    assert run(path, "-o", tmp_path / "out", "-m", "1", "--steps", "2", "--quiet") == 0
    said = capsys.readouterr().err
    assert "note: column 'x' is read as text because of cells such as '?'" in said
    assert "pass --missing '?'" in said


# ------------------------------------------------------------------------------------------------ going on


def left_by_a_killed_run(table: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that was killed while it wrote the second table."""
    write, out = files._write_table, table.parent / "out"

    def killed(path: Path, source: object, draws: Imputations, j: int, format: str) -> None:
        path.write_text("half")
        if j == 1:
            raise KeyboardInterrupt
        write(path, source, draws, j, format)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_table", killed)
        assert run(table, "-o", out, *QUICK) == 130
    return out


def test_tables_that_are_whole_are_not_written_again(
    table: Path, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = left_by_a_killed_run(table, monkeypatch)
    write, written = files._write_table, list[int]()
    monkeypatch.setattr(files, "_write_table", lambda *args: written.append(args[3]) or write(*args))
    assert run(table, "-o", out, *QUICK, "--resume", "--quiet") == 0
    assert written == [1, 2]
    assert_same_files(out, done)


def test_without_resume_what_was_left_is_replaced(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = left_by_a_killed_run(table, monkeypatch)
    capsys.readouterr()
    assert run(table, "-o", out, *QUICK, "--quiet") == 0
    assert "note: replacing the unfinished run in" in capsys.readouterr().err
    assert_same_files(out, done)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("-m", 4), "--m is 3 there and 4 here"),
        (("--seed", 1), "--seed is None there and 1 here"),
        (("--columns", "all"), "--columns is None there and 'all' here"),
        ((), "another table"),
    ],
)
def test_other_work_is_not_gone_on_with(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    more: tuple[object, ...], said: str,
) -> None:  # fmt: skip
    out = left_by_a_killed_run(table, monkeypatch)
    if not more:
        table.write_text(CSV.replace("1.50", "1.51"), "utf-8")
    sentence = error_of(capsys, table, "-o", out, *QUICK, *more, "--resume")
    assert said in sentence and sentence.endswith("or start over without --resume")
    assert (out.parent / ".out.partial" / "imputation_01.csv").exists()


def test_resume_starts_where_there_is_nothing_and_ends_where_all_is_done(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = (table, "-o", table.parent / "out", *QUICK, "--resume")
    assert run(*argv, "--quiet") == 0
    assert_same_files(table.parent / "out", done)
    capsys.readouterr()
    monkeypatch.setattr(files, "read_table", stop_with(AssertionError("nothing to do")))
    assert run(*argv) == 0
    assert capsys.readouterr().out == f"{argv[2]} is complete: there is nothing to resume\n"
    assert "exists already" in error_of(capsys, *argv, "--seed", 7)


def test_two_runs_do_not_write_one_folder(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder = table.parent / ".out.partial"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another run is writing" in error_of(capsys, table, "-o", table.parent / "out", *QUICK)
    assert run(table, "-o", table.parent / "out", *QUICK, "--quiet") == 0  # that process has died


@pytest.mark.parametrize(("signal", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_training_is_heard_at_the_next_check_and_nothing_is_lost(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    signal: str, status: int,
) -> None:  # fmt: skip
    import signal as signals

    from pyro_mgp.inference import training

    check, before = training.Run.check, signals.getsignal(getattr(signals, signal))
    out, argv = table.parent / "out", ("-m", 3, "--steps", 12, "--drop", "name", "note", "--quiet")

    def asked(run: training.Run, bar: object) -> None:
        signals.raise_signal(getattr(signals, signal))
        check(run, bar)

    with monkeypatch.context() as patch:
        patch.setattr(training.Run, "check", asked)
        assert run(table, "-o", out, *argv) == status
    assert capsys.readouterr().err == f"pyro-mgp: interrupted, {KEPT}\n"
    assert (out.parent / ".out.partial" / "training").is_file()
    assert signals.getsignal(getattr(signals, signal)) is before
    assert run(table, "-o", out, *argv, "--resume") == 0
    assert run(table, "-o", out.parent / "whole", *argv) == 0
    assert_same_files(out, out.parent / "whole")


def test_a_disk_that_is_full_is_said_and_the_old_output_stays(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = table.parent / "out"
    shutil.copytree(done, out)

    def full(path: Path, *_: object) -> None:
        path.write_text("half")
        raise OSError(28, os.strerror(28), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_table", full)
        sentence = error_of(capsys, table, "-o", out, *QUICK, "--seed", 1, "--overwrite")
    assert sentence.startswith(f"cannot read or write {str(out)!r}: No space left on device; ")
    assert re.search(r"\d MB were written, [\d.]+ MB of the disk are free; finished work is kept", sentence)
    assert_same_files(out, done)
    argv = (table, "-o", out, *QUICK, "--seed", 1, "--overwrite", "--quiet")
    assert run(*argv, "--resume") == 0
    assert json.loads((out / "run.json").read_text())["--seed"] == 1


@pytest.mark.parametrize("kilobytes", [4, 12, 100])
def test_a_limit_on_the_size_of_files_is_said_and_the_old_output_stays(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], kilobytes: int
) -> None:
    resource = pytest.importorskip("resource")
    out = table.parent / "out"
    shutil.copytree(done, out)
    table.write_text(CSV + "".join(f"x{i},{i / 7},{i},TRUE,007,x\n" for i in range(700)), "utf-8")
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1000, most))
    try:
        status = run(table, "-o", out, *QUICK, "--overwrite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    said = capsys.readouterr().err
    assert status == 2, said
    assert f"cannot read or write {str(out)!r}: File too large" in said.splitlines()[-1]
    assert_same_files(out, done)


def test_a_fitted_model_fills_other_tables(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = table.parent / "model", table.parent / "out"
    assert cli.main(["fit", str(table), "-o", str(model), "--steps", "2", "--drop", "name", "note"]) == 0
    assert f"Next: pyro-mgp impute TABLE --model {model} -o FILLED" in capsys.readouterr().out
    assert sorted(os.listdir(model)) == ["arrays.safetensors", "header.json", "run.json"]
    assert run(table, "-o", out, "-m", 3, "--model", model) == 0
    shown = capsys.readouterr().out
    assert f"model       {model}" in shown and "left out    name, note (1 missing cell" in shown
    for name in ("imputation_02.csv", "cells.csv", "draws/draws.safetensors", "imputer/arrays.safetensors"):
        assert (out / name).read_bytes() == (done / name).read_bytes(), name


def test_finished_work_is_kept_if_the_model_can_no_longer_be_read(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = table.parent / "model"
    shutil.copytree(done / "imputer", model)
    argv = (table, "-o", table.parent / "out", "-m", 3, "--model", model, "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr("pyro_mgp.results.files.write_tables", stop_with(OSError(5, "Input/output error")))
        assert KEPT in error_of(capsys, *argv)
    arrays = (model / "arrays.safetensors").read_bytes()
    (model / "arrays.safetensors").unlink()
    kept = sorted((table.parent / ".out.partial").rglob("*"))
    assert "is missing: the folder is incomplete" in error_of(capsys, *argv, "--resume")
    assert sorted((table.parent / ".out.partial").rglob("*")) == kept
    (model / "arrays.safetensors").write_bytes(arrays)
    assert run(*argv, "--resume") == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--steps", 3), "--steps has no effect on --model, which is fitted: leave one of them out"),
        (("--paper",), "--paper has no effect on --model"),
        (("--drop", "height"), "height"),
        (("--scheduler", "tcp://x"), "--scheduler has no effect without --engine dask: add it, or leave"),
        (("--row-ids", "n"), "--row-ids has no effect without --engine dask"),
    ],
)
def test_what_cannot_be_asked_of_a_fitted_model(
    table: Path, done: Path, capsys: pytest.CaptureFixture[str], argv: tuple[object, ...], said: str
) -> None:
    argv = (table, "-o", table.parent / "out", "--model", done / "imputer", *argv)
    assert said in error_of(capsys, *argv)
    assert os.listdir(table.parent) == ["table.csv"]


def test_a_folder_without_an_imputer_is_no_model(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = error_of(capsys, table, "-o", table.parent / "out", "--model", table.parent)
    assert sentence.startswith(f"--model: there is no imputer in {str(table.parent)!r}: expected a folder")


def test_a_first_line_of_cells_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("5.1,3.5\n4.9,3.0\n4.7,\n4.6,3.1\n5.0,3.6\n")
    assert run(tmp_path / "t.csv", "-o", tmp_path / "out", "-m", 1, "--steps", 2, "--quiet") == 0
    advice = "a column has the name '5.1'; if the first line holds cells, put a line of names above it"
    assert advice in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- limits


@pytest.fixture
def with_limits(tmp_path: Path) -> Path:
    """Return the path of a CSV with cells below a limit of detection."""
    g = np.random.default_rng(0)
    z = g.normal(size=60)
    x = np.exp(1 + 0.5 * z + 0.8 * g.normal(size=60))
    lead = [f"{cell:.2f}" if cell > 1.5 else "<1.5" for cell in x]
    lead[7] = ""
    rows = zip(map("{:.3f}".format, z), lead, strict=True)
    path = tmp_path / "lead.csv"
    path.write_text("\n".join(["z,lead", *map(",".join, rows)]) + "\n")
    return path


def cells_of_lead(path: Path) -> list[str]:
    return [line.split(",")[1] for line in lines(path)[1:]]


def test_cells_below_a_limit_are_drawn_below_it(
    with_limits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(with_limits, "-o", tmp_path / "out", "-m", 2, "--quiet") == 0
    assert "column 'lead' has limits (lead at most)" in capsys.readouterr().err
    given, drawn = (cells_of_lead(path) for path in (with_limits, tmp_path / "out" / "imputation_01.csv"))
    for before, after in zip(given, drawn, strict=True):
        if before.startswith("<"):
            assert 0 < float(after) <= 1.5
        elif before:
            assert after == before
    assert lines(tmp_path / "out" / "imputation_01.csv")[0] == "z,lead"


def test_a_model_completes_other_tables_with_limits_or_without(with_limits: Path, tmp_path: Path) -> None:
    assert run(with_limits, "-o", tmp_path / "out", "-m", 2, "--quiet") == 0
    model, without = tmp_path / "out" / "imputer", tmp_path / "without.csv"
    without.write_text("".join(f"{line}\n" for line in lines(with_limits) if "<" not in line))
    for table, out in ((with_limits, "again"), (without, "other")):
        assert run(table, "--model", model, "-o", tmp_path / out, "-m", 2, "--quiet") == 0
    first = [cells_of_lead(tmp_path / out / "imputation_01.csv") for out in ("out", "again", "other")]
    assert first[0] == first[1]
    assert not any("<" in cell or not cell for cell in first[2])


def test_limits_unknown_to_a_model_are_an_error(
    with_limits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = tmp_path / "without.csv"
    without.write_text("".join(f"{line}\n" for line in lines(with_limits) if "<" not in line))
    assert run(without, "-o", tmp_path / "out", "-m", 2, "--quiet") == 0
    model = tmp_path / "out" / "imputer"
    assert run(with_limits, "--model", model, "-o", tmp_path / "again", "-m", 2) == 2
    assert "column 'lead' has limits, ['lead at most'], but had none" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_groups_are_named_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g, school = np.random.default_rng(0), np.repeat(np.arange(10), 5)
    frame = pd.DataFrame({"school": [f"s{k}" for k in school], "x": g.normal(size=50).round(3)})
    frame["y"] = (g.normal(size=10)[school] + frame["x"]).round(3).mask(np.arange(50) % 4 == 0)
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    assert run(path, "-o", tmp_path / "out", "-m", 2, "--groups", "school", "--quiet") == 0
    (link,) = MGPImputer.load(tmp_path / "out" / "imputer").model_.link_specs
    assert [effects.n_groups for effects in link.effects] == [10]
    message = error_of(capsys, path, "-o", tmp_path / "again", "--groups", "class")
    assert "groups names column 'class', but the table has" in message


def test_visits_are_named_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g, patient = np.random.default_rng(0), np.repeat(np.arange(12), 5)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.tile(np.arange(5), 12) ** 2, unit="D")
    frame = pd.DataFrame({"patient": patient, "day": days, "x": g.normal(size=60).round(3)})
    frame["y"] = (g.normal(size=12)[patient] + frame["x"]).round(3).mask(np.arange(60) % 4 == 0)
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    named = "--subject", "patient", "--time", "day", "--quiet"
    assert run(path, "-o", tmp_path / "out", "-m", 2, *named) == 0
    saved = MGPImputer.load(tmp_path / "out" / "imputer")
    (effects,) = saved.model_.link_specs[0].effects
    assert (saved.subject, saved.time) == ("patient", "day") and effects.time is not None
    message = error_of(capsys, path, "-o", tmp_path / "again", "--time", "day")
    assert "give subject as well" in message


def test_a_survival_outcome_is_named_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = np.random.default_rng(0)
    x, died, left = g.normal(size=50), g.exponential(size=50), g.exponential(size=50)
    frame = pd.DataFrame({"x": x.round(3), "time": np.minimum(died, left).round(3), "event": died < left})
    frame.loc[::5, "x"] = np.nan
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    outcome = "--survival", "time", "event"
    assert run(path, "-o", tmp_path / "out", "-m", 2, *outcome, "--quiet") == 0
    assert MGPImputer.load(tmp_path / "out" / "imputer").survival == ("time", "event")
    assert pd.read_csv(tmp_path / "out" / "imputation_01.csv")["time"].equals(frame["time"])
    model = tmp_path / "out" / "imputer"
    message = error_of(capsys, path, "--model", model, "-o", tmp_path / "again", *outcome)
    assert "--survival has no effect on --model" in message


def test_cells_that_do_not_apply_keep_their_text(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    # The first two rows have no cells: that of the male does not apply.
    rows = [["sex", "x", "unit", "births", "smokes", "seen"], ["male", "1.5", "", "NA", "", ""]]
    rows.append(["female", "1.5", "", "", "", ""])
    for i, x in enumerate(generator.normal(size=40)):
        own = ["ab"[i // 2 % 2], str(i // 2 % 4), "TRUE" if i % 3 else "FALSE", f"2020-01-{1 + i % 28:02}"]
        rows.append(["female", f"{x:.3f}", *own] if i % 2 else ["male", f"{x:.3f}", "", "", "", ""])
    path, model, out = (tmp_path / name for name in ("table.csv", "model", "out"))
    path.write_text("\n".join(",".join(row) for row in rows), "utf-8")
    specs = {label: ColumnSpec(only_if="sex == 'female'") for label in rows[0][2:]}
    frame = files.read_table(path).frame
    MGPImputer(specs=specs, max_steps=1, random_state=0, progress=False).fit(frame).save(model)
    assert run(path, "-o", out, "-m", 2, "--model", model, "--quiet") == 0
    male, female = (line.split(",") for line in lines(out / "imputation_01.csv")[1:3])
    assert male == rows[1]
    assert female[2] in ("a", "b") and female[3].lstrip("-").isdigit() and female[4] in ("TRUE", "FALSE")
    assert files.read_table(out / "imputation_01.csv").frame.dtypes.equals(frame.dtypes)
