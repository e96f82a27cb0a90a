"""Models are compared by cells that neither may know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import MGPImputer
from pyro_mgp.analysis.model_comparison import _choose_cells, _imputed, standard_errors_worse
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.sampling.fitted_model import FittedModel


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


@pytest.fixture(scope="module")
def conditional() -> FittedModel:
    return MGPImputer(inputs="others", random_state=0, progress=False).fit(steps()).model_


def test_a_model_without_local_gps_is_worse_where_nearby_rows_tell(conditional: FittedModel) -> None:
    assert conditional.neighbours is not None
    other = replace(conditional, neighbours=None)
    assert standard_errors_worse(conditional, other) > 2
    assert standard_errors_worse(other, conditional) < -2
    assert standard_errors_worse(conditional, conditional) == 0


def test_draws_of_held_out_cells_do_not_depend_on_their_values(conditional: FittedModel) -> None:
    held_out = _choose_cells(conditional)
    own = conditional.own_table()
    assert 0.1 < float(held_out.sum() / own.encoded.observed[:, :2].sum()) < 0.3
    assert not held_out[~own.encoded.observed].any() and not held_out[:, 2].any()
    _, order = own.encoded.sorted_by_key()
    training, neighbours = conditional.training, conditional.neighbours
    assert training is not None and neighbours is not None
    values = own.encoded.values.masked_fill(held_out, 9.0)
    residuals = neighbours.residuals.masked_fill(held_out[order].T[:2], 9.0)
    changed = replace(
        conditional,
        training=EncodedTable(values[order], training.observed, training.keys),
        own=replace(own, encoded=EncodedTable(values, own.encoded.observed, own.encoded.keys)),
        neighbours=replace(neighbours, residuals=residuals),
    )
    torch.testing.assert_close(_imputed(changed, held_out), _imputed(conditional, held_out), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("frame", "inputs", "reason"),
    [
        (steps(), "others", "nearby rows predict held-out cells better than a joint density"),
        (curved(), "earlier", "a joint density of the columns"),
    ],
    ids=["steps", "curves"],
)
def test_auto_takes_the_model_that_predicts_held_out_cells_better(
    frame: pd.DataFrame, inputs: str, reason: str
) -> None:
    choice = MGPImputer(random_state=0, progress=False).fit(frame).settings_.inputs
    assert (choice.value, choice.reason) == (inputs, reason)
