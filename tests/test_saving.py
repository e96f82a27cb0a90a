"""Imputers in folders: what earlier formats wrote draws as it did when it was written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from signing import sign

from pyro_mgp import Engine, Imputations, MGPImputer
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
