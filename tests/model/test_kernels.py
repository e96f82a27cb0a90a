"""Covariance functions agree with those of `pyro.contrib.gp`."""

from __future__ import annotations

import pyro.contrib.gp.kernels as kernels
import pytest
import torch

from pyro_mgp.model.kernels import (
    KERNELS,
    Matern32,
    lengthscales,
    linear_matern32,
    matern32,
    resolve_kernel,
)
from pyro_mgp.model.local_parameters import local_parameters


@pytest.mark.parametrize("active_dims", [None, [2, 0]])
def test_matern32_is_contrib_gps_with_the_same_gradients(active_dims):
    X, Z = torch.randn(30, 3).double(), torch.randn(7, 3).double()
    n_inputs = 3 if active_dims is None else 2
    weights = torch.randn(7, 30).double()
    with local_parameters():
        matrices, gradients = [], []
        for kernel_class in (Matern32, kernels.Matern32):
            lengthscale = torch.linspace(0.5, 2.0, n_inputs)
            kernel = kernel_class(n_inputs, torch.tensor(1.7), lengthscale, active_dims).double()
            x, z = X.clone().requires_grad_(), Z.clone().requires_grad_()
            matrix = kernel(z, x)
            (matrix * weights).sum().backward()
            matrices.append(matrix.detach())
            gradients.append([x.grad, z.grad, *(p.grad for p in kernel.parameters())])
    # contrib.gp adds 1e-12 under its square root.
    torch.testing.assert_close(*matrices, atol=1e-10, rtol=0)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_matern32_has_a_finite_gradient_between_equal_points():
    X = torch.zeros(2, 1).double().requires_grad_()
    with local_parameters():
        Matern32(1).double()(X).sum().backward()
    assert torch.equal(X.grad, torch.zeros(2, 1).double())


def test_kernels_are_found_by_name_or_taken_as_given():
    assert resolve_kernel("matern32") is matern32
    assert resolve_kernel(kernels.RBF) is kernels.RBF
    named = r"\['linear', 'linear\+matern32', 'linear\+quadratic\+matern32', 'matern32'\]"
    with pytest.raises(ValueError, match=rf"must be 'auto', one of {named}.*'cubic'"):
        resolve_kernel("cubic")


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_named_kernels_are_covariance_functions_of_any_dimension(name):
    X = torch.randn(20, 4).double()
    with torch.no_grad(), local_parameters():
        kernel = KERNELS[name](4).double()
        K = kernel(X)
        torch.testing.assert_close(K.diagonal(), kernel(X, diag=True), atol=1e-5, rtol=1e-5)
        assert torch.linalg.eigvalsh(K).min() > -1e-9


def test_lengthscales_do_not_depend_on_the_users_default_type():
    kernel = linear_matern32(2)
    expected = lengthscales(kernel, 2)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = lengthscales(kernel, 2)
    finally:
        torch.set_default_dtype(usual)
    assert torch.equal(found, expected)


def test_linear_kernel_has_linear_functions_only():
    X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad(), local_parameters():
        covariance = resolve_kernel("linear")(3).double()(X)
    expected = 4.0 + 2 / 3 * X @ X.T
    torch.testing.assert_close(covariance, expected, atol=1e-6, rtol=0.0)
