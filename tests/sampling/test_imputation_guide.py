"""Samples of `Predictive` are imputations: with local GPs, discrete supports and bounds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from every_kind import SPECS, table_of_every_kind
from pyro.infer import Predictive

from pyro_mgp import ColumnSpec, MGPImputer
from tests.encoded_rows import encoded


def jumps(n_rows: int = 300) -> pd.DataFrame:
    """Return a table with steps, for which local GPs are chosen, ratings and a bounded column."""
    generator = np.random.default_rng(0)
    place = generator.uniform(0, 20, n_rows)
    level = generator.normal(size=21)[place.astype(int)]
    rating = np.clip(np.round(level + 3 + 0.3 * generator.normal(size=n_rows)), 1, 5)
    share = 1 / (1 + np.exp(0.3 * generator.normal(size=n_rows) - level))
    frame = pd.DataFrame({"place": place, "level": level, "rating": rating, "share": share})
    return frame.mask(generator.random(frame.shape) < 0.2).assign(place=place)


@pytest.fixture(scope="module", params=["every kind", "jumps", "joint density"])
def fitted(request: pytest.FixtureRequest) -> tuple[MGPImputer, pd.DataFrame]:
    """An imputer, and the table of its fit; no test may change them."""
    if request.param == "every kind":
        frame = table_of_every_kind(120).drop(columns=["dose", "total"])
        specs = {label: spec for label, spec in SPECS.items() if label in frame}
    else:
        frame, specs = jumps(), {"share": ColumnSpec(lower=0, upper=1)}
    inputs = "earlier" if request.param == "joint density" else "others"
    imputer = MGPImputer(specs=specs, inputs=inputs, max_steps=10, random_state=0, progress=False)
    return imputer.fit(frame), frame


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.slow
def test_samples_of_predictive_are_imputations(
    fitted: tuple[MGPImputer, pd.DataFrame], parallel: bool
) -> None:
    imputer, frame = fitted
    table, guide = encoded(imputer, frame), imputer.model_.guide()
    draw = Predictive(imputer.chain_.model, guide=guide, num_samples=3, parallel=parallel)
    found = draw(table.values, table.observed)["filled"]
    last = guide.n_drawn
    draws = imputer.model_.sampler().draws(table, range(last - 3, last))
    torch.testing.assert_close(found, torch.cat([drawn for _, drawn in draws], dim=1), rtol=0, atol=1e-5)
    assert (found.std(0)[~table.observed] > 0).any()


def test_no_parameter_store_is_touched(fitted: tuple[MGPImputer, pd.DataFrame]) -> None:
    imputer, frame = fitted
    table, before = encoded(imputer, frame), set(pyro.get_param_store().keys())
    state = torch.random.get_rng_state()
    imputer.model_.guide()(table.values, table.observed)
    assert set(pyro.get_param_store().keys()) == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_local_gps_and_supports_are_those_of_the_test(fitted: tuple[MGPImputer, pd.DataFrame]) -> None:
    imputer, frame = fitted
    if "place" in frame:
        assert any(support is not None for support in imputer.discrete_support_)
        assert (imputer.model_.neighbours is None) == imputer.sequential_


def test_chains_that_propagate_functions_are_refused() -> None:
    imputer = MGPImputer.paper(max_steps=2, n_inducing=10, random_state=0, progress=False)
    with pytest.raises(ValueError, match="propagates latent functions"):
        imputer.fit(jumps(60)).model_.guide()
