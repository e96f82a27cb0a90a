"""A row's numbers have the same bits in any company, also those that are rounded away in the end."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from every_kind import SPECS, table_of_every_kind

from pyro_mgp import Engine, MGPImputer
from pyro_mgp._support.tiles import TILE, filled_up, whole_tiles
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.sampling import refinement
from pyro_mgp.sampling.sampler import Sampler


@pytest.mark.parametrize("n", [0, 1, TILE - 1, TILE, TILE + 1])
def test_an_index_is_filled_up_by_its_last_entry(n: int) -> None:
    index = torch.arange(n) * 3
    filled = filled_up(index)
    assert torch.equal(filled[:n], index)
    assert len(filled) == -(-n // TILE) * TILE
    assert (filled[n:] == index[-1:]).all()


def test_batches_are_of_whole_tiles() -> None:
    assert [whole_tiles(n) for n in (0, 1, TILE, 3 * TILE - 1)] == [TILE, TILE, TILE, 2 * TILE]


def curved(n_rows: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    a, b = generator.normal(size=(2, n_rows))
    frame = pd.DataFrame({"a": a, "b": b, "c": a * b + 0.3 * generator.normal(size=n_rows)})
    return frame.mask((generator.random(frame.shape) < 0.2) & [True, False, True])


CHAINS = {
    "every kind": {},
    "float32": {"precision": "mixed"},
    "cell by cell": {"engine": Engine(joint_draws=False)},
    "one metric": {},
    "any kernel": {"kernel": "matern32", "n_inducing": 13},
    "sequential": {"inputs": "earlier"},
}


@pytest.fixture(scope="module", params=CHAINS)
def drawn(
    request: pytest.FixtureRequest,
) -> tuple[Sampler, EncodedTable, torch.Tensor, dict[int, torch.Tensor]]:
    """Who draws, new rows, and these rows filled and at their means when all are drawn together."""
    settings = {
        "n_inducing": 30,
        "max_steps": 2,
        "n_sweeps": 3,
        "random_state": 0,
        "progress": False,
    } | CHAINS[request.param]
    if request.param == "sequential":
        frame, new = curved(90, 0), curved(150, 1)
        imputer = MGPImputer(**settings).fit(frame)
    else:
        frame, new = table_of_every_kind(320, 0), table_of_every_kind(150, 1)
        with pytest.MonkeyPatch.context() as patch:
            n_metrics = 1 if request.param == "one metric" else 2
            patch.setattr(refinement, "_SMALL", 0)
            patch.setattr(refinement, "_METRICS", n_metrics)
            imputer = MGPImputer(specs=SPECS, **settings).fit(frame)
        assert imputer.neighbours_ is not None
        assert max(map(len, imputer.neighbours_.links)) == n_metrics
    sampler, rows = imputer.model_.sampler(), imputer.model_.encoder.encode(new).encoded
    (_, _, filled), *_ = sampler.swept(rows, range(3))
    return sampler, rows, filled, {n: sampler.means(rows, range(n)) for n in (3, TILE)}


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether tensors are equal; libraries of GPUs choose the order of their sums by the size of a batch."""
    return torch.equal(x, y) if x.device.type == "cpu" else torch.allclose(x, y, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_shuffled_pieces_have_the_bits_of_the_whole(
    drawn: tuple[Sampler, EncodedTable, torch.Tensor, dict[int, torch.Tensor]], seed: int
) -> None:
    sampler, rows, filled, means = drawn
    generator = np.random.default_rng(seed)
    order = torch.as_tensor(generator.permutation(150))
    ends = np.sort(generator.integers(1, 150, size=3))
    for piece in order.tensor_split(torch.as_tensor([1, *ends])):
        if len(piece):
            ((_, _, alone),) = sampler.swept(rows[piece], range(3))
            assert same(alone, filled[:, piece])
            for n_paths, expected in means.items():
                assert same(sampler.means(rows[piece], range(n_paths)), expected[piece])
