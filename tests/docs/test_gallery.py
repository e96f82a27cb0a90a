"""Every plot has a script that runs, a section of the gallery, and pictures for light and dark pages."""

from __future__ import annotations

import itertools
import re
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex, to_rgb

from pyro_mgp import plots
from pyro_mgp.plots import _style as style

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
NAMES = [name.removeprefix("plot_") for name in plots.__all__]  # type: ignore[attr-defined]
PAGE = (GALLERY / "index.md").read_text("utf-8")
SECTIONS = {re.findall(r"`plot_(\w+)`", part)[0]: part for part in PAGE.split("\n### ")[1:]}


@pytest.fixture
def no_figures() -> Iterator[None]:
    with matplotlib.rc_context({"backend": "agg"}):
        plt.close("all")
        yield
        plt.close("all")


def test_the_gallery_has_every_plot_once_and_nothing_else() -> None:
    assert sorted(SECTIONS) == sorted(NAMES)
    assert PAGE.count("\n### ") == len(NAMES)
    assert {path.stem for path in GALLERY.glob("*.py")} == {*NAMES, "draw"}
    assert {path.stem for path in GALLERY.glob("*.png")} == {*NAMES, *(f"{name}-dark" for name in NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_a_section_explains_a_plot_and_has_its_pictures_and_its_script(name: str) -> None:
    heading, words, *_ = SECTIONS[name].split("\n\n")
    assert heading.endswith("?")
    assert 1 <= len(re.findall(r"\.(?:\s|$)", words)) <= 3
    image = r"```\{image\} (\S+)\n:class: (\S+)\n:alt: (\S.+)\n```"
    (light, first, seen), (dark, second, same) = re.findall(image, SECTIONS[name])
    assert (light, first) == (f"{name}.png", "only-light")
    assert (dark, second) == (f"{name}-dark.png", "only-dark")
    assert seen == same
    assert f"```{{literalinclude}} {name}.py\n:language: python\n```" in SECTIONS[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ending", "background"), [("", "#ffffff"), ("-dark", "#131416")])
def test_a_picture_is_small_and_has_the_background_of_its_page(
    name: str, ending: str, background: str
) -> None:
    path = GALLERY / f"{name}{ending}.png"
    assert path.stat().st_size < 60_000
    assert to_hex(plt.imread(path)[0, 0]) == background


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_script_is_short_and_draws(name: str, no_figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    script = GALLERY / f"{name}.py"
    lines = script.read_text("utf-8").splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 10
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(script))
    (number,) = plt.get_fignums()
    figure = plt.figure(number)
    figure.draw_without_rendering()
    assert any(ax.lines or ax.patches or ax.collections or ax.images for ax in figure.axes)


# Machado, Oliveira and Fernandes (2009): what readers without green or red receptors see, in linear RGB.
COLOUR_BLIND: dict[str, list[list[float]]] = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}


def lab(colour: str, seen: list[list[float]]) -> np.ndarray:
    """CIE Lab of a colour as a colour-blind reader sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0178, 0.1095, 0.8727]]  # over white
    x, y, z = to_xyz @ np.clip(seen @ linear, 0, 1)
    f = [np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", COLOUR_BLIND)
@pytest.mark.parametrize("background", ["default", "dark_background"])
def test_colour_blind_readers_can_tell_classes_apart(background: str, seen: str) -> None:
    def least(colours: Iterable[str]) -> float:
        places = [lab(colour, COLOUR_BLIND[seen]) for colour in colours]
        return min(float(np.linalg.norm(one - two)) for one, two in itertools.combinations(places, 2))

    with plt.style.context(background, after_reset=True):
        assert least([style.blue(), style.VERMILION]) > 80  # observed and imputed
        assert least([style.pale_blue(), style.VERMILION]) > 70
        assert least([style.BLUE, style.SKY, style.shade()]) > 24  # shares of variance
        assert least(style.colours()) > 17
        assert least(colour for colour, _ in style.LEVELS) > 16


@pytest.mark.parametrize("background", ["default", "dark_background", "Solarize_Light2"])
def test_text_and_lines_stand_out_from_the_background(background: str) -> None:
    same = np.eye(3).tolist()
    with plt.style.context(background, after_reset=True):
        paper = lab(style.paper(), same)
        for colour in (style.ink(), style.blue(), style.VERMILION, style.reference()):
            assert abs(lab(colour, same) - paper)[0] > 30  # lightness, of 100
        for colour in (style.pale_blue(), style.shade()):
            assert 5 < np.linalg.norm(lab(colour, same) - paper) < 40
        weak, strong = (to_hex(style.blues()(at)) for at in (0.0, 1.0))
        assert abs(lab(weak, same) - paper)[0] < 15 < 50 < abs(lab(strong, same) - paper)[0]


def test_light_text_on_a_transparent_background_means_a_dark_one() -> None:
    for ink, paper in (("black", "#ffffff"), ("white", "#000000")):
        clear = {"axes.facecolor": "none", "figure.facecolor": "none", "text.color": ink}
        with plt.style.context(clear):
            assert style.paper() == paper
            assert style.is_dark() == (ink == "white")
