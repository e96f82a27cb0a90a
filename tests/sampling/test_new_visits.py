"""The process at new visits has its distribution given known visits and cells."""

from __future__ import annotations

import numpy as np
import torch

from pyro_mgp.inference.time_process import ProcessDraw, ProcessOffset, TimeProcess
from pyro_mgp.model.kernels import RandomEffects, matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.offsets import WithOffsets
from pyro_mgp.model.ornstein_uhlenbeck import Visits
from pyro_mgp.sampling.new_groups import CellsOfGroups
from pyro_mgp.sampling.new_visits import are_new_visits, given_visits

KNOWN = torch.tensor([[0, 0.0], [0, 2.0], [1, 1.0]]).double()
# Subject, time, input and cell; the last row is that of a new subject, the first a known visit.
ROWS = torch.tensor([[0, 2.0, 0, 9.0], [0, 1.0, 0, 1.5], [0, 3.0, 0, 0.0], [7, 5.0, 0, -1.0]]).double()
RANGE, VARIANCE = 1.5, 0.8


def process() -> TimeProcess:
    subjects, times = KNOWN[:, 0].long(), KNOWN[:, 1]
    visits = Visits.of(subjects, times)
    known = subjects[visits.rows], times[visits.rows]
    effects = RandomEffects(0, 2, 0.0, 1.0, time=1)
    return TimeProcess(0, 1, effects, [0], visits, known, torch.ones(1).double(), (0.0, 1.0))


def test_draws_at_new_visits_have_the_posterior_of_a_gaussian_process() -> None:
    own, n = process(), 20_000
    values = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)[own.visits.rows]
    precision, scale = torch.full((n, 1, 1), 1 / VARIANCE).double(), torch.full((n, 1), RANGE).double()
    drawn = ProcessDraw(values.expand(n, 1, -1), scale, precision)
    link = Link(matern32(1), torch.zeros(1, 1).double(), 3, [2], Gaussian(0.5))
    plain = link(torch.zeros(n, 1).double())
    conditional = WithOffsets.of(plain, ProcessOffset(own, 0, own.known, drawn))
    told = torch.tensor([True, True, False, True])
    table, generator = ROWS.expand(n, -1, -1), torch.Generator().manual_seed(0)
    noise = torch.randn(n, 4, generator=generator).double()
    cells = CellsOfGroups([link], table, [told], lambda *_: noise)
    assert are_new_visits(own, ROWS).tolist() == [False, True, True, True]
    with torch.no_grad():
        (found,) = given_visits([conditional], cells, lambda i: noise)
        at = plain.moments(table)
    assert isinstance(found, WithOffsets)
    offset = found.offsets[0].at(table, ())[0].numpy()
    # All visits of these subjects: known ones as they are, new ones given these and cells of two of them.
    subjects, times = (np.append(KNOWN[:, k].numpy(), ROWS[1:, k].numpy()) for k in range(2))
    near = np.exp(-np.abs(times[:, None] - times) / RANGE) * (subjects[:, None] == subjects)
    noises = np.array([1e-9, 1e-9, 1e-9, *(at.variance[0, [1, 3]] + 0.5)])
    seen = [0, 1, 2, 3, 5]
    V = VARIANCE * near[np.ix_(seen, seen)] + np.diag(noises)
    mean = at.mean[0].numpy()
    given = np.array([0.7, -0.4, 1.1, 1.5 - mean[1], -1.0 - mean[3]])
    gain = VARIANCE * near[3:, seen] @ np.linalg.inv(V)
    np.testing.assert_allclose(offset[:, 0], -0.4, rtol=1e-12)
    np.testing.assert_allclose(offset[:, 1:].mean(0), gain @ given, atol=0.03)
    expected = VARIANCE * near[3:, 3:] - VARIANCE * gain @ near[seen, 3:]
    np.testing.assert_allclose(np.cov(offset[:, 1:].T), expected, atol=0.03)


def test_known_visits_leave_conditionals_as_they_are() -> None:
    own = process()
    drawn = own.start(2)
    link = Link(matern32(1), torch.zeros(1, 1).double(), 3, [2], Gaussian(0.5))
    conditional = WithOffsets.of(link(torch.zeros(2, 1).double()), own.offset(0, drawn))
    table = ROWS[:1].expand(2, -1, -1)
    cells = CellsOfGroups([link], table, [torch.tensor([True])], lambda *_: torch.zeros(2, 1).double())
    assert given_visits([conditional], cells, lambda *_: torch.zeros(2, 1).double()) == [conditional]
