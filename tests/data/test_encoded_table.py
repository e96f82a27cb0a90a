"""The table as tensors."""

from __future__ import annotations

import numpy as np
import torch

from pyro_mgp.data.encoded_table import EncodedTable

VALUES = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, 6.0]])
KEYS = np.array([2**63 + 1, 5, 7], dtype=np.uint64)


def test_missing_cells_hold_zeros_and_come_back_as_nan() -> None:
    table = EncodedTable.from_numpy(VALUES, KEYS)
    assert table.observed.tolist() == [[True, False], [True, True], [False, True]]
    assert table.values[0, 1] == table.values[2, 0] == 0
    np.testing.assert_array_equal(table.to_numpy(), VALUES)
    assert len(table) == 3


def test_rows_are_sorted_by_unsigned_keys_in_whatever_order_they_came() -> None:
    table = EncodedTable.from_numpy(VALUES, KEYS)
    ordered, order = table.sorted_by_key()
    assert order.tolist() == [1, 2, 0]  # as signed numbers, the first key would be negative
    shuffled, _ = table[torch.tensor([2, 0, 1])].sorted_by_key()
    assert torch.equal(shuffled.values, ordered.values)
    assert torch.equal(shuffled.keys, ordered.keys)


def test_a_column_is_appended_with_its_missing_cells() -> None:
    table = EncodedTable.from_numpy(VALUES, KEYS).append_column(np.array([np.nan, 1.0, 2.0]))
    assert table.observed[:, 2].tolist() == [False, True, True]
    assert table.values[:, 2].tolist() == [0.0, 1.0, 2.0]
    assert table.keys.tolist() == EncodedTable.from_numpy(VALUES, KEYS).keys.tolist()


def test_slices_and_indices_take_rows_of_everything() -> None:
    table = EncodedTable.from_numpy(VALUES, KEYS)
    for part in (table[1:], table[torch.tensor([1, 2])], table[1:].to(torch.device("cpu"))):
        np.testing.assert_array_equal(part.to_numpy(), VALUES[1:])
        assert part.keys.tolist() == [5, 7]


def test_rows_are_found_by_key_mask_and_observed_cells() -> None:
    table = EncodedTable.from_numpy(VALUES, KEYS)
    order = torch.tensor([2, 0, 1])
    assert torch.equal(table.numbers_of(table[order]), order)
    other = EncodedTable(table.values + 1e-3, table.observed, table.keys)
    assert table.numbers_of(other).tolist() == [-1, -1, -1]
    # What stands in a missing cell does not matter, which cells are missing does.
    filled = EncodedTable(table.values.where(table.observed, 9.0), table.observed, table.keys)
    assert table.numbers_of(filled).tolist() == [0, 1, 2]
    seen = EncodedTable(table.values, table.observed | True, table.keys)
    assert table.numbers_of(seen).tolist() == [-1, 1, -1]
    assert table.numbers_of(EncodedTable(table.values, table.observed, table.keys + 1)).tolist() == [
        -1,
        -1,
        -1,
    ]
