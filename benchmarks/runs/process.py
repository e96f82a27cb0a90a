"""A process of its own for a run, which isolates its memory and its failures.

    python -m MODULE ORDER OUT

MODULE ends in `serve`. ORDER is JSON; the row of results is written to the file OUT as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""Results of a run by column; that of a failed run has its `error`."""

# Environment variables by which libraries for linear algebra and trees limit their threads.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def in_own_process(module: str, order: Mapping[str, Any], threads: int) -> Row:
    """Do a run in a new process.

    Args:
        module: Module that does the run and serves its row.
        order: What the module needs to know, in types that JSON has.
        threads: Number of threads of the libraries that read it from the environment.

    Returns:
        The row; if the process died, its `error` is all that there is.
    """
    environment = os.environ | dict.fromkeys(_THREADS, str(threads))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "row.json"
        command = [sys.executable, "-m", module, json.dumps(order), str(out)]
        # Its standard input stays empty; when this process ends the pipe closes, and the child ends too.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        ) as process:
            try:
                messages = process.stderr.read() if process.stderr else b""
                process.wait()
            except BaseException:
                process.kill()
                raise
        if out.exists():
            row: Row = json.loads(out.read_text("utf-8"))
            return row
    last = messages.decode(errors="replace").strip().splitlines()[-1:] or ["it printed no message"]
    end = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
    return {"error": f"the process ended with {end}: {last[0]}"}


def or_error(perform: Callable[[], Row]) -> Row:
    """Return the row of a run, or one with the reason of its failure."""
    try:
        return perform()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def package_version() -> str:
    """Return the version of the package, which every row has."""
    return version("pyro_mgp")


def serve(perform: Callable[[Mapping[str, Any]], Row], order: str, out: str) -> None:
    """Do a run in this process, and write its row.

    Args:
        perform: Function that does a run and returns its row.
        order: The run, as JSON.
        out: Path of the file for the row.
    """
    end_with_parent()
    row = perform(json.loads(order))
    partial = Path(f"{out}.part")
    partial.write_text(json.dumps(row), "utf-8")
    partial.replace(out)


def end_with_parent() -> None:
    """End this process when its parent has ended, even if the parent was killed."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
