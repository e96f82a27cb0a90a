"""HTML pages that need nothing but themselves: no scripts, no network, pictures inside.

Elements are put together by `tag`, which escapes every text that is not `Html` already: what users wrote into
their tables can never become an element.
"""

from __future__ import annotations

import base64
import html
import io
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GENERATOR = "pyro_mgp"
_GENERATED = f'<meta name="generator" content="{GENERATOR}'.encode()
# Larger pictures of lines become pictures of points.
_LARGEST_SVG = 60_000
_DPI = 160
# Pixels of a page per inch of a picture: as drawn, and at least, so that letters stay legible on a phone.
_PIXELS, _FEWEST_PIXELS = 96, 57
_VOID = ("meta", "img", "br", "hr")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | None) -> Html:
    """An element.

    Args:
        name: Of the element.
        children: Its content; what is no `Html` is escaped, None left out.
        attributes: Escaped; `class_` and the like lose their underscore, others become hyphens.

    Example:
        >>> tag("p", "a < b, ", tag("em", "c"), class_="x")
        '<p class="x">a &lt; b, <em>c</em></p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    inside = "".join(
        each if isinstance(each, Html) else html.escape(each) for each in children if each is not None
    )
    return Html(f"<{name}{given}>{inside}</{name}>")


def together(parts: Iterable[str | None]) -> Html:
    """Several pieces one after the other, as in `tag`."""
    return Html("".join(p if isinstance(p, Html) else html.escape(p) for p in parts if p is not None))


def listed(items: Iterable[str]) -> Html:
    """A list of points."""
    return tag("ul", *(tag("li", item) for item in items))


def described(pairs: Iterable[tuple[str, str]]) -> Html:
    """Terms and what they are."""
    return tag("dl", *(tag("div", tag("dt", term), tag("dd", words)) for term, words in pairs))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Html:
    """A table in a box that scrolls by itself, so that the page need not.

    Args:
        caption: What it shows.
        head: Names of the columns.
        rows: Cells; the first of each row is its name.
        left: So many columns hold text, the others figures.
    """
    sides = ["text" if j < left else "figure" for j in range(len(head))]
    top = tag(
        "tr", *(tag("th", name, scope="col", class_=side) for name, side in zip(head, sides, strict=True))
    )
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_="text"),
            *(tag("td", cell, class_=side) for cell, side in zip(row[1:], sides[1:], strict=True)),
        )
        for row in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *body))
    return tag("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def picture(figure: Figure, alt: str, caption: str) -> Html:
    """A picture inside the page: lines as SVG, unless these are so many that points (PNG) are smaller.

    Args:
        figure: The figure.
        alt: What it shows, for those who do not see it.
        caption: What to look for.
    """
    width, height = figure.get_size_inches()
    image = tag(
        "img",
        src=_encoded(figure),
        alt=alt,
        width=f"{width * _PIXELS:.0f}",
        height=f"{height * _PIXELS:.0f}",
        style=f"min-width:{width * _FEWEST_PIXELS:.0f}px",
    )
    box = tag("div", image, class_="scroll")
    return tag("figure", box, tag("figcaption", caption))


def _encoded(figure: Figure) -> str:
    import matplotlib as mpl

    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": GENERATOR, "svg.fonttype": "path"}):
        figure.savefig(stream, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    kind = "svg+xml"
    if len(stream.getvalue()) > _LARGEST_SVG:
        points = io.BytesIO()
        figure.savefig(points, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
        if len(points.getvalue()) < len(stream.getvalue()):
            stream, kind = points, "png"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def page(title: str, version: str, *sections: Html) -> str:
    """A whole page.

    Args:
        title: Of the page.
        version: Of the package that writes it.
        sections: Its content.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=f"{GENERATOR} {version}"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Nothing is to be fetched, whatever the page may hold.
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; img-src data:; style-src 'unsafe-inline'",
        ),
        tag("title", title),
        tag("style", Html(_STYLE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', tag('main', *sections)), lang='en')}\n"


def write(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> Path:
    """Write a page, whole or not at all.

    Args:
        path: The file; missing parents are made.
        text: What `page` gave.
        overwrite: Replace a page that this package wrote.

    Raises:
        ValueError: The file exists and may not be replaced.
    """
    target = Path(path)
    check_replaceable(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.write_text(text, "utf-8")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def check_replaceable(path: Path, overwrite: bool) -> None:
    """Find out before the work whether a page can be written after it.

    Raises:
        ValueError: The file exists and may not be replaced, or is a folder.
    """
    where = repr(str(path))
    if path.is_dir():
        raise ValueError(f"{where} is a folder, expected a file to write the page into")
    if not path.exists():
        return
    if not overwrite:
        raise ValueError(f"{where} exists already: choose another path, or pass overwrite=True")
    with path.open("rb") as file:
        if _GENERATED not in file.read(1_000):
            raise ValueError(
                f"{where} was not written by {GENERATOR}, so it is not overwritten: choose another path, or "
                "remove it yourself"
            )


_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#57606a;--paper:#fff;--card:#f5f7f9;--line:#d5dae0;
--good:#0a5c3c;--goodback:#dff3e8;--bad:#8a2f00;--badback:#fde7da;--link:#0b5fa5}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--dim:#a3adb8;--paper:#14171b;--card:#1e2329;
--line:#39414b;--good:#9be3bf;--goodback:#12382a;--bad:#ffc09f;--badback:#4a2312;--link:#7ec0ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Liberation Sans",sans-serif;overflow-wrap:break-word}
main{max-width:72rem;margin:0 auto;padding:1.25rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0 .25rem}
h2{font-size:1.3rem;line-height:1.25;margin:2.5rem 0 .75rem;padding-top:.75rem;
border-top:1px solid var(--line)}
h3{font-size:1.05rem;margin:1.5rem 0 .5rem}
p{max-width:46rem;margin:.6rem 0}
a{color:var(--link)}
.dim,figcaption,caption,dt{color:var(--dim);font-size:.9rem}
.verdict{border-radius:.5rem;padding:.75rem 1rem;max-width:none;background:var(--card)}
.verdict.good{background:var(--goodback);color:var(--good)}
.verdict.bad{background:var(--badback);color:var(--bad)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;margin:1rem 0}
dl>div{background:var(--card);border-radius:.5rem;padding:.6rem .8rem}
dd{margin:0;font-size:1.15rem;font-weight:600;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
caption{text-align:left;padding:.25rem 0;max-width:calc(100vw - 2rem)}
th,td{padding:.35rem .55rem;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
thead th{border-bottom:2px solid var(--line)}
.text{text-align:left}.figure{text-align:right}
tbody th{font-weight:600}
figure{margin:1rem 0}
figure img{display:block;max-width:100%;height:auto;background:#fff;border:1px solid var(--line);
border-radius:.4rem}
figcaption{max-width:46rem;margin-top:.35rem}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:0 1.25rem;
align-items:start}
.pairs{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,31rem),1fr));gap:0 2rem}
.pair{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,15rem),1fr));gap:0 1rem;
max-width:36rem}
li{margin:.3rem 0;max-width:46rem}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;list-style:none;padding:0;margin:.75rem 0}
nav li{margin:0}
@media print{.scroll{overflow:visible}h2{break-after:avoid}figure,tr{break-inside:avoid}}
"""
