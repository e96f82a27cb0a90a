"""Imputers in folders: the settings of the fit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pyro_mgp import MGPImputer


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
