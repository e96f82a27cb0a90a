"""Cells within limits, from a table to pooled estimates, files and diagnostics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyro.infer import Predictive
from scipy import optimize, stats

from pyro_mgp import ColumnSpec, Engine, Imputations, MGPImputer, calibrate, split_limits
from pyro_mgp.data.table_encoder import InputTable

INF = np.inf


def censored(n: int = 120, seed: int = 0, more: bool = False) -> tuple[pd.DataFrame, dict[Any, ColumnSpec]]:
    """Return z, and x = 1 + z / 2 + noise below -0.2, above 2.2 or within unit intervals in some rows."""
    g = np.random.default_rng(seed)
    z = g.normal(size=n)
    x = 1 + 0.5 * z + 0.8 * g.normal(size=n)
    low, high = np.full(n, np.nan), np.full(n, np.nan)
    high[x < 0.5] = 0.5
    low[x > 2.0] = 2.0
    between = (x > 0.5) & (x < 2.0) & (np.arange(n) % 2 == 0)
    low[between], high[between] = np.floor(x[between] * 2) / 2, np.floor(x[between] * 2) / 2 + 0.5
    known = np.isnan(low) & np.isnan(high) & (np.arange(n) % 7 > 0)
    frame = pd.DataFrame({"z": z, "x": np.where(known, x, np.nan), "low": low, "high": high})
    if more:
        frame["w"] = np.where(np.arange(n) % 5 == 1, np.nan, x - z + 0.5 * g.normal(size=n))
        frame["kind"] = pd.Series(
            np.where(g.random(n) < 0.1, None, np.where(x + z > 1, "a", "b")), dtype="object"
        )
    return frame, {"x": ColumnSpec(lower_limit="low", upper_limit="high")}


def assert_within(draws: Imputations, frame: pd.DataFrame) -> None:
    holes = frame["x"].isna()
    for table in draws:
        cells = table["x"][holes]
        assert (cells >= frame["low"].fillna(-INF)[holes]).all()
        assert (cells <= frame["high"].fillna(INF)[holes]).all()
        pd.testing.assert_frame_equal(table[["low", "high"]], frame[["low", "high"]])
        assert table["x"][~holes].equals(frame["x"][~holes])


def imputer(specs: dict[Any, ColumnSpec], **settings: Any) -> MGPImputer:
    return MGPImputer(specs=specs, random_state=0, progress=False, **settings)


@pytest.mark.parametrize("inputs", ["auto", "others"])
def test_slopes_and_means_are_those_of_the_censored_likelihood(inputs: str) -> None:
    frame, specs = censored(300)
    fitted = imputer(specs, inputs=inputs).fit(frame)
    assert fitted.settings_.inputs.value == ("earlier" if inputs == "auto" else "others")
    draws = fitted.impute(m=40)
    assert_within(draws, frame)
    X = np.column_stack([np.ones(300), frame["z"]])
    slopes = np.array([np.linalg.lstsq(X, table["x"], rcond=None)[0] for table in draws])
    deviations = [np.std(table["x"] - X @ b) for table, b in zip(draws, slopes, strict=True)]
    x, low, high = frame["x"].to_numpy(), frame["low"].fillna(-INF), frame["high"].fillna(INF)

    def loss(p: np.ndarray) -> float:
        normal = stats.norm(X @ p[:2], np.exp(p[2]))
        cells = np.where(
            np.isnan(x), np.log(normal.cdf(high) - normal.cdf(low)), normal.logpdf(np.nan_to_num(x))
        )
        return -float(cells.sum())

    best = optimize.minimize(loss, [1.0, 0.5, -0.2])
    errors = np.sqrt(np.diag(best.hess_inv))
    found = np.array([*slopes.mean(0), np.log(np.mean(deviations))])
    assert np.abs((found - best.x) / errors).max() < 0.5
    within = slopes.std(0, ddof=1) ** 2
    # Variance between imputations: what the interval of the complete table lacks.
    residual = np.exp(2 * best.x[2])
    complete = residual * np.diag(np.linalg.inv(X.T @ X))
    np.testing.assert_allclose(within + complete, errors[:2] ** 2, rtol=0.35)


def test_without_its_limits_a_column_is_imputed_too_high() -> None:
    frame, specs = censored(300)
    frame = frame.assign(low=np.nan)
    frame.loc[frame["x"] > 2.0, "x"] = np.nan
    with_limits = np.mean([table["x"].mean() for table in imputer(specs).fit(frame).impute(m=5)])
    without = np.mean([table["x"].mean() for table in imputer({}).fit(frame[["z", "x"]]).impute(m=5)])
    assert with_limits < without - 0.05


@pytest.mark.slow
def test_new_rows_saved_imputers_and_files_keep_limits(tmp_path: Path) -> None:
    frame, specs = censored(more=True)
    fitted = imputer(specs).fit(frame)
    draws = fitted.impute(m=3)
    assert_within(draws, frame)
    new, _ = censored(40, seed=1, more=True)
    assert_within(fitted.impute(new, m=3), new)
    point = fitted.transform(new)
    holes = new["x"].isna()
    assert (point["x"][holes] <= new["high"].fillna(INF)[holes]).all()
    fitted.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    for one, other in zip(loaded.impute(frame, m=3), draws, strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-6)
    draws.save(tmp_path / "draws")
    assert Imputations.load(tmp_path / "draws") == draws
    for path, table in zip(fitted.impute_to_parquet(tmp_path / "tables", m=3), draws, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(path), table, rtol=1e-6, check_dtype=False)


def test_a_row_with_limits_is_imputed_alone_as_among_others() -> None:
    frame, specs = censored(60, more=True)
    fitted = imputer(specs, max_steps=5).fit(frame)
    together = fitted.impute(frame, m=2)
    for i in (0, 4, 7, 11):
        alone = fitted.impute(frame.iloc[[i]], m=2)
        for one, every in zip(alone, together, strict=True):
            pd.testing.assert_frame_equal(one, every.iloc[[i]], rtol=1e-4)


def test_rows_with_other_limits_have_other_draws() -> None:
    frame, specs = censored()
    fitted = imputer(specs, max_steps=5).fit(frame)
    rows = pd.DataFrame({"z": 0.3, "x": np.nan, "low": [np.nan, 2.0, np.nan], "high": [np.nan, np.nan, 0.5]})
    drawn = np.array([table["x"] for table in fitted.impute(rows, m=200)])
    assert (drawn[:, 1] >= 2.0).all() and (drawn[:, 2] <= 0.5).all()
    assert 0.8 < drawn[:, 0].mean() < 1.5
    assert len(np.unique(drawn[0].round(6))) == 3


def lognormal(n: int = 120) -> tuple[pd.DataFrame, np.ndarray]:
    """Return z, and x below .5 known by both limits, with the true cells."""
    g = np.random.default_rng(5)
    z = g.normal(size=n)
    x = np.exp(0.7 * z + 0.8 * g.normal(size=n))
    below = x < 0.5
    limits = {"low": np.where(below, 0.0, np.nan), "high": np.where(below, 0.5, np.nan)}
    return pd.DataFrame({"z": z, "x": np.where(below, np.nan, x), **limits}), x


@pytest.mark.parametrize("inputs", ["auto", "others"])
@pytest.mark.parametrize("low", [0.0, -5.0, np.nan])
def test_draws_between_zero_and_a_limit_of_detection_spread(low: float, inputs: str) -> None:
    """No observed cell is as low as they are."""
    frame, x = lognormal()
    frame["low"] = np.where(frame["high"].notna(), low, np.nan)
    fitted = imputer({"x": ColumnSpec(lower_limit="low", upper_limit="high")}, inputs=inputs).fit(frame)
    holes = frame["x"].isna()
    drawn = np.array([table["x"][holes] for table in fitted.impute(m=10)])
    assert drawn.std(0).min() > 0.02 and (drawn == 0.5).mean() < 0.02
    assert drawn.mean() == pytest.approx(x[holes].mean(), abs=0.06)
    assert fitted.transform(frame)["x"][holes].mean() == pytest.approx(x[holes].mean(), abs=0.06)


def test_limits_of_new_rows_may_lie_where_no_cell_was_observed() -> None:
    frame, _ = lognormal()
    fitted = imputer({"x": ColumnSpec(lower_limit="low", upper_limit="high")}).fit(frame)
    far = float(frame["x"].max())
    new = pd.DataFrame({"z": [2.0] * 5, "x": np.nan, "low": far, "high": np.nan})
    drawn = np.array([table["x"] for table in fitted.impute(new, m=20)])
    assert (drawn >= far).all() and (drawn > 1.01 * far).mean() > 0.8
    impossible = new.assign(low=np.nan, high=-1.0)
    with pytest.raises(ValueError, match="expected cells on one side of 0, as at fit"):
        fitted.impute(impossible, m=1)


@pytest.mark.parametrize("inputs", ["auto", "others"])
def test_shifted_draws_stay_within_limits_without_piling_up_there(inputs: str) -> None:
    frame, specs = censored(more=True)
    fitted = imputer(specs, inputs=inputs, max_steps=5).fit(frame)
    limited = (frame["low"].notna() | frame["high"].notna()).to_numpy()
    shifted, plain = (fitted.impute(m=10, delta=delta) for delta in ({"x": 1.0}, None))
    assert_within(shifted, frame)
    cells = np.array([table["x"] for table in shifted])
    ends = [frame["low"].to_numpy(), frame["high"].to_numpy()]
    assert np.mean([np.isin(own, end[limited]).mean() for own in cells[:, limited] for end in ends]) < 0.01
    free = (frame["x"].isna() & ~limited).to_numpy()
    unshifted = np.array([table["x"] for table in plain])
    assert (cells - unshifted)[:, free].mean() == pytest.approx(1.0, abs=0.3)


def test_a_column_that_was_complete_at_fit_has_a_link_for_its_limits() -> None:
    frame, specs = censored()
    complete = frame[frame["x"].notna()]
    fitted = imputer(specs, max_steps=5).fit(complete)
    assert "x" in fitted.order_
    draws = fitted.impute(frame, m=5)
    assert_within(draws, frame)
    assert np.mean([table["x"].isin([0.5, 2.0]).mean() for table in draws]) < 0.01


def test_equal_rows_with_other_limits_have_their_own_keys_in_parts() -> None:
    frame, specs = censored()
    encoder = imputer(specs, max_steps=2).fit(frame).model_.encoder
    _, with_limits, _ = encoder.identify(frame)
    _, without, _ = encoder.identify(frame.assign(low=np.nan, high=np.nan))
    limited = (frame["low"].notna() | frame["high"].notna())[frame["x"].isna()].to_numpy()
    assert np.array_equal(with_limits != without, limited)


def test_a_column_may_have_no_limit_at_fit() -> None:
    frame, specs = censored()
    frame[["low", "high"]] = np.nan
    fitted = imputer(specs, max_steps=5).fit(frame)
    new, _ = censored(30, seed=2)
    assert_within(fitted.impute(new, m=2), new)


def test_calibration_and_arviz_take_tables_with_limits() -> None:
    frame, specs = censored(200)
    fitted = imputer(specs).fit(frame)
    result = calibrate(fitted, frame, columns=["x"], share=0.3, m=50, levels=[0.5, 0.9], progress=False)
    assert result.table.set_index("column").loc["x", "cells"] > 10
    data = fitted.impute(m=8).to_arviz()
    assert all(np.isfinite(values).all() for values in data.log_likelihood.values())
    assert all(np.isfinite(values).all() for values in data.posterior.values())


def test_the_pyro_model_draws_within_limits() -> None:
    frame, specs = censored()
    fitted = imputer(specs, max_steps=5).fit(frame)
    table: InputTable = fitted.model_.own_table()
    rows, guide = table.encoded, fitted.model_.guide()
    predictive = Predictive(fitted.chain_.model, guide=guide, num_samples=4, parallel=True)
    with torch.random.fork_rng():
        drawn = predictive(rows.values, rows.observed, None, rows.limits)["filled"]
    assert rows.limits is not None
    lower, upper = rows.limits.unbind(-1)
    inside = (drawn >= lower - 1e-4) & (drawn <= upper + 1e-4)
    assert bool((inside | rows.observed).all())
    codec = fitted.codec_.columns[1]
    holes = frame["x"].isna().to_numpy()
    decoded = [codec.decode(each[holes, 1:2]) for each in drawn.squeeze().numpy()]
    for cells, imputed in zip(decoded, fitted.impute(m=range(guide.n_drawn - 4, guide.n_drawn)), strict=True):
        np.testing.assert_allclose(cells, imputed["x"][holes], atol=1e-4)


@pytest.mark.parametrize(
    "settings", [{"inference": "svi", "max_steps": 100}, {"loss": "elbo", "max_steps": 30}]
)
def test_svi_trains_with_limits(settings: dict[str, Any]) -> None:
    from pyro.infer import Trace_ELBO

    if settings.get("loss") == "elbo":
        settings = settings | {"loss": Trace_ELBO(), "inference": "svi"}
    frame, specs = censored()
    fitted = imputer(specs, inputs="others", **settings).fit(frame)
    assert np.isfinite(fitted.history_.loss).all()
    assert_within(fitted.impute(m=2), frame)


def test_text_with_limits_is_imputed_after_it_is_split() -> None:
    frame, _ = censored()
    text = frame["x"].map("{:.3f}".format).where(frame["x"].notna(), None)
    text = text.where(~((frame["high"] == 0.5) & frame["low"].isna()), "<0.5")
    split, specs = split_limits(pd.DataFrame({"z": frame["z"], "x": text}))
    draws = imputer(specs, max_steps=5).fit(split).impute(m=2)
    assert (draws[0]["x"][text == "<0.5"] <= 0.5).all()


@pytest.mark.parametrize(
    ("changes", "settings", "sentence"),
    [
        (
            {"x": pd.array([1, None] * 60, dtype="Int64"), "low": np.nan},
            {},
            "limits are for continuous columns",
        ),
        ({"x": [1.0, np.nan] * 60, "low": np.nan}, {}, "observed cells that differ"),
        ({}, {"inference": "mcmc"}, "missing cells have limits"),
        ({}, {"engine": Engine(propagate="latent")}, "cells of .*'x'.* may have limits"),
    ],
)
def test_what_cannot_have_limits_is_said(changes: Any, settings: Any, sentence: str) -> None:
    frame, specs = censored()
    if changes:
        frame = frame.assign(**changes).assign(high=np.where(np.arange(120) % 2, 9.0, np.nan))
    with pytest.raises(ValueError, match=sentence):
        imputer(specs, **settings).fit(frame)
