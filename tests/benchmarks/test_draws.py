"""`python -m benchmarks.draws`: equal results compare equal, and every kind of difference is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import draws
from benchmarks.generated import product


def _case(shift: float = 0.0) -> Iterator[pd.DataFrame]:
    kind = pd.Series(["u", "v"], dtype="category")
    yield pd.DataFrame({"x": [0.0, 2.0 + shift], "kind": kind, "when": pd.to_datetime(["2020", "2021"])})


def _write(path: Path, **cases: draws.Case) -> Path:
    draws.write(path, cases)
    return path


def test_a_fit_with_the_same_seed_gives_the_same_results(tmp_path: Path) -> None:
    files = [_write(tmp_path / name, fit=lambda: draws._fit(product(40), max_steps=2)) for name in "ab"]
    assert draws.compare(*files) == {"fit": 0.0}
    with np.load(files[0]) as arrays:
        # Two draws, the mean, a shifted draw and one after loading, of three columns each.
        assert len(arrays) == 15
        assert (arrays["fit/3/a"] != arrays["fit/0/a"]).any()


def test_the_exit_status_tells_whether_results_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(_write(tmp_path / "a", same=_case, moved=_case))
    second = str(_write(tmp_path / "b", same=_case, moved=lambda: _case(1e-6)))
    assert draws.main(["compare", first, first]) == 0
    capsys.readouterr()
    assert draws.main(["compare", first, second]) == 1
    assert capsys.readouterr().out.split() == ["moved", "1e-06", "same", "0"]
    assert draws.main(["compare", first, second, "--tolerance", "1e-5"]) == 0


def test_missing_arrays_cells_and_rows_are_infinite_differences(tmp_path: Path) -> None:
    first = _write(tmp_path / "a", lost=_case, short=_case, empty=_case)
    second = _write(
        tmp_path / "b",
        short=lambda: (frame[:1] for frame in _case()),
        empty=lambda: (frame.assign(x=np.nan) for frame in _case()),
    )
    assert draws.compare(first, second) == {"empty": np.inf, "lost": np.inf, "short": np.inf}


def test_a_file_that_is_missing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draws.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "No such file" in capsys.readouterr().err
