"""Imputers in folders: what earlier formats wrote draws as it did when it was written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from signing import sign
from torch import Tensor

from pyro_mgp import Engine, Imputations, MGPImputer
from pyro_mgp.data.table import TableCodec
from pyro_mgp.fitting import chain_fit
from pyro_mgp.model.link_specs import LinkSpec
from pyro_mgp.sampling.sampler import Sampler

SAVED = Path(__file__).parent / "saved"


@pytest.mark.parametrize("version", [8, 9])
def test_folders_of_earlier_formats_draw_as_they_did(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell on its own: the functions by which cells vary together are newer than these formats."""
    monkeypatch.setattr(Sampler, "_processes", lambda self, _: [None] * len(self.chain.links))
    folder = SAVED / f"version_{version}"
    draws = Imputations.load(folder / "draws")
    imputer = MGPImputer.load(folder / "imputer")
    assert imputer.neighbours_ is not None
    for completed, expected in zip(imputer.impute(draws.frame, m=draws.m), draws, strict=True):
        pd.testing.assert_frame_equal(completed, expected, rtol=1e-12, atol=1e-12)


def test_switches_of_earlier_formats_are_read_into_the_engine() -> None:
    imputer = MGPImputer.load(SAVED / "version_9" / "imputer")
    assert imputer.engine == Engine()
    assert imputer.discrete_support == 50
    assert imputer.settings_.seed.value == imputer.seed_ == 1


def test_links_with_many_inputs_had_no_products_in_format_10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(_: TableCodec, links: list[LinkSpec], __: Tensor) -> list[LinkSpec]:
        return [replace(link, product_inputs=()) for link in links]

    monkeypatch.setattr(chain_fit, "with_product_inputs", without)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 17))).add_prefix("x")
    frame.loc[::3, "x0"] = np.nan
    imputer = MGPImputer(inputs="earlier", order=["x0"], max_steps=2, random_state=0, progress=False)
    imputer.fit(frame).save(tmp_path / "it")
    header = json.loads((tmp_path / "it" / "header.json").read_text("utf-8"))
    assert header["wirings"][0].pop("product_inputs") == []
    header["format_version"] = 10
    (tmp_path / "it" / "header.json").write_text(json.dumps(header), "utf-8")
    sign(tmp_path / "it")
    assert MGPImputer.load(tmp_path / "it").impute(frame, m=2) == imputer.impute(frame, m=2)


def test_the_settings_of_a_fit_are_saved_with_their_reasons(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": range(40), "y": [float(i % 7) for i in range(40)]})
    frame.loc[::5, "y"] = None
    imputer = MGPImputer(random_state=4, max_steps=2, n_inducing=8, progress=False).fit(frame)
    imputer.save(tmp_path / "it")
    saved, loaded = imputer.settings_, MGPImputer.load(tmp_path / "it").settings_
    for name in ("inputs", "n_inducing", "max_steps", "seed"):
        assert getattr(loaded, name) == getattr(saved, name)
    assert loaded.to_frame().loc["max_steps"].tolist() == [2, "as given"]
    assert "n_inducing=8: as given" in str(saved).splitlines()


def test_an_imputer_trained_without_natural_gradients_was_trained_by_svi(tmp_path: Path) -> None:
    folder = shutil.copytree(SAVED / "version_9" / "imputer", tmp_path / "it")
    header = json.loads((folder / "header.json").read_text("utf-8"))
    header["settings"]["natural_gradient"] = False
    (folder / "header.json").write_text(json.dumps(header), "utf-8")
    sign(folder)
    imputer = MGPImputer.load(folder)
    assert imputer.inference == imputer.settings_.inference.value == "svi"
    assert imputer.engine == MGPImputer.load(SAVED / "version_9" / "imputer").engine
