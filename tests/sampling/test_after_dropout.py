"""Reference-based draws against the conditional normal distribution of Carpenter, Roger and Kenward."""

import numpy as np
import pytest
import torch

from pyro_mgp.sampling.after_dropout import Subjects, Visits, after_last_observed

K, S = 4, 3
STRATEGIES = ("J2R", "CR", "CIR", "LMCF")


class Linear:
    """Conditional of a visit: a linear function of the row for each of S draws, `weights` `[S, D]`."""

    def __init__(self, weights):
        self.weights = weights

    def mean(self, rows):
        return torch.einsum("snd,sd->sn", rows, self.weights)


@pytest.fixture
def visits():
    """Visits in columns 2 to 5, after a baseline and the arm, which is 0 in the reference arm."""
    weights = torch.randn(K, S, 2 + K, generator=torch.Generator().manual_seed(0)).double()
    for k in range(K):
        weights[k, :, 2 + k :] = 0.0
    return Visits(range(2, 2 + K), [Linear(own) for own in weights], [1], torch.zeros(1).double()), weights


def subjects_of(strategy, after):
    everyone = torch.ones(len(after), dtype=torch.bool)
    follow = {each: everyone if each == strategy else ~everyone for each in STRATEGIES}
    return Subjects(after, follow)


def conditional_normal(strategy, weights, row, last):
    """Means and covariance of a subject's visits after `last`, as rbmi computes them."""
    slopes, noise = weights[:, 2:], np.diag(np.arange(1.0, K + 1))
    total = np.linalg.inv(np.eye(K) - slopes)
    covariance = total @ noise @ total.T
    own, reference = (total @ (weights[:, 0] * row[0] + weights[:, 1] * arm) for arm in (row[1], 0.0))
    t = last - 1
    means = {
        "MAR": own,
        "J2R": np.r_[own[:last], reference[last:]],
        "CR": reference,
        "CIR": np.r_[own[:last], reference[last:] + (own[t] - reference[t])],
        "LMCF": np.r_[own[:last], np.full(K - last, own[t])],
    }[strategy]
    gain = covariance[last:, :last] @ np.linalg.inv(covariance[:last, :last])
    return means[last:] + gain @ (row[2 : 2 + last] - means[:last])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("last", [1, 2, 3])
def test_draws_have_the_means_of_the_conditional_normal_distribution(visits, strategy, last):
    of_trial, weights = visits
    rows = torch.randn(S, 5, 2 + K, generator=torch.Generator().manual_seed(1)).double()
    rows[..., :2] = rows[0, :, :2]
    after = (torch.arange(K) >= last).expand(5, K)
    drawn = of_trial.redrawn(rows, subjects_of(strategy, after))
    for s in range(S):
        for n in range(5):
            row, own = rows[s, n].numpy(), weights[:, s].numpy()
            expected = [conditional_normal(each, own, row, last) for each in (strategy, "MAR")]
            # Residuals of a draw do not depend on the strategy, so that draws differ by their means.
            moved = (drawn[s, n] - rows[s, n]).numpy()
            np.testing.assert_allclose(moved[2 + last :], expected[0] - expected[1], atol=1e-10)
            assert (moved[: 2 + last] == 0).all()


def test_copied_increments_begin_at_the_reference_without_any_visit(visits):
    rows = torch.randn(S, 5, 2 + K, generator=torch.Generator().manual_seed(2)).double()
    after = torch.ones(5, K, dtype=torch.bool)
    jumped, copied = (visits[0].redrawn(rows, subjects_of(each, after)) for each in ("J2R", "CIR"))
    torch.testing.assert_close(copied, jumped)


def test_subjects_may_follow_different_strategies(visits):
    rows = torch.randn(S, 2, 2 + K, generator=torch.Generator().manual_seed(3)).double()
    after = (torch.arange(K) >= 2).expand(2, K)
    follow = {each: torch.tensor([each == "CR", each == "J2R"]) for each in STRATEGIES}
    both = visits[0].redrawn(rows, Subjects(after, follow))
    copied, jumped = (visits[0].redrawn(rows, subjects_of(each, after)) for each in ("CR", "J2R"))
    torch.testing.assert_close(both, torch.stack([copied[:, 0], jumped[:, 1]], dim=1))
    assert not torch.allclose(copied, jumped)


def test_dropout_begins_after_the_last_observed_visit():
    observed = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    after = after_last_observed(observed)
    assert after.int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 1]]
    assert Subjects(after, {}).last.tolist() == [2, 3, -1, 0]
