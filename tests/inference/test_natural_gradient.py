"""Natural-gradient steps reach conjugate posteriors computed in NumPy, and are halved if too large."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyro
import pytest
import torch
from natural_gradient import natural_step, variational_pairs
from numpy.typing import NDArray
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroParam
from sklearn.gaussian_process.kernels import Matern
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, constraints, kl_divergence

from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link

Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def module_local() -> Iterator[None]:
    with pyro.settings.context(module_local_params=True):
        yield


class Regression(PyroModule):
    """Conjugate regression y = Φ u + noise with u ~ N(0, I) and q(u) = N(r, T Tᵀ)."""

    def __init__(self, features: Tensor, y: Tensor, noise: float, loc: Tensor, tril: Tensor) -> None:
        super().__init__()
        self.features, self.y, self.noise = features, y, noise
        self.u_loc = PyroParam(loc)
        self.u_scale_tril = PyroParam(tril, constraints.lower_cholesky)

    def loss(self) -> Tensor:
        """Return KL[q ‖ p] - Σ E_q log N(y; φᵀu, noise), without constants."""
        q = MultivariateNormal(self.u_loc, scale_tril=self.u_scale_tril)
        p = MultivariateNormal(torch.zeros_like(self.u_loc), torch.eye(len(self.u_loc)).to(self.u_loc))
        variance = (self.features @ self.u_scale_tril).square().sum(1)
        squared = (self.y - self.features @ self.u_loc).square() + variance
        return kl_divergence(q, p) + 0.5 * squared.sum() / self.noise

    def posterior(self) -> tuple[Array, Array]:
        """Return mean and precision of the posterior, in NumPy."""
        features, y = self.features.cpu().numpy(), self.y.cpu().numpy()
        precision = np.eye(features.shape[1]) + features.T @ features / self.noise
        return np.linalg.solve(precision, features.T @ y / self.noise), precision

    def q(self) -> tuple[Array, Array]:
        """Return mean and precision of q(u)."""
        tril = self.u_scale_tril.detach().cpu().numpy()
        return self.u_loc.detach().cpu().numpy().copy(), np.linalg.inv(tril @ tril.T)


def random_tril(size: int, generator: torch.Generator) -> Tensor:
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.linalg.cholesky(root @ root.T / size + 0.1 * torch.eye(size))


def regression(size: int, device: torch.device, seed: int = 0) -> Regression:
    """Return a regression on 30 rows whose q(u) starts at random, far from the posterior."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(30, size, generator=generator, dtype=torch.float64)
    y, loc = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (30, size))
    tensors = (features, y, 3 * loc, random_tril(size, generator))
    features, y, loc, tril = (tensor.to(device) for tensor in tensors)
    return Regression(features, y, 0.3, loc, tril)


def assert_same(actual: tuple[Array, Array], expected: tuple[Array, Array], rtol: float = 1e-8) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=rtol, atol=rtol * np.abs(e).max())


# --------------------------------------------------------------------------------------- conjugate posteriors


@pytest.mark.parametrize("size", [1, 2, 7])
def test_one_full_step_from_anywhere_is_the_posterior(size: int, device: torch.device) -> None:
    model = regression(size, device)
    assert np.abs(model.q()[0] - model.posterior()[0]).max() > 0.1
    model.loss().backward()
    natural_step(variational_pairs(model), 1.0)
    assert_same(model.q(), model.posterior())
    model.zero_grad()
    model.loss().backward()
    assert max(p.grad.abs().max().item() for p in model.parameters()) < 1e-8


@pytest.mark.parametrize("step_size", [0.0, 0.05, 0.5, 0.9])
def test_a_part_of_a_step_goes_that_part_of_the_way_in_natural_parameters(
    step_size: float, device: torch.device
) -> None:
    model = regression(4, device)
    (m0, P0), (m1, P1) = model.q(), model.posterior()
    model.loss().backward()
    natural_step(variational_pairs(model), step_size)
    precision = (1 - step_size) * P0 + step_size * P1
    mean = np.linalg.solve(precision, (1 - step_size) * P0 @ m0 + step_size * P1 @ m1)
    assert_same(model.q(), (mean, precision))


def test_links_of_different_sizes_each_reach_their_own_posterior(device: torch.device) -> None:
    models = nn.ModuleList([regression(size, device, seed) for seed, size in enumerate((3, 5, 3, 1))])
    sum(model.loss() for model in models).backward()
    natural_step(variational_pairs(models), 1.0)
    for model in models:
        assert_same(model.q(), model.posterior())


def test_one_full_step_on_a_link_is_the_optimal_sparse_gp() -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, 40)
    y = np.sin(2 * x) + 0.3 * generator.standard_normal(40)
    Z = np.linspace(-2, 2, 6)[:, None]
    link = Link(matern32(1), torch.tensor(Z), 1, [0], Gaussian(0.2))
    link.u_loc = torch.tensor(generator.standard_normal(6))
    link.u_scale_tril = random_tril(6, torch.Generator().manual_seed(1))
    chain = Chain([link], ["y"], n_rows=40)
    table = torch.tensor(np.stack([x, y], 1))
    loss = TraceMeanField_ELBO().differentiable_loss(
        chain.marginal_model, chain.marginal_guide, table, table.isfinite()
    )
    loss.backward()
    natural_step(variational_pairs(chain), 1.0)
    # Titsias (2009), unwhitened: q(u) = N(K A⁻¹ K_zx y / s², K A⁻¹ K) with A = K + K_zx K_xz / s².
    kernel = Matern(length_scale=1.0, nu=1.5)
    K, cross = kernel(Z), kernel(Z, x[:, None])
    A = K + cross @ cross.T / 0.2
    mean, covariance = K @ np.linalg.solve(A, cross @ y) / 0.2, K @ np.linalg.solve(A, K)
    L = np.linalg.cholesky(K)
    tril = L @ link.u_scale_tril.detach().numpy()
    # The tolerance allows for the jitter on K.
    assert_same((L @ link.u_loc.detach().numpy(), tril @ tril.T), (mean, covariance), rtol=1e-4)


def test_a_sharp_posterior_far_from_zero_is_reached_too(device: torch.device) -> None:
    # r rᵀ is 17 orders of magnitude larger than S: their sum, the second moment, has lost S to rounding.
    features = 300 * torch.eye(3, device=device).double()
    y = features @ torch.tensor([3000.0, -2000.0, 1000.0], device=device).double()
    start = 1e-5 * torch.eye(3, device=device).double()
    model = Regression(features, y, 1e-6, torch.full_like(y, 2500), start)
    for _ in range(2):
        model.zero_grad()
        model.loss().backward()
        natural_step(variational_pairs(model), 1.0)
    assert_same(model.q(), model.posterior(), rtol=1e-6)


# ------------------------------------------------------------------------------------ steps that go too far


def bare(loc: list[float], device: torch.device) -> tuple[Regression, Tensor]:
    """Return q(u) = N(loc, I) without data, and S as a function of the parameters."""
    r = torch.tensor(loc, device=device).double()
    model = Regression(r[None], r[:1], 1.0, r, torch.eye(len(r), device=device).double())
    return model, model.u_scale_tril @ model.u_scale_tril.T


@pytest.mark.parametrize(("c", "h"), [(0.75, 0.5), (1.0, 0.25)])
def test_a_step_to_an_indefinite_precision_is_halved_until_it_is_not(
    c: float, h: float, device: torch.device
) -> None:
    # loss = gᵀr - c tr S with precision I: a step of size h gives precision (1 - 2ch) I and
    # θ₁ = r - h (g + 2cr). For c = 3/4 the first size that is small enough is 1/2, for c = 1 it is 1/4.
    model, S = bare([3.0, -1.0], device)
    gradient = torch.tensor([4.0, 1.0], device=device).double()
    (gradient @ model.u_loc - c * S.trace()).backward()
    natural_step(variational_pairs(model), 1.0)
    mean = np.array([3.0, -1.0]) - h * np.array([4.0, 1.0]) / (1 - 2 * c * h)
    assert_same(model.q(), (mean, (1 - 2 * c * h) * np.eye(2)), rtol=1e-12)


def test_a_hopeless_step_leaves_q_as_it_was(device: torch.device) -> None:
    model, _ = bare([3.0, -1.0], device)
    model.u_scale_tril = torch.tensor([[2.0, 0.0], [1.0, 0.5]], device=device).double()
    before = [p.detach().clone() for p in model.parameters()]
    S = model.u_scale_tril @ model.u_scale_tril.T
    (model.u_loc.sum() - 1000 * S.trace()).backward()
    natural_step(variational_pairs(model), 1.0)
    for leaf, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(leaf, old)


def test_a_link_that_fails_does_not_hold_up_its_neighbours(device: torch.device) -> None:
    hopeless, S = bare([3.0, -1.0], device)
    healthy = regression(2, device)
    (healthy.loss() - 1000 * S.trace()).backward()
    natural_step(variational_pairs(nn.ModuleList([hopeless, healthy])), 1.0)
    assert_same(hopeless.q(), (np.array([3.0, -1.0]), np.eye(2)), rtol=1e-15)
    assert_same(healthy.q(), healthy.posterior())


def test_a_missing_gradient_counts_as_zero(device: torch.device) -> None:
    models = [regression(3, device), regression(3, device)]
    pairs = variational_pairs(nn.ModuleList(models))
    before = models[1].q()
    natural_step(pairs, 1.0)  # no backward yet
    assert_same(models[1].q(), before, rtol=1e-12)
    models[0].loss().backward()
    natural_step(pairs, 1.0)
    assert_same(models[0].q(), models[0].posterior())
    assert_same(models[1].q(), before, rtol=1e-12)
    # With r alone in the loss, S stays and r moves by -S g.
    models[1].u_loc.sum().backward()
    natural_step(pairs[1:], 1.0)
    mean, precision = before
    assert_same(models[1].q(), (mean - np.linalg.inv(precision).sum(1), precision))


# ------------------------------------------------------------------------------------------------- the leaves


def test_pairs_are_the_leaves_of_every_q_and_nothing_else() -> None:
    links = [
        Link(matern32(1), torch.zeros(m, 1).double(), d, [1 - d], Gaussian(0.5)) for d, m in ((0, 2), (1, 3))
    ]
    chain = Chain(links, ["a", "b"], n_rows=5)
    pairs = variational_pairs(chain)
    assert [(p.loc.shape, p.tril.shape) for p in pairs] == [((2,), (2, 2)), ((3,), (3, 3))]
    for pair, link in zip(pairs, links, strict=True):
        assert pair.loc is link.u_loc_unconstrained
        assert pair.tril is link.u_scale_tril_unconstrained
    assert variational_pairs(nn.Linear(2, 2)) == []


def test_leaves_stay_leaves_with_their_gradients(device: torch.device) -> None:
    model = regression(3, device)
    model.loss().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    leaves = list(model.parameters())
    natural_step(variational_pairs(model), 0.5)
    for leaf, old, gradient in zip(model.parameters(), leaves, gradients, strict=True):
        assert leaf is old
        assert leaf.is_leaf
        assert leaf.requires_grad
        assert torch.equal(leaf.grad, gradient)
