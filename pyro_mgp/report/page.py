"""A self-contained HTML page: rendered from a template, with its pictures inside, and written atomically.

The template escapes every value: text from a table cannot become an element of the page.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from pyro_mgp._support.messages import Hinted
from pyro_mgp.results.summary import percent
from pyro_mgp.storage.atomic import atomic_file
from pyro_mgp.storage.header import our_version

GENERATOR = "pyro_mgp"
_GENERATED = f'<meta name="generator" content="{GENERATOR}'.encode()
# Bytes of an SVG above which a PNG is used if it is smaller, and dots per inch of the PNG.
_LARGEST_SVG, _DPI = 60_000, 160


def image(figure: Figure) -> dict[str, Any]:
    """Convert a figure to an SVG image, or to a PNG if the SVG is large and the PNG smaller.

    `source` is a data URL; `width` and `height` are in inches.
    """
    # A fixed salt and no dates: equal figures give equal bytes.
    with mpl.rc_context({"svg.hashsalt": GENERATOR, "svg.fonttype": "path"}):
        content, kind = _saved(figure, "svg", metadata={"Date": None, "Creator": None}), "svg+xml"
    if len(content) > _LARGEST_SVG:
        png = _saved(figure, "png", dpi=_DPI, metadata={"Software": None})
        content, kind = min((content, kind), (png, "png"), key=lambda pair: len(pair[0]))
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return {"source": source, "width": figure.get_figwidth(), "height": figure.get_figheight()}


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, facecolor="white", **options)
    return stream.getvalue()


def share_text(x: float, decimals: int = 1) -> str:
    """Return a share as text, such as "12.5 %"."""
    return percent(x, decimals).replace("%", " %")


def render(variables: Mapping[str, object]) -> str:
    """Return the page as HTML, from the values of all variables of `template.html`.

    Raises:
        jinja2.UndefinedError: If a variable is absent.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["share"] = share_text
    template = resources.files(__package__).joinpath("template.html").read_text("utf-8")
    return environment.from_string(template).render(variables, generator=GENERATOR, version=our_version())


def write(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> Path:
    """Write a page to a file atomically; missing parent folders are made.

    Raises:
        ValueError: If the file exists and may not be replaced.
    """
    target = Path(path)
    check_replaceable(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as partial:
        partial.write_text(text, "utf-8")
    return target


def check_replaceable(path: Path, overwrite: bool) -> None:
    """Raise a ValueError if `path` is a folder, or a file that may not be replaced by a page."""
    where = repr(str(path))
    if path.is_dir():
        raise ValueError(f"{where} is a folder, expected a file to write the page into")
    if path.exists() and not overwrite:
        advice = f"{where} exists already: choose another path, or pass "
        raise ValueError(Hinted(advice, "overwrite=True", shell="--overwrite"))
    if path.exists() and _GENERATED not in path.read_bytes()[:1_000]:
        refused = f"{where} was not written by {GENERATOR}, so it is not overwritten"
        raise ValueError(f"{refused}: choose another path, or remove it yourself")
