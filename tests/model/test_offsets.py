"""Conditionals with offsets: the same at rows as along columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.offsets import WithOffsets


@dataclass(frozen=True)
class Plane:
    """Offset that is linear in column 0."""

    height: float
    slope: float

    def at(self, table: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        slopes = table.new_zeros(*table.shape[:2], len(columns))
        if 0 in columns:
            slopes[..., list(columns).index(0)] = self.slope
            return torch.full_like(table[..., 0], self.height), slopes
        return self.height + self.slope * table[..., 0], slopes


def test_offsets_add_up_at_rows_and_along_columns() -> None:
    rng = np.random.default_rng(0)
    link = Link(matern32(2), torch.as_tensor(rng.normal(size=(5, 2))), 2, [0, 1], Gaussian(0.3))
    functions, table = (torch.as_tensor(rng.normal(size=shape)) for shape in ((4, 5), (4, 6, 3)))
    plain = link(functions)
    both = WithOffsets.of(WithOffsets.of(plain, Plane(1.0, 0.5)), Plane(-3.0, 2.0))
    assert both.conditional is plain and len(both.offsets) == 2
    expected = plain.moments(table).mean - 2.0 + 2.5 * table[..., 0]
    torch.testing.assert_close(both.moments(table).mean, expected)
    torch.testing.assert_close(both.moments(table).variance, plain.moments(table).variance)
    rows = table[0]
    torch.testing.assert_close(both.functions(rows), plain.functions(rows) - 2.0 + 2.5 * rows[:, 0])
    moved, paths = torch.as_tensor(rng.normal(size=(4, 6, 2))), torch.arange(4).repeat_interleave(6)
    changed = table.clone()
    changed[..., :2] = moved
    along = both.along(table, [1, 0])(paths, torch.arange(6).repeat(4), moved.flip(-1).flatten(0, 1))
    torch.testing.assert_close(along.mean.view(4, 6), both.moments(changed).mean)
