"""Mixing of the chains is known by column and cell, survives saving, and is said where it is slow."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

from pyro_mgp import Engine, Imputations, MGPImputer
from pyro_mgp.results.arviz_export import to_arviz
from pyro_mgp.results.mixing import Mixing


def table(n_rows: int = 120) -> pd.DataFrame:
    """Return numbers and three levels that depend on each other, with missing cells."""
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, n_rows))
    levels = np.array(["low", "middle", "high"])[np.digitize(a + generator.normal(size=n_rows), [-0.5, 0.5])]
    frame = pd.DataFrame({"a": a, "b": a + b + generator.normal(size=n_rows), "level": levels, "full": b})
    return frame.mask(generator.random(frame.shape) < [0.3, 0.3, 0.3, 0.0])


@pytest.fixture(scope="module")
def imputed() -> tuple[MGPImputer, Imputations]:
    imputer = MGPImputer(random_state=0, max_steps=5, progress=False)
    return imputer, imputer.fit(table()).impute(m=40)


def slow(**changes: float) -> Mixing:
    row = {"column": "income", "rhat_mean": 1.4, "rhat_sd": 2.0, "ess_mean": 40.0, "ess_sd": 9.0}
    row |= {"rhat_cell": 3.0, "cells_above": 0.4}
    well = [7, 1.0, float("nan"), 900.0, float("nan"), float("inf"), 0.0]
    return Mixing(pd.DataFrame([{**row, **changes}, dict(zip(row, well, strict=True))]), 20, 50, 10)


def test_incomplete_columns_have_r_hat_and_effective_sample_sizes(
    imputed: tuple[MGPImputer, Imputations],
) -> None:
    mixing = imputed[1].mixing
    assert mixing is not None and set(mixing.table["column"]) == {"a", "b", "level"}
    assert (mixing.n_chains, mixing.n_iterations, mixing.n_draws) == (20, 10, 2)
    found = mixing.table.set_index("column")
    assert found.loc[:, :"rhat_sd"].to_numpy().min() > 0.9 and found["rhat_mean"].max() < mixing.largest
    assert found.filter(like="ess").min().min() > 20
    assert not mixing.slow and mixing.words.startswith("the chains mix well: R-hat")


def test_cells_have_r_hat_in_the_order_of_their_draws(imputed: tuple[MGPImputer, Imputations]) -> None:
    imputer, draws = imputed
    assert draws.mixing is not None
    for label, values in draws.values.items():
        own = draws.mixing.cells[label]
        assert own.shape == values.shape[1:] and np.isfinite(own[~np.isnan(own)]).mean() > 0.9
    frame, n_other = table(), 30
    other = frame.iloc[:n_other].assign(full=9.0)
    other.index += 1000
    again = imputer.impute(pd.concat([other, frame.iloc[::-1]]), m=40).mixing
    assert again is not None
    n_of_other = int(other["a"].isna().sum())
    assert np.isnan(again.cells["a"][:n_of_other]).all()
    np.testing.assert_array_equal(again.cells["a"][n_of_other:], draws.mixing.cells["a"][::-1])


def test_more_imputations_continue_the_chains(imputed: tuple[MGPImputer, Imputations]) -> None:
    imputer, few = copy.deepcopy(imputed[0]), imputed[1]
    many = imputer.impute(m=100).mixing
    assert many is not None and few.mixing is not None
    assert many.n_iterations == 25 and many.largest < few.mixing.largest


def test_it_is_saved_and_copied_but_not_compared(
    imputed: tuple[MGPImputer, Imputations], tmp_path: Path
) -> None:
    _, draws = imputed
    draws.save(tmp_path / "draws")
    loaded = Imputations.load(tmp_path / "draws")
    assert loaded.mixing is not None and draws.mixing is not None and loaded == draws
    pd.testing.assert_frame_equal(loaded.mixing.table, draws.mixing.table)
    assert loaded.mixing.words == draws.mixing.words and not loaded.mixing.cells
    assert copy.deepcopy(draws).mixing is not None
    assert Imputations(draws.frame, draws.values, draws.m) == draws


def test_numbers_that_are_not_finite_are_saved(tmp_path: Path) -> None:
    draws = Imputations(pd.DataFrame({7: [1.0, None]}), {7: [[2.0]]}, 1, mixing=slow())
    draws.save(tmp_path / "draws")
    loaded = Imputations.load(tmp_path / "draws").mixing
    assert loaded is not None
    pd.testing.assert_frame_equal(loaded.table, slow().table)


def test_slow_columns_are_named_with_what_to_do() -> None:
    found = slow()
    assert found.slow == ["income"] and found.n_sweeps == 75
    assert re.search(r"slowly in columns \['income'\].* up to 2\.00 after 50.* n_sweeps=75", found.words)
    assert "mix well" in slow(rhat_mean=1.04, rhat_sd=1.05).words
    nothing = slow(rhat_mean=float("nan"), rhat_sd=float("nan"))
    assert nothing.slow == [] and nothing.worst == 1.0
    few = Mixing(nothing.table.iloc[:1], 20, 1, 1)
    assert few.words == "1 iterations of 20 chains are too few to judge whether the chains mix"


def test_chains_of_conditional_links_that_do_not_mix_are_said() -> None:
    """Two columns that are nearly equal, and missing in the same rows, follow each other by small steps."""
    generator = np.random.default_rng(0)
    a = generator.normal(size=150)
    b, c = a + 0.01 * generator.normal(size=150), generator.normal(size=150)
    frame = pd.DataFrame({"a": a, "b": b, "c": c})
    frame.loc[frame.index[::2], ["a", "b"]] = np.nan
    imputer = MGPImputer(inputs="others", random_state=0, max_steps=20, n_sweeps=6, progress=False)
    found = imputer.fit(frame).impute(m=20).mixing
    assert found is not None and not found.is_joint
    assert re.search(r"columns \['[ab]', '[ab]'\]: R-hat .*: inputs=\"earlier\" fits one$", found.words)


@pytest.mark.parametrize("settings", [{"joint_draws": False}, {"propagate": "latent"}], ids=str)
def test_without_chains_there_is_nothing_to_say(settings: dict[str, Any]) -> None:
    imputer = MGPImputer(
        random_state=0, max_steps=2, inputs="others", engine=Engine(**settings), progress=False
    ).fit(table())
    assert imputer.impute(m=2).mixing is None
    assert imputer.impute(table().dropna(), m=2).mixing is None


def test_it_is_exported_to_arviz(imputed: tuple[MGPImputer, Imputations]) -> None:
    _, draws = imputed
    other = MGPImputer(random_state=1, max_steps=5, progress=False).fit(table()).impute(m=40)
    tree = to_arviz([draws, other])
    for chain, mixing in enumerate([draws.mixing, other.mixing]):
        assert mixing is not None
        for _, own in mixing.table.iterrows():
            label = own["column"]
            found = tree["sample_stats"][f"rhat_mean_{label}"]
            assert found.dims == ("chain",) and float(found[chain]) == own["rhat_mean"]
            assert found.attrs["chains"] == 20 and found.attrs["largest_rhat"] == draws.mixing.largest
            assert float(tree["sample_stats"][f"ess_sd_{label}"][chain]) == own["ess_sd"]
            cells = tree["sample_stats"][f"rhat_{label}"]
            assert cells.dims == ("chain", f"{label}_row")
            assert cells[f"{label}_row"].equals(tree["predictions"][label][f"{label}_row"])
            np.testing.assert_array_equal(cells[chain], mixing.cells[label])
    by_hand = Imputations(draws.frame, draws.values, draws.m)
    assert not hasattr(to_arviz([draws, by_hand]), "sample_stats")


def test_imputations_with_r_hat_are_written_by_arviz(
    imputed: tuple[MGPImputer, Imputations], tmp_path: Path
) -> None:
    tree = imputed[1].to_arviz()
    tree.to_netcdf(str(tmp_path / "draws.nc"))
    with xarray.open_dataset(tmp_path / "draws.nc", group="sample_stats") as found:
        assert len(found.data_vars) > 0
        for name, own in tree["sample_stats"].data_vars.items():
            np.testing.assert_array_equal(found[name].values, own.values)
