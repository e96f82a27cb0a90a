"""The command line as a whole: its arguments, its help, and how soon that comes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from packaging.version import Version

import pyro_mgp
from pyro_mgp import cli


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("impute t.csv", "required: -o/--out"),
        ("impute t.csv -o out -m 0", "argument -m: expected an integer of at least 1, got '0'"),
        ("impute t.csv -o out --seed -1", "argument --seed: expected an integer of at least 0, got '-1'"),
        ("impute t.csv -o out --steps ten", "argument --steps: expected an integer of at least 1, got 'ten'"),
        ("impute t.csv -o out --device tpu", "argument --device: invalid choice: 'tpu'"),
        ("", "required: COMMAND"),
    ],
)
def test_arguments_that_make_no_sense(capsys: pytest.CaptureFixture[str], argv: str, sentence: str) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv.split())
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_help_of_the_module_comes_without_heavy_imports() -> None:
    code = "import sys, runpy; sys.argv = ['pyro-mgp', '--help']\n"
    code += "try: runpy.run_module('pyro_mgp', run_name='__main__')\n"
    code += "except SystemExit as stop: assert stop.code == 0\n"
    code += "assert not {'torch', 'pyro', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    help_ = [sys.executable, "-m", "pyro_mgp", "--help"]
    shown = subprocess.run(help_, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "usage: pyro-mgp" in shown and "impute" in shown


def test_the_package_gives_its_names_when_asked() -> None:
    assert set(pyro_mgp.__all__) <= set(dir(pyro_mgp))
    assert all(getattr(pyro_mgp, name).__name__ == name for name in pyro_mgp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Imputer'"):
        pyro_mgp.Imputer  # noqa: B018


def test_the_package_knows_its_version() -> None:
    version = Version(pyro_mgp.__version__)  # a tag, or between tags a development version
    assert version.release >= (0, 1, 0)
    assert version.is_devrelease == (version.local is not None)
