"""Convert the percent scripts to executed notebooks; to be run after a change to a script.

    python notebooks/execute.py                   # all
    python notebooks/execute.py 04_diagnostics    # one

Each script of this folder is run from top to bottom in a fresh kernel, and becomes the notebook of its name.
Metadata that differ between runs (execution times, random cell ids, versions) are left out. In Jupyter,
jupytext synchronises script and notebook.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
# Warnings of other packages: no widget for progress bars, ArviZ 0.x is old, and it uses Matplotlib in a
# deprecated way.
IGNORED = "ignore:IProgress not found,ignore:Passing a dict or None,ignore::FutureWarning:arviz"
QUIET = {**os.environ, "PYTHONWARNINGS": IGNORED}


def scripts() -> list[Path]:
    """Return the percent scripts, in order."""
    return sorted(FOLDER.glob("[0-9]*.py"))


def execute(script: Path) -> None:
    """Run a script as a notebook, and write the notebook beside it."""
    notebook = jupytext.read(script)
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    settings = {"timeout": 600, "record_timing": False, "resources": {"metadata": {"path": FOLDER}}}
    NotebookClient(notebook, **settings).execute(env=QUIET)
    notebook.metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": KERNEL,
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number:02d}", {}
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = {}
    nbformat.validate(notebook)
    nbformat.write(notebook, script.with_suffix(".ipynb"))


def main() -> None:
    """Execute the notebooks named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="notebooks, without suffix; all by default")
    names = parser.parse_args().names
    for script in [FOLDER / f"{name}.py" for name in names] or scripts():
        print(script.stem, flush=True)
        execute(script)


if __name__ == "__main__":
    main()
