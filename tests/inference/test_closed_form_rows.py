"""Division of the links and rows of a training step into groups."""

from __future__ import annotations

import pytest
import torch

from pyro_mgp._support.tiles import TILE
from pyro_mgp.inference import closed_form_rows

CPU = torch.device("cpu")


@pytest.mark.parametrize(("n_links", "entries"), [(24, 200_000), (5, 10), (7, 2**21), (1, 2**30), (9, 0)])
def test_groups_cover_all_links_once(n_links, entries):
    groups = list(closed_form_rows.slices(n_links, entries, CPU))
    assert [i for group in groups for i in range(n_links)[group]] == list(range(n_links))
    # Matrices that fill the cache alone are not put together for the threads' sake.
    assert entries < 2**20 or all(group.stop - group.start == 1 for group in groups)


def test_two_threads_get_equally_many_links_and_a_gpu_all():
    sizes = [group.stop - group.start for group in closed_form_rows.slices(24, 200_000, CPU)]
    assert sizes == [6, 6, 6, 6]
    assert len(list(closed_form_rows.slices(24, 200_000, torch.device("cuda")))) == 1


def test_observed_rows_fill_half_tiles_and_those_that_do_not_count_are_named():
    torch.manual_seed(0)
    observed = [torch.rand(351) > share for share in (0.1, 0.5, 0.99)]
    kept, valid, n_sure = closed_form_rows._observed_rows(observed)
    assert n_sure == min(int(column.sum()) for column in observed)
    assert valid.shape[1] % (TILE // 2) == 0 and valid.shape[1] - max(valid.sum(1)) < TILE // 2
    for column, rows, counts in zip(observed, kept, valid, strict=True):
        assert rows[counts].tolist() == column.nonzero()[:, 0].tolist()


def test_full_columns_of_half_tiles_need_no_mask():
    kept, valid, n_sure = closed_form_rows._observed_rows([torch.ones(TILE) > 0] * 2)
    assert valid is None and n_sure == TILE
    assert kept[0].tolist() == list(range(TILE))
