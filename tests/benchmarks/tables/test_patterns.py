"""Patterns of missing cells: rates, rows that keep a cell, blocks, and dependence on observed cells only."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tables.patterns import PATTERNS, at_random, completely_at_random, in_blocks, incomplete


def normal(n_rows: int, n_columns: int, seed: int = 0) -> pd.DataFrame:
    cells = np.random.default_rng(seed).normal(size=(n_rows, n_columns))
    return pd.DataFrame(cells, columns=[f"x{j}" for j in range(n_columns)])


@settings(max_examples=40, deadline=None)
@given(
    pattern=st.sampled_from(list(PATTERNS)),
    n_rows=st.integers(60, 300),
    n_columns=st.integers(3, 12),
    seed=st.integers(0, 99),
)
def test_no_row_is_missing_entirely_and_the_rate_is_met(
    pattern: str, n_rows: int, n_columns: int, seed: int
) -> None:
    table = normal(n_rows, n_columns)
    holes = incomplete(table, pattern, seed).isna().to_numpy()
    assert not holes.all(1).any()
    rate, cells = int(pattern[-2:]) / 100, n_rows * n_columns
    # Five standard errors of independent cells; cells of blocks and of rows are fixed in number.
    assert abs(holes.mean() - rate) <= 5 * np.sqrt(rate * (1 - rate) / cells)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_draw_depends_on_its_seed_alone_and_leaves_observed_cells(pattern: str) -> None:
    table = normal(200, 5).astype({"x0": int})
    first = incomplete(table, pattern, 1)
    pd.testing.assert_frame_equal(first, incomplete(table, pattern, 1))
    assert not first.isna().equals(incomplete(table, pattern, 2).isna())
    pd.testing.assert_frame_equal(first.fillna(table), table.astype(float))


def test_cells_completely_at_random_are_independent_given_that_a_row_keeps_one() -> None:
    """The number of missing cells in a row is binomial without its largest value."""
    holes = completely_at_random(normal(40_000, 3), 0.5, np.random.default_rng(0))
    shares = np.bincount(holes.sum(1), minlength=4) / len(holes)
    odds = shares[2] / shares[1]  # q / (1 - q)
    assert shares[3] == 0
    assert shares[1] / shares[0] == pytest.approx(3 * odds, rel=0.05)
    assert holes.mean(0) == pytest.approx(0.5, abs=0.01)


def test_cells_at_random_depend_on_observed_cells_of_their_row_and_not_on_themselves() -> None:
    table = normal(8000, 5)
    holes, values = at_random(table, 0.3, np.random.default_rng(0)), table.to_numpy()
    assert holes.mean(0) == pytest.approx(0.3, abs=0.01)
    for j in range(5):
        # Columns are independent, so that a cell tells nothing about the other cells of its row.
        assert abs(values[holes[:, j], j].mean() - values[:, j].mean()) < 0.06
    lost = holes.any(1)
    observed = np.where(holes, 0.0, values).sum(1) / np.sqrt((~holes).sum(1))
    assert observed[lost].mean() > 0.2
    assert set(holes.sum(1)) == {0, 3}


def test_blocks_are_columns_that_are_missing_together_in_groups_of_rows() -> None:
    holes = in_blocks(normal(500, 10), 0.3, np.random.default_rng(0))
    kinds, rows = np.unique(holes, axis=0, return_counts=True)
    assert (kinds.sum(1) == 3).all()
    assert rows.sum() == 500
    assert set(rows % 50) == {0}
    np.testing.assert_array_equal(holes.sum(0), 150)


def test_blocks_cover_columns_equally_where_their_number_is_no_multiple_of_ten() -> None:
    holes = in_blocks(normal(1000, 4), 0.3, np.random.default_rng(0))
    np.testing.assert_array_equal(holes.sum(0), 300)
