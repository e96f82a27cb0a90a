"""Files without a name: what they hold, when they go, and what a full disk says."""

from __future__ import annotations

import errno
import gc
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pyro_mgp.storage import scratch
from pyro_mgp.storage.scratch import Scratch, pieces


def mapped(folder: Path) -> int:
    """How many files of a folder this process has mapped, named or not."""
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text("utf-8").splitlines())


def test_a_tensor_on_the_disk_is_one_like_any_other(tmp_path: Path) -> None:
    table = Scratch(tmp_path).empty(5, 3)
    assert (table == 0).all()
    table[torch.tensor([4, 1])] = 2.0
    assert table.sum() == 12
    other = Scratch(tmp_path).like(table > 1)
    assert (other.shape, other.dtype) == (table.shape, torch.bool)
    assert Scratch(tmp_path).empty(0, 3).shape == (0, 3)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
def test_no_file_has_a_name_and_none_outlives_its_tensor(tmp_path: Path) -> None:
    table = Scratch(tmp_path).empty(1000, 10)
    part = table[:10].T
    assert list(tmp_path.iterdir()) == []
    del table
    gc.collect()
    assert mapped(tmp_path) == 1  # what a view shows has to stay
    del part
    gc.collect()
    assert mapped(tmp_path) == 0


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder '.*nowhere' to put temporary files into"):
        Scratch(tmp_path / "nowhere")


def test_a_disk_without_room_is_told_before_a_file_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=r"no room for 0.8 GB of temporary files \(No space left") as caught:
        Scratch(tmp_path).empty(10**7, 10)
    assert caught.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_faults_of_a_disk_are_not_taken_for_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", broken, raising=False)
    with pytest.raises(OSError, match="Input/output error"):
        Scratch(tmp_path).empty(2, 2)


def test_room_is_asked_for_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    Scratch(tmp_path).check_room(10**9)
    with pytest.raises(OSError, match=r"no room for 2.0 GB of temporary files \(1.0 GB are free\)"):
        Scratch(tmp_path).check_room(2 * 10**9)


@pytest.mark.parametrize("n_rows", [0, 1, 4, 5, 12])
def test_pieces_are_all_rows_once(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_PIECE", 4)
    assert [i for here in pieces(n_rows) for i in range(n_rows)[here]] == list(range(n_rows))
    assert all(here.stop - here.start <= 4 for here in pieces(n_rows))
