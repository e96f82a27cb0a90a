from __future__ import annotations

import pytest
import torch

from pyro_mgp._support.devices import in_halves


def test_rows_come_in_order_whatever_fits() -> None:
    for most in (1, 2, 3, 100):
        asked: list[int] = []

        def work(rows: slice, most: int = most, asked: list[int] = asked) -> int:
            asked.append(rows.stop - rows.start)
            if asked[-1] > most:
                raise torch.OutOfMemoryError("too many")
            return rows.start

        done = [*in_halves(slice(3, 20), work)]
        assert [row for rows, _ in done for row in range(rows.start, rows.stop)] == [*range(3, 20)]
        assert all(rows.start == start and rows.stop - rows.start <= most for rows, start in done)


def test_a_row_that_does_not_fit_is_an_error() -> None:
    def work(rows: slice) -> int:
        raise torch.OutOfMemoryError("too many")

    with pytest.raises(torch.OutOfMemoryError, match="too many"):
        list(in_halves(slice(0, 3), work))


def test_other_errors_are_not_of_memory() -> None:
    def work(rows: slice) -> int:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        list(in_halves(slice(0, 3), work))
