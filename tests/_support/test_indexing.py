"""Rows at an index are those of advanced indexing, whatever the shape of the index."""

from __future__ import annotations

import pytest
import torch

from pyro_mgp._support.indexing import rows_at


@pytest.mark.parametrize("of_values", [(7,), (7, 3), (7, 0, 2)])
@pytest.mark.parametrize("of_index", [(), (5,), (2, 3), (0,), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_rows_are_those_of_advanced_indexing(of_values, of_index, dtype):
    values, index = torch.randn(of_values).mul(9).to(dtype), torch.randint(7, of_index)
    found = rows_at(values, index)
    assert found.shape == values[index].shape
    assert torch.equal(found, values[index])
