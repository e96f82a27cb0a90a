"""Configuration of the documentation: `make docs` builds it, without a network, into `build/docs`."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
# The directives of `result_tables` read the result files by the code that wrote them.
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

project = "pyro_mgp"
author = "the pyro_mgp developers"
project_copyright = author
release = version_of("pyro_mgp")
version = ".".join(release.split(".")[:2])

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "myst_nb",
    "result_tables",
]

nitpicky = True
# Types of other packages, aliases, and what no user has to name have no page here.
_INTERNAL = (
    "ChainImputer|Checkpoint|EncodedTable|FittedModel|FittedRegression|LocalModule|ObservedCells|Ranks|Regression"
    "|ShownAsTable|TableKind"
)
nitpick_ignore_regex = [
    (r"py:.*", r"(?!pyro_mgp\.[a-z_.]*[A-Z]\w*$).*"),
    (r"py:.*", rf"pyro_mgp\.[a-z_.]*({_INTERNAL})"),
]

# Docstrings name code in single backticks; those that name an object of the reference become links.
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are executed in the tests, and keep what they show
nb_merge_streams = True

html_theme = "furo"
html_title = "pyro_mgp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0060a8", "color-brand-content": "#0060a8"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ff", "color-brand-content": "#7cc4ff"},
}
pygments_style = "default"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# External addresses are checked where there is a network: `make docs-links`.
linkcheck_anchors = False
linkcheck_timeout = 20

# Links that lead out of this folder, for readers of the repository, and where they lead within the pages.
_WITHIN = {
    "](../notebooks/": "](notebooks/",
    "](../benchmarks/coverage/README.md": "](../benchmarks/coverage.md",
    "](../docs/": "](../",
}


def _copy_notebooks(app: Sphinx, _: object) -> None:
    """Copy the executed notebooks, which lie outside the folder of the documentation, into it."""
    copies = Path(app.srcdir) / "notebooks"
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir()
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, copies)


def _lead_within(_: Sphinx, __: str, source: list[str]) -> None:
    """Let links to copied files lead to the copies."""
    for outside, inside in _WITHIN.items():
        source[0] = source[0].replace(outside, inside)


def setup(app: Sphinx) -> None:
    """Copy the notebooks before the pages are found, and change links when they are read."""
    app.connect("config-inited", _copy_notebooks)
    app.connect("source-read", _lead_within)
