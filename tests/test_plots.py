"""What pictures hold; how they look is for people."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pyro_mgp.plots import plot_tipping_point


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    with matplotlib.rc_context({"backend": "agg"}):
        yield
        plt.close("all")


def scan() -> pd.DataFrame:
    delta = np.array([-2.0, -1.0, 0.0])
    return pd.DataFrame(
        {
            "delta": delta,
            "estimate": 1 + delta,
            "low": delta,
            "high": 2.5 + delta,
            "tipped": [True, True, False],
        }
    )


def test_a_scan_shows_estimates_intervals_and_where_it_tips() -> None:
    _, given = plt.subplots()
    ax = plot_tipping_point(scan(), given, null=0.25)
    assert ax is given
    same, tipped = ax.containers
    np.testing.assert_allclose(same.lines[0].get_xydata(), [[0, 1]])
    np.testing.assert_allclose(tipped.lines[0].get_xydata(), [[-2, -1], [-1, 0]])
    ends = tipped.lines[2][0].get_segments()
    np.testing.assert_allclose(ends, [[[-2, -2], [-2, 0.5]], [[-1, -1], [-1, 1.5]]])
    assert ax.lines[0].get_ydata()[0] == 0.25
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["same conclusion as without a shift", "another conclusion"]


def test_without_axes_it_makes_some_and_names_only_what_is_there() -> None:
    ax = plot_tipping_point(scan().assign(tipped=False))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["same conclusion as without a shift"]
