"""Turns the percent scripts into executed notebooks: run after changing one.

    python notebooks/execute.py                   # all
    python notebooks/execute.py 04_diagnostics    # one

Each script of this folder becomes the notebook beside it, run from top to bottom in a fresh kernel. What
would differ each time (times of execution, random names of cells, versions) is left out. In Jupyter, jupytext
keeps both alike while either is edited.
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
# Said to those who look after other packages: there is no widget for progress bars; ArviZ 0.x is old, and
# does what Matplotlib will not take for ever.
NOT_OURS = "ignore:IProgress not found,ignore:Passing a dict or None,ignore::FutureWarning:arviz"
QUIET = {**os.environ, "PYTHONWARNINGS": NOT_OURS}


def scripts() -> list[Path]:
    """The percent scripts, in order."""
    return sorted(FOLDER.glob("[0-9]*.py"))


def execute(script: Path) -> None:
    """Run a script as a notebook, and write that beside it."""
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
    """Execute the notebooks that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="notebooks, without suffix; all if none is named")
    names = parser.parse_args().names
    for script in [FOLDER / f"{name}.py" for name in names] or scripts():
        print(script.stem, flush=True)
        execute(script)


if __name__ == "__main__":
    main()
