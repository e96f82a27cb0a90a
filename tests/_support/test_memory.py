"""Memory: what there is, and that what does not fit is refused before it is tried."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext as does_not_raise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import MGPImputer, cli
from pyro_mgp._support import memory

GB = 10**9


def frame(n: int = 60) -> pd.DataFrame:
    x = np.random.default_rng(0).standard_normal((n, 2))
    return pd.DataFrame({"a": x[:, 0], "b": np.where(np.arange(n) % 5, x[:, 1], np.nan)})


def limited(monkeypatch: pytest.MonkeyPatch, there: float) -> None:
    monkeypatch.setattr(memory, "available", lambda: int(there))


def test_what_does_not_fit_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    imputer = MGPImputer(random_state=0, max_steps=2, progress=False).fit(frame())
    limited(monkeypatch, 100e3)
    with pytest.raises(ValueError, match=r"fitting to 6000 rows of 2 encoded columns needs at least 0\.2 "
                       r"MB of memory, but only 0\.1 MB are available: fit to a sample"):  # fmt: skip
        MGPImputer(random_state=0).fit(frame(6000))
    with pytest.raises(
        ValueError,
        match=r"drawing 2000 imputations needs at least 0\.2 MB .* take a smaller m, or call impute_",
    ):
        imputer.impute(m=2000)
    limited(monkeypatch, 10e9)
    with pytest.raises(
        ValueError, match=r"it needs at least 24\.0 GB of memory, but only 10\.0 GB are available"
    ):
        memory.check(memory.of_impute(10**6, 3000), "it", "do less")


def test_the_command_line_refuses_before_it_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    limited(monkeypatch, 1000)
    monkeypatch.setattr("pyro_mgp.imputer.MGPImputer.fit", None)
    assert cli.main(["impute", str(tmp_path / "t.csv"), "-o", str(tmp_path / "out")]) == 2
    assert "drawing 20 tables needs at least" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_nothing_is_refused_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 10e6)
    with pytest.raises(ValueError, match="do less"):
        memory.check(10**18, "it", "do less")
    monkeypatch.setattr(memory, "available", lambda: None)
    with does_not_raise():
        memory.check(10**18, "it", "do less")


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 5\ninactive_file 100"}, 400),
        ({"memory.max": "max", "memory.current": "700", "memory.stat": ""}, None),
        ({"memory.max": "1000", "memory.current": "1200", "memory.stat": "anon 5"}, 0),
        (
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "700",
                "memory/memory.stat": "total_inactive_file 50",
            },
            350,
        ),
        ({}, None),
    ],
)
def test_what_a_container_leaves(tmp_path: Path, files: dict[str, str], left: int | None) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert memory._left_in_container(tmp_path) == left


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other systems are not read")
def test_a_limit_on_the_address_space_counts() -> None:
    code = "import resource; from pyro_mgp._support import memory\n"
    code += f"resource.setrlimit(resource.RLIMIT_AS, ({2 * GB}, {2 * GB}))\n"
    code += "print(memory.available())"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 0 < int(shown.stdout) < 2 * GB


@pytest.mark.parametrize("argument", range(4))
def test_more_of_anything_takes_more(argument: int) -> None:
    small = [1000, 10, 5, 50]
    large = [number * (1 + (i == argument)) for i, number in enumerate(small)]
    assert memory.of_fit(*large) > memory.of_fit(*small)
    assert argument > 1 or memory.of_impute(*large[:2]) > memory.of_impute(*small[:2])
