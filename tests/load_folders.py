"""Loads saved folders one after the other, in a process that does nothing else, and says what it took.

    python tests/load_folders.py FOLDER ...

prints one JSON object per folder: the error, if one was raised, and the most resident memory, in MB, that the
process has had since it started to load the first of them, beyond what it had then.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

from pyro_mgp import Imputations, MGPImputer


def resident(name: str) -> float:
    """Memory of this process in MB, as Linux counts it: "VmRSS" now, or "VmHWM" at most."""
    if sys.platform != "linux":
        return 0.0  # others do not tell
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def never(*_: Any, **__: Any) -> None:
    """Stands for whatever unpickles."""
    raise AssertionError("something was unpickled")


def main(folders: list[str]) -> None:
    """Load them."""
    for name in ("load", "loads", "Unpickler"):
        setattr(pickle, name, never)
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # the most so far no longer counts
    before = resident("VmRSS")
    for folder in folders:
        said = None
        try:
            (MGPImputer if Path(folder).name == "imputer" else Imputations).load(folder)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        print(json.dumps({"said": said, "megabytes": resident("VmHWM") - before}))


if __name__ == "__main__":
    main(sys.argv[1:])
