"""Ornstein-Uhlenbeck processes agree with dense covariance matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyro_mgp.model.ornstein_uhlenbeck import OrnsteinUhlenbeck, Visits

SUBJECTS = torch.tensor([7, 2, 2, 5, 7, 7, 2, 7])
TIMES = torch.tensor([0.3, 1.0, 0.2, 4.0, 2.0, 0.9, 0.7, 0.5]).double()
RANGES = torch.tensor([[0.7], [2.0]]).double()


def covariance(visits: Visits, scale: float) -> np.ndarray:
    """Return the covariance matrix of the process at visits in their order, `[V, V]`."""
    subjects, times = (each[visits.rows].numpy() for each in (SUBJECTS, TIMES))
    near = np.exp(-np.abs(times[:, None] - times) / scale)
    return np.where(subjects[:, None] == subjects, near, 0.0)


def test_first_visits_come_first_and_rows_know_theirs() -> None:
    visits = Visits.of(SUBJECTS, TIMES)
    assert visits.ends == (3, 5, 7, 8)
    assert SUBJECTS[visits.rows].tolist() == [7, 2, 5, 7, 2, 7, 2, 7]
    assert visits.gaps.tolist() == pytest.approx([np.inf] * 3 + [0.2, 0.5, 0.4, 0.3, 1.1])
    assert visits.rows[visits.place].tolist() == list(range(8))
    assert [(here.start, before.start) for here, before in visits.steps()] == [(3, 0), (5, 3), (7, 5)]


def test_rows_of_the_same_subject_and_time_are_one_visit() -> None:
    twice = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 4, 2])
    visits, once = Visits.of(SUBJECTS[twice], TIMES[twice]), Visits.of(SUBJECTS, TIMES)
    assert visits.rows.tolist() == once.rows.tolist()
    assert visits.place.tolist() == [*once.place.tolist(), once.place[4], once.place[2]]


def test_no_rows_have_no_visits() -> None:
    visits = Visits.of(SUBJECTS[:0], TIMES[:0])
    assert visits.ends == () and len(visits.rows) == 0
    process = OrnsteinUhlenbeck.of(visits, RANGES)
    assert process.given(RANGES, torch.zeros(2, 0).double()).pivots.shape == (2, 0)


def test_innovations_whiten_the_process() -> None:
    visits = Visits.of(SUBJECTS, TIMES)
    process = OrnsteinUhlenbeck.of(visits, RANGES)
    identity = torch.eye(8).double().expand(2, -1, -1)
    whitening = process.innovations(identity).mT  # the rows are images of unit vectors
    for path, scale in enumerate(RANGES[:, 0].tolist()):
        W = whitening[path].numpy()
        np.testing.assert_allclose(W @ covariance(visits, scale) @ W.T, np.eye(8), atol=1e-12)


def test_the_factor_is_that_of_the_precision_given_observations() -> None:
    visits, rng = Visits.of(SUBJECTS, TIMES), np.random.default_rng(0)
    process, observed = OrnsteinUhlenbeck.of(visits, RANGES), torch.as_tensor(rng.uniform(size=(2, 8)))
    observed[:, 3] = 0.0
    precision = torch.tensor([[0.5], [3.0]]).double()
    factor = process.given(precision, observed)
    vectors = torch.as_tensor(rng.normal(size=(2, 3, 8)))
    for path, scale in enumerate(RANGES[:, 0].tolist()):
        dense = precision[path].item() * np.linalg.inv(covariance(visits, scale))
        dense += np.diag(observed[path].numpy())
        assert factor.pivots[path].log().sum().item() == pytest.approx(np.linalg.slogdet(dense)[1])
        solved = factor.backward(factor.forward(vectors) / factor.pivots[:, None])
        np.testing.assert_allclose(solved[path], np.linalg.solve(dense, vectors[path].numpy().T).T, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_long_series_keep_their_digits(scale: float) -> None:
    """With ranges far below and beyond the gaps, and precisions of many orders of magnitude."""
    rng, n = np.random.default_rng(1), 130
    subjects = torch.as_tensor(np.repeat([0, 1], [100, 30]))
    times = torch.as_tensor(rng.uniform(0, 30, n))
    visits = Visits.of(subjects, times)
    observed = torch.as_tensor(10 ** rng.uniform(-3, 5, (1, n)))
    process = OrnsteinUhlenbeck.of(visits, torch.full((1, 1), scale).double())
    factor = process.given(torch.ones(1, 1).double(), observed)
    t, subject = times[visits.rows].numpy(), subjects[visits.rows].numpy()
    near = np.where(subject[:, None] == subject, np.exp(-np.abs(t[:, None] - t) / scale), 0.0)
    dense = np.linalg.inv(near) + np.diag(observed[0].numpy())
    assert factor.pivots.log().sum().item() == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-8)
    vector = torch.as_tensor(rng.normal(size=(1, n)))
    solved = factor.backward(factor.forward(vector) / factor.pivots)
    expected = np.linalg.solve(dense, vector[0].numpy())
    np.testing.assert_allclose(solved[0], expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())
