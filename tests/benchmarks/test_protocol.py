"""Split and RMSE of the paper's protocol, as computed by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.paper.protocol import rmse, split


def test_a_split_is_seven_to_three_with_the_missing_cells_of_its_generator() -> None:
    table = pd.DataFrame(np.arange(40.0).reshape(20, 2), columns=["a", "b"])
    train, test, truth = split(table, 0.3, seed=4)
    generator = np.random.default_rng(4)
    order, holes = generator.permutation(20), generator.random((20, 2)) < 0.3
    assert train.index.tolist() == order[:14].tolist()
    assert test.index.tolist() == order[14:].tolist()
    np.testing.assert_array_equal(test.isna(), holes[order[14:]])
    pd.testing.assert_frame_equal(truth, table.iloc[order[14:]])


def test_rmse_is_averaged_over_columns_in_units_of_the_filled_training_rows() -> None:
    train = pd.DataFrame({"a": [0.0, 2.0, np.nan], "b": [0.0, 10.0, 20.0]})
    test = pd.DataFrame({"a": [np.nan, np.nan], "b": [1.0, np.nan]})
    truth = pd.DataFrame({"a": [1.0, 1.0], "b": [1.0, 5.0]})
    completed = pd.DataFrame({"a": [2.0, 1.0], "b": [1.0, 7.0]})
    units = [np.std([0.0, 2.0, 1.0]), np.std([0.0, 10.0, 20.0])]
    expected = (np.sqrt(0.5) / units[0] + 2 / units[1]) / 2
    assert rmse(completed, truth, test, train) == pytest.approx(expected)
