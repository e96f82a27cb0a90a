"""Imputation with `inference="mcmc"`: every chain has lengthscales of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.inference import nuts


def curve(n: int = 24) -> pd.DataFrame:
    g = np.random.default_rng(3)
    x = g.normal(size=n)
    frame = pd.DataFrame({"x": x, "y": np.sin(3 * x) + 0.1 * g.normal(size=n)})
    frame.loc[[2, 5], "y"] = np.nan
    frame.loc[[7], "x"] = np.nan
    return frame


@pytest.fixture(scope="module")
def fitted() -> MGPImputer:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_WARMUP": 10, "_THINNING": 1, "_MAX_DEPTH": 3}.items():
            patch.setattr(nuts, name, value)
        return MGPImputer(inference="mcmc", random_state=0, max_steps=5, n_inducing=10, n_sweeps=2).fit(
            curve()
        )


def test_draws_do_not_depend_on_their_number_nor_on_saving(fitted: MGPImputer, tmp_path: Path) -> None:
    assert fitted.sequential_
    assert fitted.settings_.inference.value == "mcmc"
    five, some = fitted.impute(m=5), fitted.impute(m=[3, 24])
    assert some[0].equals(five[3])
    assert not some[1].equals(five[4])
    fitted.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    new = pd.DataFrame({"x": [0.3, np.nan, 1.0], "y": [np.nan, 0.2, 0.5]})
    pairs = zip(fitted.impute(new, m=3), loaded.impute(new, m=3), strict=True)
    assert all(one.equals(other) for one, other in pairs)
    assert fitted.transform(new).equals(loaded.transform(new))
    assert loaded.impute(curve(), m=5)[4].equals(five[4])


def test_arviz_has_the_lengthscale_of_each_draw(fitted: MGPImputer) -> None:
    posterior = fitted.impute(m=22).to_arviz().posterior
    each = [posterior[f"matern32_lengthscale_{name}"] for name in "xy"]
    assert all(own.attrs["estimate"] == "drawn" for own in each)
    # The first column of the order has no inputs.
    (values,) = (own.values.reshape(22, 1) for own in each if own.size)
    assert len(np.unique(values[:20])) > 10
    # Chains go on: draw 20 is the second one of the first chain.
    assert np.array_equal(values[:2], values[20:])


@pytest.mark.parametrize(
    ("changes", "frame", "message"),
    [
        (
            {"inputs": "others"},
            curve(),
            r'cannot be used with inputs="others", since a joint density is needed',
        ),
        ({"kernel": "matern32"}, curve(), "cannot be used with a kernel of your own"),
        ({}, curve(301), "the table has 301 rows, and lengthscales are drawn up to 300. Take inference="),
        ({"specs": {"y": ColumnSpec(predicts=False)}}, None, r"\['b'\] have other observations"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes: dict, frame: pd.DataFrame | None, message: str) -> None:
    if frame is None:
        frame = curve().assign(b=[True, None, False] * 8)
    imputer = MGPImputer(inference="mcmc", random_state=0, max_steps=2, n_inducing=5, **changes)
    with pytest.raises(ValueError, match=message):
        imputer.fit(frame)


def test_shifted_draws_are_larger(fitted: MGPImputer) -> None:
    draws, shifted = fitted.impute(m=3), fitted.impute(m=3, delta={"y": 1.0})
    holes = curve()["y"].isna()
    for one, other in zip(draws, shifted, strict=True):
        assert (other["y"] - one["y"])[holes].to_numpy() == pytest.approx(1.0, abs=0.5)


def test_a_complete_table_has_nothing_to_draw() -> None:
    complete = curve().dropna()
    assert MGPImputer(inference="mcmc", random_state=0).fit(complete).impute(m=1)[0].equals(complete)


def test_a_target_is_refused() -> None:
    with pytest.raises(ValueError, match='"mcmc" cannot be used: there is a target'):
        MGPImputer(inference="mcmc", random_state=0).fit(curve(), np.arange(24.0))


def test_links_with_linear_terms_only_of_most_inputs_have_lengthscales_of_the_others(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    frame = pd.DataFrame(g.normal(size=(30, 18)), columns=[f"x{j}" for j in range(18)])
    frame["y"] = frame["x0"] + 0.1 * g.normal(size=30)
    frame.loc[[2, 5], "y"] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_WARMUP": 2, "_THINNING": 1, "_MAX_DEPTH": 2}.items():
            patch.setattr(nuts, name, value)
        imputer = MGPImputer(inference="mcmc", random_state=0, max_steps=2, n_inducing=5, n_sweeps=1)
        imputer.fit(frame)
    (link,) = imputer.model_.chain.links
    curved = link.kernel.kern1.active_dims
    assert len(curved) < 18 and imputer.model_.lengthscales[0].shape[1] == len(curved)
    imputer.save(tmp_path / "imputer")
    draws = imputer.impute(m=2)
    assert MGPImputer.load(tmp_path / "imputer").impute(frame, m=2) == draws
    assert draws.to_arviz()["posterior"]["matern32_lengthscale_y"].shape == (1, 2, len(curved))
