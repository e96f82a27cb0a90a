"""Tests of the choice between transformed columns and columns in their own units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.data.table import TableCodec
from pyro_mgp.fitting import transform_choice
from pyro_mgp.fitting.transform_choice import predicts_better_untransformed


def with_holes(frame: pd.DataFrame, share: float = 0.1) -> pd.DataFrame:
    """Return a table of which a share of the cells is missing."""
    return frame.mask(np.random.default_rng(1).random(frame.shape) < share)


def mostly_equal(n: int = 300) -> pd.DataFrame:
    """Return three columns of which most cells are zero, and linear functions of them."""
    rng = np.random.default_rng(0)
    first = np.where(rng.random((n, 3)) < 0.6, 0.0, rng.normal(5, 3, (n, 3)))
    mixed = first @ rng.normal(size=(3, 5)) + 0.02 * rng.normal(size=(n, 5))
    return with_holes(pd.DataFrame(np.hstack([first, mixed]), columns=list("abcdefgh")))


def log_normal(n: int = 300) -> pd.DataFrame:
    """Return columns of which each is a product of powers of others, with noise."""
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(n, 2)) @ rng.normal(size=(2, 5)) + 0.1 * rng.normal(size=(n, 5))
    return with_holes(pd.DataFrame(np.exp(logs), columns=list("abcde")))


def is_preferred(frame: pd.DataFrame) -> bool:
    codec = TableCodec.fit(frame, True, 0)
    return predicts_better_untransformed(codec, codec.encode(frame))


def transformed(codec: TableCodec) -> list[str]:
    return [str(column.name) for column in codec.columns if column.warp is not None]


def test_linear_relations_of_mostly_equal_cells_are_not_transformed() -> None:
    frame = mostly_equal()
    assert transformed(TableCodec.fit(frame, True))  # alone, columns are more nearly normal with a transform
    assert is_preferred(frame)
    assert is_preferred(frame[::-1])
    assert is_preferred(frame * 1000)


def test_products_are_transformed() -> None:
    assert len(transformed(TableCodec.fit(log_normal(), True))) == 5
    assert not is_preferred(log_normal())


def test_tables_without_transforms_and_wide_tables_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = mostly_equal()
    codec = TableCodec.fit(frame, False)
    assert not predicts_better_untransformed(codec, codec.encode(frame))
    monkeypatch.setattr(transform_choice, "_MOST_COLUMNS", 7)
    assert not is_preferred(frame)


def test_sums_of_whole_amounts_are_not_transformed() -> None:
    """Draws of whole numbers end with the observed range, with and without a transform."""
    rng = np.random.default_rng(0)
    first = np.where(rng.random((400, 3)) < 0.7, 0.0, rng.exponential(20, (400, 3))).round()
    frame = pd.DataFrame(np.hstack([first, first @ rng.integers(1, 4, size=(3, 4))]), columns=list("abcdefg"))
    frame = with_holes(frame).astype("Int64")
    assert len(transformed(TableCodec.fit(frame, True))) == 7
    assert is_preferred(frame)


def test_tables_of_few_rows_keep_their_transforms() -> None:
    few = log_normal(12)
    assert transformed(TableCodec.fit(few, True))
    assert not is_preferred(few)


def test_columns_that_a_part_of_the_rows_hardly_shows_do_not_decide() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(5000, 3)), columns=list("xyz")).assign(
        rare=np.where(np.arange(5000) < 3, np.exp(rng.normal(size=5000)), np.nan),
        spike=np.where(np.arange(5000) < 10, 50 * np.exp(rng.normal(size=5000)), 0.0),
    )
    for seed in range(5):
        mixed = frame.sample(frac=1.0, random_state=seed).reset_index(drop=True)
        mixed["x"] += 0.001 * seed  # other keys, and with them other rows
        assert not is_preferred(mixed)


def test_a_fit_drops_transforms_that_bounds_do_not_need() -> None:
    frame = mostly_equal().assign(share=with_holes(log_normal()[["a"]] / (1 + log_normal()[["a"]])))
    settings = {"random_state": 0, "progress": False, "max_steps": 2, "inputs": "others"}
    specs = {"share": ColumnSpec(lower=0.0, upper=1.0)}
    fitted = MGPImputer(specs=specs, **settings).fit(frame)
    assert transformed(fitted.codec_) == ["share"]
    share = fitted.impute(m=3).values["share"]
    assert ((share > 0) & (share < 1)).all()
    assert transformed(MGPImputer(**settings).fit(log_normal()).codec_) == list("abcde")


def test_a_fit_to_files_makes_the_same_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = mostly_equal()
    frame.to_parquet(tmp_path / "table.parquet")
    monkeypatch.setattr("pyro_mgp.fitting.table_fit._SMALL_ROWS", 100)
    settings = {"random_state": 0, "progress": False, "max_steps": 2, "n_neighbors": 0, "inputs": "others"}
    from_files = MGPImputer(**settings).fit_parquet(tmp_path)
    in_memory = MGPImputer(**settings).fit(frame)
    assert transformed(from_files.codec_) == transformed(in_memory.codec_) == []
    assert from_files.codec_ == in_memory.codec_


def test_scores_are_those_of_normal_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Independent columns are predicted by N(0, 1): CRPS = z (2Φ(z) - 1) + 2φ(z) - 1/√π.
    monkeypatch.setattr(transform_choice, "_QUANTILES", 4000)
    values = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = (values - values.mean()) / values.std(correction=0)
    z = values[:, 0].numpy()
    observed = torch.ones_like(values, dtype=torch.bool)
    scores = transform_choice._mean_scores(values, observed, {0: z}, {0: np.asarray})
    expected = z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi)
    np.testing.assert_allclose(scores, expected, atol=2e-3)
