"""Folders that earlier programs saved are read, and impute as they did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import Imputations, MGPImputer, saving
from pyro_mgp.results import imputations

SAVED = Path(__file__).parent / "golden" / "saved"
IMPUTERS = sorted(SAVED.glob("imputer-*"))
IMPUTATIONS = sorted(SAVED.glob("imputations-*"))


def name(path: Path) -> str:
    return path.name


def test_the_formats_of_this_version_have_a_folder() -> None:
    assert f"imputer-{saving.FORMAT_VERSION}" in {path.name for path in IMPUTERS}
    assert f"imputations-{imputations.FORMAT_VERSION}" in {path.name for path in IMPUTATIONS}


@pytest.mark.parametrize("folder", IMPUTATIONS, ids=name)
def test_saved_imputations_are_read(folder: Path) -> None:
    draws = Imputations.load(folder)
    assert (draws.m, draws.frame.shape) == (3, (40, 4))
    assert draws.frame.isna().sum().to_dict() == {"x": 0, "y": 7, "well": 7, "grade": 7}
    table = draws[2]
    assert not table.isna().any().any()
    assert [str(dtype) for dtype in table.dtypes] == ["float64", "float64", "boolean", "category"]
    pd.testing.assert_frame_equal(table[15:], draws.frame[15:].assign(grade=table["grade"][15:]))


@pytest.mark.parametrize("folder", IMPUTERS, ids=name)
def test_a_saved_imputer_imputes_as_it_did(folder: Path) -> None:
    saved = Imputations.load(IMPUTATIONS[-1])
    draws = MGPImputer.load(folder).impute(saved.frame, m=3)
    # Draws of levels are equal, those of numbers up to the rounding of other processors and libraries.
    np.testing.assert_allclose(draws.values["y"], saved.values["y"], rtol=1e-6)
    for column in ("well", "grade"):
        assert (draws.values[column] == saved.values[column]).all()


def test_other_formats_are_refused_by_number_and_version(tmp_path: Path) -> None:
    header = json.loads((IMPUTERS[-1] / "header.json").read_text("utf-8"))
    (tmp_path / "header.json").write_text(
        json.dumps(header | {"format_version": 4, "package_version": "0.0.3"})
    )
    with pytest.raises(
        ValueError, match=r"has format version 4, this program reads .* load it with pyro_mgp 0.0.3"
    ):
        MGPImputer.load(tmp_path)
