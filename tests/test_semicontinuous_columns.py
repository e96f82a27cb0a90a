"""Semicontinuous columns, from a table to pooled estimates, files and diagnostics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyro.infer import Predictive

from pyro_mgp import ColumnSpec, Imputations, MGPImputer, calibrate
from pyro_mgp.analysis.relevance import relevance
from pyro_mgp.analysis.variance_shares import variance_shares
from pyro_mgp.cli import main
from pyro_mgp.data.column_spec import Kind
from pyro_mgp.data.table import TableWarning

FOUND = "ignore:.*modelled in two parts"


def amounts(n: int = 200, seed: int = 0, *, whole: bool = False, sign: float = 1.0) -> pd.DataFrame:
    """Return x, z that is zero in a third of the rows and log-normal in the others, and y that sees both."""
    g = np.random.default_rng(seed)
    x = g.normal(size=n)
    is_zero = 0.6 + x + g.normal(size=n) < 0
    log_z = 1 + 0.5 * x + 0.5 * g.normal(size=n)
    z = np.where(is_zero, 0.0, np.ceil(10 * np.exp(log_z)) if whole else np.exp(log_z))
    y = 0.5 * x + np.where(is_zero, -1.0, log_z) + 0.5 * g.normal(size=n)
    frame = pd.DataFrame({"x": x, "z": sign * z, "y": y})
    frame.loc[g.random(n) < 0.3, "z"] = np.nan
    frame.loc[g.random(n) < 0.15, "y"] = np.nan
    return frame


def imputer(**settings: Any) -> MGPImputer:
    return MGPImputer(random_state=0, progress=False, **settings)


def assert_two_parts(draws: Imputations, frame: pd.DataFrame, sign: float = 1.0) -> None:
    holes = frame["z"].isna()
    for table in draws:
        cells = sign * table["z"][holes]
        assert (cells >= 0).all() and (cells > 0).any()
        assert table["z"][~holes].equals(frame["z"][~holes])


def test_a_common_smallest_number_is_found_and_said() -> None:
    frame = amounts()
    with pytest.warns(
        TableWarning, match=r"'z': 3\d% of its observed cells equal its smallest number, 0\. .*two parts"
    ):
        fitted = imputer().fit(frame)
    assert [column.kind for column in fitted.codec_.columns][1] is Kind.SEMICONTINUOUS
    draws = fitted.impute(m=40)
    assert_two_parts(draws, frame)
    complete = amounts_given(frame)
    zeros = np.array([(table["z"][frame["z"].isna()] == 0).mean() for table in draws])
    assert zeros.mean() == pytest.approx(complete, abs=0.1) and zeros.std() > 0.01


def amounts_given(frame: pd.DataFrame) -> float:
    """Return the share of zeros among missing cells of `amounts`, by drawing them again given x and y."""
    g = np.random.default_rng(1)
    rows = frame[frame["z"].isna()]
    x, y = (np.tile(rows[name].to_numpy(), (4000, 1)) for name in ("x", "y"))
    log_z = 1 + 0.5 * x + 0.5 * g.normal(size=x.shape)
    is_zero = 0.6 + x + g.normal(size=x.shape) < 0
    mean = 0.5 * x + np.where(is_zero, -1.0, log_z)
    weights = np.where(np.isnan(y), 1.0, np.exp(-0.5 * ((y - mean) / 0.5) ** 2))
    return float(((weights * is_zero).sum(0) / weights.sum(0)).mean())


def test_a_kind_that_is_given_is_not_said_and_continuous_has_one_part() -> None:
    frame = amounts()
    fitted = imputer(specs={"z": ColumnSpec(kind="semicontinuous")}).fit(frame)
    assert {"z=0", "z>0"} <= {*fitted.chain_.names}
    one = imputer(specs={"z": ColumnSpec(kind="continuous")}).fit(frame)
    assert "z=0" not in one.chain_.names


@pytest.mark.filterwarnings(FOUND)
def test_whole_amounts_stay_whole_and_a_largest_number_is_a_bound_as_well() -> None:
    frame = amounts(whole=True, sign=-1.0)
    fitted = imputer().fit(frame)
    draws = fitted.impute(m=5)
    assert_two_parts(draws, frame, sign=-1.0)
    assert all((table["z"] % 1 == 0).all() for table in draws)


@pytest.mark.filterwarnings(FOUND)
@pytest.mark.slow
def test_point_predictions_are_means_over_both_parts() -> None:
    frame = amounts()
    fitted = imputer().fit(frame)
    holes = frame["z"].isna()
    mean = np.mean([table["z"][holes] for table in fitted.impute(m=200)], axis=0)
    found = np.asarray(fitted.transform(frame)["z"][holes])
    assert np.abs(found - mean).mean() < 0.25 * mean.std()
    assert found.mean() == pytest.approx(mean.mean(), rel=0.05)


def test_point_predictions_near_the_bound_of_whole_numbers_are_the_bound() -> None:
    g = np.random.default_rng(0)
    x = g.normal(size=300)
    z = np.where(x + 0.5 * g.normal(size=300) < 0.4, 0, 1 + g.poisson(0.7, size=300))
    frame = pd.DataFrame({"x": x, "z": np.where(g.random(300) < 0.3, np.nan, z)})
    fitted = imputer(specs={"z": ColumnSpec(kind="semicontinuous")}).fit(frame)
    holes = frame["z"].isna()
    mean = np.mean([table["z"][holes] for table in fitted.impute(m=200)], axis=0)
    found = np.asarray(fitted.transform(frame)["z"][holes])
    assert (found[mean < 0.3] == 0).all() and np.abs(found - mean)[mean > 0.7].max() < 0.4
    rounded = fitted.transform(frame.astype({"z": "Int64"}))["z"][holes].to_numpy(np.float64)
    assert (rounded[mean < 0.3] == 0).all() and (rounded[mean > 0.7] >= 1).all()
    assert all(np.abs(each - mean).max() < 0.8 for each in (found, rounded))


@pytest.mark.filterwarnings("error::pyro_mgp.data.table.TableWarning")
@pytest.mark.slow
def test_hazards_and_log_weights_and_mcmc_have_no_parts() -> None:
    """Times of censored patients often are the end of the study, and weights are often one."""
    frame, g = amounts(150), np.random.default_rng(0)
    frame["z"] = frame["z"].fillna(1.0) + 0.1 * g.normal(size=150)
    time = np.minimum(g.exponential(4, size=150), 5.0)
    outcome = frame.assign(time=time, event=time < 5, w=np.where(time < 3, 1.0, time))
    fitted = imputer(survival=("time", "event"), weights="w", max_steps=5).fit(
        outcome[["x", "y", "time", "event", "w"]]
    )
    assert all(column.kind is not Kind.SEMICONTINUOUS for column in fitted.codec_.columns)
    small = amounts(60).drop(columns="y")
    by_mcmc = imputer(inference="mcmc", max_steps=5).fit(small)
    assert "z=0" not in by_mcmc.chain_.names


@pytest.mark.filterwarnings("error::pyro_mgp.data.table.TableWarning")
def test_complete_columns_and_those_with_slopes_in_groups_have_one_part() -> None:
    """Many visits are at time zero, and growth is linear in time."""
    frame = amounts(150).drop(columns="z").assign(patient=np.repeat(np.arange(30), 5))
    frame["t"] = np.where(np.arange(150) % 5 == 0, 0.0, np.random.default_rng(0).uniform(1, 3, size=150))
    complete = imputer(max_steps=5).fit(frame[["x", "y", "t"]])
    frame.loc[3::7, "t"] = np.nan
    specs = {"patient": ColumnSpec(kind="group", slopes=["t"])}
    for fitted in (complete, imputer(specs=specs, max_steps=5).fit(frame)):
        kinds = {column.name: column.kind for column in fitted.codec_.columns}
        assert kinds["t"] is Kind.CONTINUOUS


def test_limits_are_for_numbers_in_one_part() -> None:
    frame = amounts().assign(most=np.nan)
    frame.loc[frame["z"].isna(), "most"] = 9.0
    specs = {"z": ColumnSpec(kind="semicontinuous", upper_limit="most")}
    with pytest.raises(ValueError, match="limits are for continuous columns, this is semicontinuous"):
        imputer(specs=specs).fit(frame)


@pytest.mark.filterwarnings(FOUND)
def test_new_rows_saved_imputers_and_files_keep_both_parts(tmp_path: Path) -> None:
    frame, new = amounts(), amounts(40, seed=1)
    fitted = imputer().fit(frame)
    draws = fitted.impute(m=3)
    assert_two_parts(fitted.impute(new, m=3), new)
    fitted.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    for one, other in zip(loaded.impute(frame, m=3), draws, strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-6)
    draws.save(tmp_path / "draws")
    assert Imputations.load(tmp_path / "draws") == draws
    for path, table in zip(fitted.impute_to_parquet(tmp_path / "tables", m=3), draws, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(path), table, rtol=1e-6, check_dtype=False)


@pytest.mark.filterwarnings(FOUND)
def test_rows_are_imputed_alone_as_among_others() -> None:
    frame = amounts(80)
    fitted = imputer(max_steps=5).fit(frame)
    together = fitted.impute(frame, m=2)
    for i in np.flatnonzero(frame["z"].isna())[:4]:
        for one, every in zip(fitted.impute(frame.iloc[[i]], m=2), together, strict=True):
            pd.testing.assert_frame_equal(one, every.iloc[[i]], rtol=1e-4)


@pytest.mark.filterwarnings(FOUND)
@pytest.mark.slow
def test_calibration_arviz_and_relevance_take_both_parts() -> None:
    frame = amounts()
    fitted = imputer().fit(frame)
    result = calibrate(fitted, frame, columns=["z"], share=0.3, m=50, levels=[0.5, 0.9], progress=False)
    row = result.table.set_index("column").loc["z"]
    assert row["cells"] > 10 and np.isfinite(row["crps"])
    data = fitted.impute(m=8).to_arviz()
    assert all(np.isfinite(values).all() for values in data.log_likelihood.values())
    replicates = data.in_sample_predictive["z"]
    assert 0.2 < float((replicates == 0).mean()) < 0.45 and float(replicates.min()) == 0
    shares = variance_shares(fitted)
    assert np.isfinite(shares.loc["z"]).all()
    table = relevance(fitted)
    assert 0.1 < table["x"].loc["z"] < 5


@pytest.mark.filterwarnings(FOUND)
def test_the_pyro_model_draws_both_parts() -> None:
    frame = amounts(80)
    fitted = imputer(max_steps=5).fit(frame)
    rows, guide = fitted.model_.own_table().encoded, fitted.model_.guide()
    predictive = Predictive(fitted.chain_.model, guide=guide, num_samples=4, parallel=True)
    with torch.random.fork_rng():
        drawn = predictive(rows.values, rows.observed)["filled"].squeeze().numpy()
    here, holes = fitted.codec_.slices["z"], frame["z"].isna().to_numpy()
    column = next(column for column in fitted.codec_.columns if column.name == "z")
    decoded = [column.decode(table[holes, here]) for table in drawn]
    for cells, imputed in zip(decoded, fitted.impute(m=range(guide.n_drawn - 4, guide.n_drawn)), strict=True):
        np.testing.assert_allclose(cells, imputed["z"][holes], rtol=1e-4)


def test_the_command_line_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = amounts(80)
    frame.round(4).to_csv(tmp_path / "table.csv", index=False)
    arguments = [str(tmp_path / "table.csv"), "-o", str(tmp_path / "out"), "-m", "2", "--quiet"]
    assert main(["impute", *arguments, "--steps", "2"]) == 0
    assert "modelled in two parts" in capsys.readouterr().err
    filled = pd.read_csv(tmp_path / "out" / "imputation_01.csv")
    assert (filled["z"] >= 0).all() and filled["z"].notna().all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"inputs": "others"}, 'inputs="others" has none'),
        ({"specs": {"y": ColumnSpec(derived="x + z")}}, "columns are derived from others"),
    ],
)
def test_where_two_parts_cannot_be_had_is_said(settings: dict[str, Any], sentence: str) -> None:
    frame = amounts()
    if "specs" in settings:
        frame["y"] = frame["x"] + frame["z"]
    specs = {**settings.pop("specs", {}), "z": ColumnSpec(kind="semicontinuous")}
    with pytest.raises(ValueError, match=f"'z': its two parts cannot be had, since {sentence}"):
        imputer(specs=specs, **settings).fit(frame)


@pytest.mark.filterwarnings(FOUND)
def test_shifts_of_two_parts_are_refused() -> None:
    fitted = imputer(max_steps=5).fit(amounts(80))
    with pytest.raises(ValueError, match=r"delta of column 'z': it is modelled in two parts"):
        fitted.impute(m=2, delta={"z": 1.0})
