"""Saved folders from strangers and from broken disks: refused with a sentence, before memory is taken."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file
from signing import sign

import pyro_mgp
from pyro_mgp import Imputations, MGPImputer
from pyro_mgp.saving import FORMAT_VERSION
from pyro_mgp.storage.header import own_checksum

HOME = Path(pyro_mgp.__file__).parent
ARRAYS, FRAME, DRAWS = "arrays.safetensors", "frame.parquet", "draws.safetensors"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved imputer, with a local GP, and draws."""
    folder, generator = tmp_path_factory.mktemp("originals"), np.random.default_rng(0)
    x = generator.random(150)
    steps = np.floor(12 * x) % 3 + 0.1 * generator.normal(size=150)
    frame = pd.DataFrame({"x": x, "steps": steps, "word": np.where(x > 0.5, "a", "b")})
    frame.loc[::4, "steps"], frame.loc[1::5, "word"] = np.nan, None
    imputer = MGPImputer(inputs="others", n_inducing=10, max_steps=4, random_state=0, progress=False)
    imputer.fit(frame).save(folder / "imputer")
    assert imputer.neighbours_ is not None
    imputer.impute(m=2).save(folder / "draws")
    return folder


def edit(folder: Path, path: tuple[Any, ...], value: Any) -> None:
    """Write something else into a header, and sign it."""
    header = json.loads((folder / "header.json").read_text("utf-8"))
    inside = header
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    (folder / "header.json").write_text(json.dumps(header), "utf-8")
    sign(folder)


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in a header, and where it stands."""
    yield path, found
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


class Trap:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def flip(path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    g = np.random.default_rng(seed)
    content[g.integers(len(content))] ^= 1 << int(g.integers(8))
    path.write_bytes(bytes(content))


def cut(path: Path, seed: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: np.random.default_rng(seed).integers(len(content))])


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def sparse(path: Path, header: Any, n_bytes: int) -> None:
    """A file that is said to hold so many bytes, and takes next to none on the disk."""
    path.write_bytes(safetensors(header))
    os.truncate(path, path.stat().st_size + n_bytes)


def bomb(path: Path) -> None:
    """Ten gigabytes of zeros as a zip file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data.pkl", b"\0" * 2**22)


def pickled(path: Path, trap: Path) -> None:
    path.write_bytes(pickle.dumps(Trap(trap)))


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F64") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS: dict[str, bytes] = {
    "empty": b"",
    "a word": b"nonsense",
    "a list": b"[1, 2]",
    "null": b"null",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deeper than Python": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "wide": b"[" + b"[]," * 5_000_000 + b"1]",
    "long": b" " * 20_000_000 + b"{}",
    "not text": b"\xff\xfe{}",
    "a number without end": b'{"format": ' + b"9" * 10_000 + b"}",
}
FILES: dict[str, bytes] = {
    "empty": b"",
    "too short": b"\1\0\0",
    "a header without end": struct.pack("<Q", 2**63) + b"{}",
    "a header beyond the file": struct.pack("<Q", 1000) + b"{}",
    "no JSON": safetensors(b"{{{{"),
    "deep": safetensors(b"[" * 100_000),
    "a list": safetensors([1]),
    "a shape without end": safetensors({"start.mean": entry([2**62, 2**62], 0, 0)}),
    "a negative shape": safetensors({"start.mean": entry([-1], 0, -8)}),
    "a fraction of a shape": safetensors({"start.mean": entry([1.0], 0, 8)}, b"\0" * 8),
    "shape and bytes that differ": safetensors({"start.mean": entry([2], 0, 8)}, b"\0" * 8),
    "bytes beyond the file": safetensors({"start.mean": entry([2], 0, 16)}, b"\0" * 8),
    "bytes twice": safetensors({"a": entry([1], 0, 8), "b": entry([1], 0, 8)}, b"\0" * 16),
    "a type that is none": safetensors({"start.mean": entry([1], 0, 8, "PICKLE")}, b"\0" * 8),
    "no offsets": safetensors({"start.mean": {"dtype": "F64", "shape": [1]}}, b"\0" * 8),
    "no arrays": safetensors({}),
}
HUGE = {"start.mean": entry([2**26], 0, 2**29), "0": entry([2**26], 2**29, 2**30)}
PARQUETS: dict[str, Callable[[Path], object]] = {
    "rows without end": lambda p: pq.write_table(
        pa.table({"0: x": pa.array([0.0]).take(pa.array([0] * 10**7))}), p
    ),
    "compressed zeros": lambda p: pq.write_table(
        pa.table({"0: x": np.zeros(2 * 10**7)}), p, compression="zstd", use_dictionary=False
    ),
    "long text again and again": lambda p: pq.write_table(pa.table({"0: x": ["y" * 10**5] * 5000}), p),
    "lists": lambda p: pq.write_table(pa.table({"0: x": [[1], [2]]}), p),
    "a foreign table": lambda p: pd.DataFrame({"x": [1.0]}).to_parquet(p),
    "text": lambda p: p.write_text("PAR1"),
    "empty": lambda p: p.write_bytes(b""),
}


def hostile() -> Iterator[tuple[str, str, Callable[[Path, Path], object]]]:
    """What is called how, which of the two folders it spoils, and how it does that, given a trap."""
    for kind, names in (("imputer", ["header.json", ARRAYS]), ("draws", ["header.json", FRAME, DRAWS])):
        for name in names:
            for seed in range(16):
                yield f"{name} bit {seed}", kind, lambda f, _, n=name, s=seed: flip(f / n, s)
            for seed in range(6):
                yield f"{name} cut {seed}", kind, lambda f, _, n=name, s=seed: cut(f / n, s)
            for seed in range(2):
                yield f"{name} cut and signed {seed}", kind, lambda f, _, n=name, s=seed: _cut_signed(f, n, s)
            yield f"{name} pickled", kind, lambda f, t, n=name: _signed(f, n, lambda p: pickled(p, t))
            yield f"{name} zipped", kind, lambda f, _, n=name: _signed(f, n, bomb)
            yield f"{name} a pipe", kind, lambda f, _, n=name: _pipe(f / n)
            yield f"{name} gone", kind, lambda f, _, n=name: (f / n).unlink()
            yield f"{name} a folder", kind, lambda f, _, n=name: _folder(f / n)
        for what, text in HEADERS.items():
            yield f"header {what}", kind, lambda f, _, t=text: (f / "header.json").write_bytes(t)
        data = names[-1]
        for what, content in FILES.items():
            yield (
                f"arrays {what}",
                kind,
                lambda f, _, n=data, c=content: _signed(f, n, lambda p: p.write_bytes(c)),
            )
        yield (
            "arrays of zeros",
            kind,
            lambda f, _, n=data: _signed(f, n, lambda p: sparse(p, HUGE, 2**30)),
        )
    for what, spoil in PARQUETS.items():
        yield f"table {what}", "draws", lambda f, _, s=spoil: _signed(f, FRAME, s)


def _signed(folder: Path, name: str, spoil: Callable[[Path], object]) -> None:
    spoil(folder / name)
    if name != "header.json":
        sign(folder)


def _cut_signed(folder: Path, name: str, seed: int) -> None:
    cut(folder / name, seed)
    if name != "header.json":
        sign(folder)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CASES = [*hostile()]


def load(folder: Path) -> Any:
    return MGPImputer.load(folder) if folder.name == "imputer" else Imputations.load(folder)


@pytest.mark.slow
def test_hostile_files_are_refused(originals: Path, tmp_path: Path) -> None:
    """All of them, with a sentence that names the folder, no code run and little memory taken."""
    assert len(CASES) >= 200
    trap, folders = tmp_path / "trap", [tmp_path / str(n) / kind for n, (_, kind, _) in enumerate(CASES)]
    for folder, (_, kind, spoil) in zip(folders, CASES, strict=True):
        shutil.copytree(originals / kind, folder)
        spoil(folder, trap)
    command = [sys.executable, Path(__file__).parents[1] / "load_folders.py", *folders]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for folder, (what, _, _), each in zip(folders, CASES, found, strict=True):
        assert each["said"] is not None, what
        assert re.match(rf"ValueError: .*{re.escape(str(folder))}", each["said"]), (what, each["said"])
        assert 40 < len(each["said"]) < 2000, what
        assert each["megabytes"] < 200, what
    assert not trap.exists()


def test_a_header_without_checksums_of_files_is_refused(originals: Path, tmp_path: Path) -> None:
    shutil.copytree(originals / "draws", tmp_path / "draws")
    path = tmp_path / "draws" / "header.json"
    header = json.loads(path.read_text("utf-8"))
    del header["checksums"]
    path.write_text(json.dumps(header | {"checksum": own_checksum(header)}), "utf-8")
    with pytest.raises(ValueError, match=r"header\.json' is damaged.*checksums: expected dict"):
        load(tmp_path / "draws")


ODD: list[Any] = [None, True, -1, 0, 10**9, 1e300, "odd", "", [], {}, [[0]], {"a": 1}, float("nan")]


@pytest.mark.filterwarnings("ignore::pyro_mgp.data.table.TableWarning")
def test_a_header_with_right_checksums_and_wrong_contents_is_refused_or_draws(
    originals: Path, tmp_path: Path
) -> None:
    """Whatever is changed where: an error of ours when it is loaded, or an imputer that works."""
    header = json.loads((originals / "imputer" / "header.json").read_text("utf-8"))
    frame = Imputations.load(originals / "draws").frame
    g, everywhere = np.random.default_rng(0), [*places(header)][1:]
    refused = 0
    for number in range(60):
        path, value = everywhere[g.integers(len(everywhere))]
        if path[0] in ("checksum", "checksums", "packages", "package_version"):
            continue
        other = ODD[g.integers(len(ODD))]
        if isinstance(value, list) and g.random() < 0.5:
            other = copy.deepcopy(value)[:-1] or [1]
        folder = tmp_path / str(number) / "imputer"
        shutil.copytree(originals / "imputer", folder)
        edit(folder, path, other)
        try:
            imputer = load(folder)
        except ValueError as error:
            refused += 1
            assert str(folder) in str(error), (path, other)
            continue
        if path[0] == "settings":  # n_sweeps=10**9 would take its time
            continue
        try:
            imputer.impute(frame.head(5), m=1)
        except (ValueError, TypeError) as error:
            last = io.StringIO()
            traceback.print_exception(error, file=last)
            assert "raise " in last.getvalue().rstrip().splitlines()[-2], (path, other, last.getvalue())
    assert refused > 20


ARRAY_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "not finite": lambda a: a["start.mean"].fill(np.inf),
    "no covariance": lambda a: a["start.covariance"].fill(1.0),
    "other inputs": lambda a: a["chain.links.0.inputs"].fill(10**6),
    "a parameter beyond all numbers": lambda a: a.update({_kernel(a): np.full_like(a[_kernel(a)], 1e4)}),
    "another type": lambda a: a.update({"start.mean": a["start.mean"].astype(np.float32)}),
    "one too many": lambda a: a.update(more=np.zeros(3)),
    "one too few": lambda a: a.pop("near.rows"),
    "other shape": lambda a: a.update({"start.mean": a["start.mean"][:-1].copy()}),
    "too few neighbours": lambda a: a["near.residuals"].fill(np.nan),
}


def _kernel(arrays: dict[str, Any]) -> str:
    return next(name for name in arrays if name.endswith("lengthscale_unconstrained"))


@pytest.mark.parametrize("how", ARRAY_EDITS)
def test_arrays_with_right_checksums_and_wrong_numbers_are_refused(
    how: str, originals: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "imputer"
    shutil.copytree(originals / "imputer", folder)
    arrays = load_file(folder / ARRAYS)
    ARRAY_EDITS[how](arrays)
    save_file(arrays, folder / ARRAYS)
    sign(folder)
    with pytest.raises(ValueError, match="cannot be restored"):
        MGPImputer.load(folder)


def test_metrics_with_different_hyperparameters_are_refused(originals: Path, tmp_path: Path) -> None:
    folder = tmp_path / "imputer"
    shutil.copytree(originals / "imputer", folder)
    header = json.loads((folder / "header.json").read_text("utf-8"))
    number, (first, *_) = next((i, each) for i, each in enumerate(header["characters"]) if each)
    edit(folder, ("characters", number), [first, first | {"nugget": 2 * first["nugget"]}])
    load(folder)
    edit(folder, ("characters", number), [first, first | {"scale": 2 * first["scale"]}])
    with pytest.raises(ValueError, match="metrics with different hyperparameters"):
        load(folder)


def test_the_header_says_what_wrote_the_folder(originals: Path) -> None:
    header = json.loads((originals / "imputer" / "header.json").read_text("utf-8"))
    assert header["format_version"] == FORMAT_VERSION
    assert {"python", "torch", "numpy", "pyro-ppl"} <= set(header["packages"])
    assert set(header["checksums"]) == {ARRAYS}


def test_nothing_in_the_package_unpickles() -> None:
    forbidden = re.compile(
        r"^\s*(import|from) (pickle|cloudpickle|dill|joblib|shelve|marshal)\b"
        r"|torch\.load\(|read_pickle|allow_pickle=True|(?<![.\w])(eval|exec)\(",
        re.MULTILINE,
    )
    for path in HOME.rglob("*.py"):
        found = forbidden.search(path.read_text("utf-8"))
        assert found is None, f"{path}: {found.group()!r}"
