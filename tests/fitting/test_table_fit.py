"""The table decides which columns a link sees."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import MGPImputer


def steps(n_rows: int = 300) -> pd.DataFrame:
    """Return a table whose columns jump along a line, which only nearby rows tell."""
    generator = np.random.default_rng(1)
    place = generator.uniform(0, 20, n_rows)
    level = generator.normal(size=21)[place.astype(int)]
    frame = pd.DataFrame(
        {"a": level + 0.1 * generator.normal(size=n_rows), "b": level + generator.normal(size=n_rows)}
    )
    return frame.mask(generator.random(frame.shape) < 0.2).assign(place=place)


def curved(n_rows: int = 600) -> pd.DataFrame:
    """Return a table with a product and a wave, the inputs of which are missing."""
    generator = np.random.default_rng(1)
    z = generator.multivariate_normal(np.zeros(3), 0.5 + 0.5 * np.eye(3), n_rows)
    y = np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2] + 0.3 * generator.normal(size=n_rows)
    frame = pd.DataFrame(z, columns=["a", "b", "c"])
    return frame.mask(generator.random(z.shape) < 0.3).assign(y=y)


@pytest.mark.parametrize(
    ("frame", "inputs", "reason"),
    [
        (steps(), "others", "nearby rows improve predictions"),
        (curved(), "earlier", "a joint density of the columns"),
    ],
    ids=["steps", "curves"],
)
def test_auto_takes_a_joint_density_unless_nearby_rows_tell_more(
    frame: pd.DataFrame, inputs: str, reason: str
) -> None:
    choice = MGPImputer(random_state=0, progress=False).fit(frame).settings_.inputs
    assert (choice.value, choice.reason) == (inputs, reason)


def test_the_gain_of_local_gps_is_an_average_over_links() -> None:
    frame = steps()
    near = MGPImputer(inputs="others", random_state=0, progress=False).fit(frame).neighbours_
    assert near is not None
    first, second = (metrics[0].params.gain if metrics else 0.0 for metrics in near.links)
    assert 0.2 < max(first, second) < 1
    assert near.gain == (first + second) / 2
