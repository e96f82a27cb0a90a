"""Relevance in tables with known dependences."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyro.contrib.gp.kernels as kernels
import pytest
import torch

from pyro_mgp import ColumnSpec, Engine, MGPImputer
from pyro_mgp.analysis.relevance import relevance

PENGUINS = Path(__file__).parents[2] / "examples" / "data" / "penguins.csv"


def table(n_rows: int = 1001) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 2)), columns=["x1", "x2"])
    frame["sine"] = np.sin(2 * frame["x1"]) + 0.05 * rng.normal(size=n_rows)
    frame["line"] = 0.6 * frame["x1"] - 0.8 * frame["x2"] + 0.05 * rng.normal(size=n_rows)
    frame.loc[::5, "sine"] = np.nan
    frame.loc[1::5, "line"] = np.nan
    return frame


def fitted(frame: pd.DataFrame, **settings: object) -> MGPImputer:
    return MGPImputer(random_state=0, n_neighbors=0, inputs="others", **settings).fit(frame)


@cache
def of_table() -> MGPImputer:
    return fitted(table())


def test_relevance_finds_the_predictors_of_a_column() -> None:
    found = relevance(of_table())
    assert found.index.tolist() == ["sine", "line"]
    assert found.columns.tolist() == ["x1", "x2", "sine", "line"]
    assert found.loc["sine", "x1"] > 5 * found.loc["sine", "x2"]
    assert np.isnan(found.loc["sine", "sine"])
    # The root mean square of the derivative 2 cos(2x), x and the sine standardised.
    frame = table()
    expected = (np.sqrt(np.square(2 * np.cos(2 * frame["x1"])).mean()) * frame["x1"].std()) / frame[
        "sine"
    ].std()
    assert found.loc["sine", "x1"] == pytest.approx(expected, rel=0.15)


def test_relevance_of_a_linear_function_is_its_slope() -> None:
    frame = table()
    found = relevance(of_table()).loc["line"]
    spread = frame.std(ddof=0)
    assert found["x1"] == pytest.approx(0.6 * spread["x1"] / spread["line"], abs=0.03)
    assert found["x2"] == pytest.approx(0.8 * spread["x2"] / spread["line"], abs=0.03)


@pytest.mark.parametrize("kernel", ["linear+matern32", lambda p: kernels.RBF(p, lengthscale=torch.ones(p))])
def test_derivatives_agree_with_finite_differences(kernel: object) -> None:
    imputer = fitted(table(60), kernel=kernel)
    rows = imputer.initial_fill_.expected(imputer.model_.own_table().encoded)
    step = 1e-5
    found = relevance(imputer).fillna(0.0)
    with torch.no_grad():
        conditionals = imputer.chain_.conditionals()
        for conditional, name in zip(conditionals, imputer.order_, strict=True):
            for j, label in enumerate(found.columns):
                up, down = rows.clone(), rows.clone()
                up[:, j] += step
                down[:, j] -= step
                slope = (conditional.functions(up) - conditional.functions(down)) / (2 * step)
                expected = slope.square().mean().sqrt().item()
                assert found.loc[name, label] == pytest.approx(expected, rel=1e-3)
    assert all(parameter.grad is None for parameter in imputer.chain_.parameters())


def test_a_category_of_two_levels_is_as_relevant_as_the_same_boolean() -> None:
    rng = np.random.default_rng(1)
    flag = rng.random(300) < 0.3
    frame = pd.DataFrame({"flag": flag, "x": rng.normal(size=300)})
    frame["y"] = flag + 0.3 * frame["x"] + 0.1 * rng.normal(size=300)
    frame.loc[::6, "y"] = np.nan
    of_flag = relevance(fitted(frame)).loc["y"]
    of_text = relevance(fitted(frame.assign(flag=np.where(flag, "yes", "no")))).loc["y"]
    assert of_flag["flag"] == pytest.approx(flag.std() / frame["y"].std(), rel=0.1)
    assert of_text["flag"] == pytest.approx(of_flag["flag"], rel=0.05)
    assert of_text["x"] == pytest.approx(of_flag["x"], rel=0.05)


def test_inverse_lengthscales_are_those_of_the_kernels() -> None:
    imputer = of_table()
    found = relevance(imputer, by="lengthscale")
    for link, name in zip(imputer.chain_.links, imputer.order_, strict=True):
        parameters = dict(link.kernel.named_parameters()).items()
        (logarithm,) = (value for key, value in parameters if key.endswith("lengthscale_unconstrained"))
        inverse = (-logarithm).exp().detach().cpu().numpy()
        expected = pd.Series(inverse, [found.columns[j] for j in link.inputs.tolist()])
        assert found.loc[name].dropna().to_dict() == pytest.approx(expected.to_dict())


def test_penguins_have_one_row_per_incomplete_column_and_one_column_per_column() -> None:
    penguins = pd.read_csv(PENGUINS).assign(constant=1)
    penguins.loc[::7, "species"] = None
    imputer = fitted(penguins, max_steps=3)
    for found in (relevance(imputer), relevance(imputer, by="lengthscale")):
        incomplete = penguins.columns[penguins.isna().any()].tolist()
        assert found.index.tolist() == incomplete
        assert found.columns.tolist() == penguins.columns.tolist()
        assert found["constant"].isna().all()
        own = np.array([[row == column for column in found] for row in found.index])
        others = found.drop(columns="constant").to_numpy()
        assert np.isnan(others[own[:, :-1]]).all()
        assert (others[~own[:, :-1]] > 0).all()


def test_columns_excluded_by_specs_have_no_relevance() -> None:
    imputer = fitted(
        table(), max_steps=3, specs={"line": ColumnSpec(predictors=["x1"]), "x2": ColumnSpec(predicts=False)}
    )
    found = relevance(imputer)
    assert found.isna().to_numpy().tolist() == [[False, True, True, False], [False, True, True, True]]


@pytest.mark.parametrize("target_is_input", [True, False])
def test_the_target_is_last(target_is_input: bool) -> None:
    frame = table()
    y = (frame["x1"] + 0.1 * np.arange(len(frame)) % 1).rename("line")
    imputer = MGPImputer(
        random_state=0, n_neighbors=0, max_steps=3, engine=Engine(target_is_input=target_is_input)
    )
    found = relevance(imputer.fit(frame, y))
    assert found.index.tolist() == ["sine", "line", "target line"]
    assert found.columns.tolist() == [*frame.columns, *(["target line"] if target_is_input else [])]
    assert found.loc["target line"].idxmax() == "x1"


def test_a_loaded_imputer_needs_rows(tmp_path: Path) -> None:
    imputer = of_table()
    imputer.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    with pytest.raises(ValueError, match=r"does not hold the table .* relevance"):
        relevance(loaded)
    pd.testing.assert_frame_equal(relevance(loaded, table()), relevance(imputer))
    pd.testing.assert_frame_equal(relevance(loaded, by="lengthscale"), relevance(imputer, by="lengthscale"))


def test_a_complete_table_has_no_links_and_an_unknown_measure_is_refused() -> None:
    imputer = fitted(table()[["x1", "x2"]])
    assert relevance(imputer).shape == (0, 2)
    with pytest.raises(ValueError, match=r"by must be one of .* got 'weight'"):
        relevance(imputer, by="weight")  # type: ignore[arg-type]
