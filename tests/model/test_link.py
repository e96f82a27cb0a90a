"""The sparse GP of one column agrees with independent implementations."""

from __future__ import annotations

import numpy as np
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from natural_gradient import natural_step, variational_pairs
from pyro.contrib.gp.util import conditional
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

from pyro_mgp.model.cholesky import factorise, factorise_unchecked, invert, invert_by_blocks
from pyro_mgp.model.conditional import (
    BasisConditional,
    Conditional,
    Moments,
    QuadraticConditional,
    TrendConditional,
    one_sided,
)
from pyro_mgp.model.kernel_stack import KernelStack
from pyro_mgp.model.kernels import linear_matern32, linear_quadratic_matern32, matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link, condition
from pyro_mgp.model.local_parameters import local_parameters


def make_link(kernel, Xu, noise=0.1, jitter=1e-10):
    """Return a link that predicts the column after its inputs."""
    n_inputs = Xu.shape[1]
    return Link(kernel(n_inputs), Xu, n_inputs, list(range(n_inputs)), Gaussian(noise), jitter)


def fit_exactly(link, inputs, targets):
    """Set q(u) to its optimum by one natural step of size 1 under the Gaussian likelihood."""
    moments = link().moments(inputs[None])
    log_prob = link.likelihood(moments.mean, moments.variance).log_prob(targets).sum()
    tril = link.u_scale_tril
    kl = 0.5 * (tril.square().sum() + link.u_loc.square().sum() - 2 * tril.diagonal().log().sum())
    (kl - log_prob).backward()
    natural_step(variational_pairs(link), 1.0)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda d: kernels.Matern32(d, torch.tensor(1.7), torch.tensor([0.8, 1.9])),
            ConstantKernel(1.7) * Matern([0.8, 1.9], nu=1.5),
        ),
        (
            lambda d: kernels.Sum(
                kernels.Polynomial(d, torch.tensor(0.5), torch.tensor(0.3), degree=1),
                kernels.RBF(d, torch.tensor(0.9), torch.tensor([1.1, 0.7])),
            ),
            ConstantKernel(0.5) * DotProduct(sigma_0=0.3**0.5) + ConstantKernel(0.9) * RBF([1.1, 0.7]),
        ),
    ],
)
def test_inducing_inputs_at_the_data_give_exact_gp_regression(ours, theirs):
    generator = np.random.default_rng(0)
    X, Xnew = generator.normal(size=(40, 2)), generator.normal(size=(25, 2))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.3 * generator.normal(size=40)
    gpr = GaussianProcessRegressor(theirs, alpha=0.1, optimizer=None).fit(X, y)
    mean, sd = gpr.predict(Xnew, return_std=True)

    link = make_link(ours, torch.tensor(X))
    fit_exactly(link, torch.tensor(X), torch.tensor(y))
    with torch.no_grad():
        moments = link().moments(torch.tensor(Xnew)[None])

    np.testing.assert_allclose(moments.mean[0], mean, atol=1e-5)
    np.testing.assert_allclose(moments.variance[0], sd**2, atol=1e-5)


def test_moments_agree_with_contrib_gp():
    Xu, Xnew = torch.randn(7, 3).double(), torch.randn(11, 3).double()
    link = make_link(linear_matern32, Xu)
    link.u_loc = torch.randn(7).double()
    link.u_scale_tril = torch.linalg.cholesky(torch.eye(7).double() + 0.3)
    with torch.no_grad(), local_parameters():
        ours = link().moments(Xnew[None])
        jitter = 1e-10 * link.kernel(Xu, diag=True).mean()
        loc, var = conditional(
            Xnew, Xu, link.kernel, link.u_loc, link.u_scale_tril, whiten=True, jitter=float(jitter)
        )
    torch.testing.assert_close(ours.mean[0], loc, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(ours.variance[0], var, atol=1e-10, rtol=1e-10)


def test_drawn_functions_give_conditional_moments_per_path():
    Xu, inputs = torch.randn(5, 2).double(), torch.randn(3, 4, 2).double()
    link, functions = make_link(matern32, Xu), torch.randn(3, 5).double()
    with torch.no_grad(), local_parameters():
        moments = link(functions).moments(inputs)
        for path in range(3):
            loc, var = conditional(inputs[path], Xu, link.kernel, functions[path], whiten=True)
            torch.testing.assert_close(moments.mean[path], loc, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(moments.variance[path], var, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", [linear_matern32, matern32])
@pytest.mark.parametrize("drawn", [True, False])
def test_the_quadratic_form_agrees_with_the_whitened_basis(kernel, drawn):
    """Without gradients, a well conditioned link has the same moments by a quadratic form."""
    link, rows = make_link(kernel, torch.randn(8, 3).double(), jitter=1e-6), torch.randn(4, 6, 4).double()
    link.u_loc = torch.randn(8).double()
    link.u_scale_tril = torch.linalg.cholesky(0.2 * torch.eye(8).double() + 0.1)
    functions = torch.randn(4, 8).double() if drawn else None
    exact = link(functions)
    with torch.no_grad():
        cheap = link(functions)
        assert type(exact) is BasisConditional
        assert type(cheap) is QuadraticConditional
        ours, theirs = cheap.moments(rows), exact.moments(rows)
        cheap.moments(-rows)  # Its scratch memory is used again; what was given must hold.
        torch.testing.assert_close(cheap.mean(rows), theirs.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(exact.mean(rows), theirs.mean)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-8, atol=1e-8)


def test_a_marginal_averages_drawn_functions():
    """Mean and variance over many drawn functions agree with q(f) within Monte Carlo error."""
    link = make_link(matern32, torch.randn(5, 2).double())
    link.u_loc = torch.randn(5).double()
    link.u_scale_tril = 0.3 * torch.eye(5).double()
    inputs, n = torch.randn(1, 6, 2).double(), 20_000
    with torch.no_grad():
        marginal = link().moments(inputs)
        functions = link.u_loc + torch.randn(n, 5).double() @ link.u_scale_tril.T
        drawn = link(functions).moments(inputs.expand(n, -1, -1))
    total = drawn.variance.mean(0) + drawn.mean.var(0)
    torch.testing.assert_close(drawn.mean.mean(0), marginal.mean[0], atol=0.01, rtol=0)
    torch.testing.assert_close(total, marginal.variance[0], atol=0.01, rtol=0)


def test_variance_is_never_negative_at_the_inducing_inputs():
    Xu = torch.randn(30, 1).double() * 1e-3  # nearly equal points: rounding bites
    link = make_link(matern32, Xu)
    with torch.no_grad():
        moments = link(torch.zeros(1, 30).double()).moments(Xu[None])
    assert (moments.variance >= 0).all()


def test_repeated_inducing_inputs_are_factorised_with_more_jitter():
    K = torch.ones(4, 4).double()
    K[0, 0] = 1 - 1e-5  # slightly indefinite: the first rung of the ladder fails
    factor = factorise(K)
    torch.testing.assert_close(factor @ factor.T, K, atol=1e-3, rtol=0)
    assert torch.linalg.cholesky_ex(K + 1e-6 * torch.eye(4))[1] > 0


def test_an_indefinite_covariance_is_an_error_with_advice():
    with pytest.raises(ValueError, match=r"3 inducing inputs is not positive.*smaller learning rate"):
        factorise(-torch.eye(3).double())
    with pytest.raises(ValueError, match="not positive definite"):
        factorise(torch.full((2, 2), torch.nan).double())


def test_factorise_unchecked_raises_the_jitter_once():
    good, weak = torch.eye(4).double(), torch.ones(4, 4).double()
    weak[0, 0] = 1 - 1e-5
    lost = -torch.eye(4).double()
    factors = factorise_unchecked(torch.stack([good, weak, lost]), 1e-6)
    torch.testing.assert_close(factors[0], factorise(good, 1e-6))
    torch.testing.assert_close(factors[1] @ factors[1].T, weak + 0.01 * torch.eye(4), atol=1e-3, rtol=0)
    assert factors[2].isnan().any()


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("kernel", [linear_matern32, matern32])
def test_single_precision_gives_the_same_moments_to_four_digits(kernel, drawn):
    link, rows = make_link(kernel, torch.randn(8, 3).double(), jitter=1e-6), torch.randn(4, 6, 4).double()
    link.u_loc = torch.randn(link.n_values).double()
    functions = [torch.randn(4, link.n_values).double()] if drawn else None
    with torch.no_grad(), local_parameters():
        single, double = (
            condition([link], functions, dtype)[0].moments(rows) for dtype in (torch.float32, torch.float64)
        )
    assert single.mean.dtype == single.variance.dtype == torch.float64
    torch.testing.assert_close(single.mean, double.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.variance, double.variance, rtol=1e-4, atol=1e-4)
    assert not torch.equal(single.mean, double.mean)


def test_shapes_that_disagree_are_errors_that_print_the_shapes():
    with pytest.raises(ValueError, match=r"has 2 inputs.*shape \(5, 3\).*takes 2 inputs"):
        Link(matern32(2), torch.zeros(5, 3).double(), 0, [1, 2], Gaussian(0.1))
    with pytest.raises(ValueError, match="its kernel takes 4 inputs"):
        Link(matern32(4), torch.zeros(5, 2).double(), 0, [1, 2], Gaussian(0.1))
    with pytest.raises(ValueError, match="column 1 cannot be an input of its own link"):
        Link(matern32(2), torch.zeros(5, 2).double(), 1, [1, 2], Gaussian(0.1))


def test_the_mean_of_a_quantity_is_that_of_its_observations():
    link = make_link(matern32, torch.randn(4, 2).double(), noise=0.3)
    with torch.no_grad():
        conditional = link()
        moments = Moments(torch.tensor([[-1.0, 0.4]]).double(), torch.tensor([[0.2, 0.5]]).double())
        found = conditional.expectation(moments, torch.exp)
        torch.testing.assert_close(found, (moments.mean + (moments.variance + 0.3) / 2).exp())
        torch.testing.assert_close(conditional.expectation(moments), moments.mean)


@pytest.mark.parametrize("kernel", [linear_matern32, linear_quadratic_matern32, matern32])
@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize(("jitter", "dtype"), [(1e-10, None), (1e-6, torch.float64), (1e-6, torch.float32)])
def test_rows_of_some_paths_have_the_moments_that_they_have_among_all(kernel, drawn, jitter, dtype):
    link, rows = make_link(kernel, torch.randn(8, 3).double(), jitter=jitter), torch.randn(4, 6, 4).double()
    link.u_loc = torch.randn(link.n_values).double()
    functions = [torch.randn(4, link.n_values).double()] if drawn else None
    paths, cells = torch.tensor([3, 0, 0, 2, 1]), torch.tensor([5, 1, 4, 0, 1])
    with torch.no_grad(), local_parameters():
        (conditional,) = condition([link], functions, dtype or torch.float64)
        whole = conditional.moments(rows)
        some = conditional.along(0 * rows, [2, 0, 1])(paths, cells, rows[paths, cells][:, [2, 0, 1]])
    assert isinstance(conditional, BasisConditional) == (dtype is None)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    for found, among_all in ((some.mean, whole.mean), (some.variance, whole.variance)):
        torch.testing.assert_close(found, among_all[paths, cells], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n_paths", [3, 8])  # fewer and more than inducing inputs
@pytest.mark.parametrize("columns", [[2], [4, 1], [0, 2, 3]])
@pytest.mark.parametrize("products", [None, [(0, 1), (1, 1), (0, 3)]])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_moments_along_some_columns_are_those_of_rows_with_their_values(n_paths, columns, products, dtype):
    """Values beyond eight standard deviations enter products as if they were there."""
    trend = linear_quadratic_matern32(4, products, n_features=16)
    link = make_link(lambda _: trend, torch.randn(6, 4).double(), jitter=1e-6)
    table, values = 5 * torch.randn(n_paths, 7, 5).double(), 9 * torch.randn(20, len(columns)).double()
    paths, numbers = torch.arange(20) % n_paths, torch.arange(20) % 7
    with torch.no_grad(), local_parameters():
        kernels = KernelStack([link])
        inverse, scale = torch.randn(6, 6).double() / 10, torch.rand(n_paths, 1).double()
        weights = torch.randn(n_paths, link.n_values).double()
        conditional = TrendConditional(scale, kernels, 0, weights, inverse, scale, dtype)
        found = conditional.along(table, columns)(paths, numbers, values)
        expected = Conditional.along(conditional, table, columns)(paths, numbers, values)
    assert (expected.variance > 0).any()
    near = {} if dtype is torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close((found.mean, found.variance), (expected.mean, expected.variance), **near)


@pytest.mark.parametrize("invert", [invert, invert_by_blocks])
@pytest.mark.parametrize("size", [1, 5, 50, 64, 65, 100, 200])
def test_the_inverse_of_a_factor_is_its_inverse(size, invert):
    factors = torch.randn(3, size, size).double().tril(-1) / size**0.5 + 2 * torch.eye(size).double()
    inverse = invert(factors)
    torch.testing.assert_close(inverse @ factors, torch.eye(size).double().expand(3, -1, -1))
    assert torch.equal(inverse, inverse.tril())


@pytest.mark.parametrize("size", [1, 7, 16, 100])
def test_a_one_sided_form_has_the_values_of_the_symmetric_one(size):
    form = torch.randn(size, size).double()
    form, x = form + form.T, torch.randn(size, 9).double()
    torch.testing.assert_close(((one_sided(form) @ x) * x).sum(0), ((form @ x) * x).sum(0))
