"""Draw the pictures of the gallery: `python docs/gallery/draw.py [NAME ...]` from the root of the repository.

Each script beside this file is run for a light and for a dark page, and its figure is saved as `NAME.png` and
as `NAME-dark.png`.
"""

from __future__ import annotations

import argparse
import io
import runpy
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from PIL import Image

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "draw")
_DARK = "#131416"  # background of dark pages in the theme of the documentation
_DARK_PAGE = ["dark_background", {f"{part}.facecolor": _DARK for part in ("figure", "axes", "savefig")}]
# Style of matplotlib for each ending of the file's name.
STYLES: dict[str, Any] = {"": "default", "-dark": _DARK_PAGE}


def main() -> None:
    """Draw the pictures whose names are given, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    names = parser.parse_args().names
    if unknown := sorted({*names} - {*NAMES}):
        parser.error(f"no script of the gallery: {', '.join(unknown)}")
    mpl.use("agg")
    for name in names or NAMES:
        for ending, style in STYLES.items():
            with plt.style.context(style, after_reset=True):
                runpy.run_path(str(HERE / f"{name}.py"))
                save(HERE / f"{name}{ending}.png")
            plt.close("all")


def save(path: Path) -> None:
    """Save the current figure with at most 256 colours, which makes the file a third as large."""
    content = io.BytesIO()
    plt.gcf().savefig(content, dpi=110, transparent=False)
    with Image.open(content) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
