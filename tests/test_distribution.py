"""The wheel holds the package, all of it and nothing else, and is small."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources, so that the build leaves nothing in them."""
    folder = tmp_path_factory.mktemp("distribution")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("pyro_mgp", "benchmarks", "tests"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.csv", "golden")
        )
    order = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        "dist",
        ".",
    ]
    environment = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION": "1.2.3"}
    subprocess.run(order, cwd=folder, env=environment, check=True, capture_output=True)
    [path] = (folder / "dist").glob("*.whl")
    return path


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pyro_mgp").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == sources
    assert {"pyro_mgp/py.typed", "pyro_mgp/report/template.html"} <= names


def test_the_wheel_is_small_and_has_the_version_of_the_tag(wheel: Path) -> None:
    assert wheel.name == "pyro_mgp-1.2.3-py3-none-any.whl"
    assert wheel.stat().st_size <= MOST_BYTES


def test_the_metadata_name_licence_command_and_addresses(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read("pyro_mgp-1.2.3.dist-info/METADATA"))
        commands = archive.read("pyro_mgp-1.2.3.dist-info/entry_points.txt").decode()
        assert "pyro_mgp-1.2.3.dist-info/licenses/LICENSE" in archive.namelist()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {line.split(", ")[0] for line in metadata.get_all("Project-URL", [])} == {
        "Changelog", "Documentation", "Issues", "Source",
    }  # fmt: skip
    assert "pyro-mgp = pyro_mgp.cli:main" in commands
