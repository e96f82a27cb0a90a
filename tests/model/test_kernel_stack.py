"""Kernel stacks: the closed form of the default kernel agrees with the general one."""

from __future__ import annotations

from types import SimpleNamespace

import pyro.contrib.gp.kernels as kernels
import pytest
import torch

from pyro_mgp.model import kernel_stack
from pyro_mgp.model.kernel_stack import (
    KernelStack,
    LinearMatern32Stack,
    RowSums,
    Seen,
    gram,
    stack_kernels,
)
from pyro_mgp.model.kernels import Matern32, linear_matern32, linear_quadratic_matern32, matern32
from pyro_mgp.model.local_parameters import local_parameters

INPUTS = {"all but one": ([1, 2, 3], [0, 2, 3], [0, 1, 3]), "some": ([1], [0, 2, 3], [3, 0])}


def make_links(factory, inputs):
    """Return three links over a table of five columns, with parameters away from their starting values."""
    with local_parameters():
        members = [factory(len(columns)).double() for columns in inputs]
    for parameter in (p for member in members for p in member.parameters()):
        parameter.data += 0.3 * torch.randn_like(parameter)
    return [
        SimpleNamespace(
            kernel=member,
            Xu=torch.randn(5, len(columns)).double().requires_grad_(),
            inputs=torch.tensor(columns),
            width=1 + max(columns),
        )
        for member, columns in zip(members, inputs, strict=True)
    ]


def leaves(links):
    both = [leaf for link in links for leaf in (link.Xu, *link.kernel.parameters())]
    return [leaf for leaf in both if leaf.requires_grad]


def collect(links):
    """Return the gradients of the parameters, and clear them."""
    found = [leaf.grad.clone() for leaf in leaves(links)]
    for leaf in leaves(links):
        leaf.grad = None
    return found


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("factory", [linear_matern32, matern32, kernels.RBF])
def test_both_stacks_agree_and_so_do_their_gradients(factory, inputs):
    links, rows = make_links(factory, inputs), torch.randn(9, 5).double()
    weights = [torch.randn(3, 5, 5).double(), torch.randn(3, 5, 9).double(), torch.randn(3, 9).double()]
    values, gradients = [], []
    with local_parameters():
        for stack in (stack_kernels, KernelStack):
            built = stack(links)
            at = [built.at(i, rows) for i in range(3)]
            matrices = [built.among(), *(torch.stack(part) for part in zip(*at, strict=True))]
            sum((w * m).sum() for w, m in zip(weights, matrices, strict=True)).backward()
            values.append(matrices)
            gradients.append(collect(links))
            with torch.no_grad():
                without = [tuple(x.clone() for x in stack(links).at(i, rows)) for i in range(3)]
            torch.testing.assert_close(without, at, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("factory", [linear_matern32, matern32, kernels.RBF])
def test_both_stacks_agree_on_sums_over_rows_and_their_gradients(factory, inputs, ragged, weighted):
    """Return rows of the second and third link, which may differ in number."""
    links = make_links(factory, inputs)
    valid = torch.rand(2, 12) < 0.7 if ragged else None
    if valid is not None:
        valid[:, :4] = True
    columns, targets = list(torch.randn(2, 5, 12).double()), torch.randn(2, 12).double()
    roots = torch.rand(2, 12).double() if weighted else None
    seen = Seen(1, columns, targets, roots, valid, n_sure=4 if ragged else 0)
    of_gram, of_among = torch.randn(2, 5, 5).double(), torch.randn(3, 5, 5).double()
    weights = RowSums(of_gram + of_gram.mT, torch.randn(2, 5).double(), torch.randn(2).double())
    sums, gradients = [], []
    with local_parameters():
        for stack in (stack_kernels, KernelStack):
            built = stack(links)
            among = built.among()
            sums.append(vars(built.sums(seen)))
            built.pull(weights)
            kernel_stack.send_back([(among, of_among), *built.pending()])
            gradients.append(collect(links))
    torch.testing.assert_close(*sums, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weighted", [True, False])
def test_sums_are_those_of_the_covariances(weighted):
    links = make_links(linear_matern32, INPUTS["some"])
    rows, targets = torch.randn(1, 12, 5).double(), torch.randn(1, 12).double()
    root = torch.rand(12).double() if weighted else torch.ones(12).double()
    with local_parameters(), torch.no_grad():
        sums = stack_kernels(links).sums(Seen(1, [rows[0].T], targets, root[None] if weighted else None))
        X = rows[0][:, links[1].inputs]
        cross, variance = links[1].kernel(links[1].Xu, X), links[1].kernel(X, diag=True)
    torch.testing.assert_close(sums.gram[0], cross @ torch.diag(root**2) @ cross.T)
    torch.testing.assert_close(sums.projection[0], cross @ (root * targets[0]))
    torch.testing.assert_close(sums.trace[0], (root**2 * variance).sum())


def test_only_the_default_kernels_own_structure_takes_the_fast_stack():
    def type_of(kernel):
        link = SimpleNamespace(kernel=kernel, Xu=torch.randn(4, 2), inputs=torch.tensor([0, 1]), width=2)
        with local_parameters():
            return type(stack_kernels([link, link]))

    assert type_of(linear_matern32(2)) is LinearMatern32Stack
    others = [
        linear_quadratic_matern32(2),
        kernels.Sum(kernels.Polynomial(2, degree=2), matern32(2)),
        kernels.Sum(kernels.Polynomial(2), kernels.Matern32(2, lengthscale=torch.ones(2))),
        kernels.Sum(kernels.Polynomial(2), Matern32(2)),  # one lengthscale for both inputs
    ]
    for kernel in others:
        assert type_of(kernel) is KernelStack


@pytest.mark.parametrize("size", [1, 7, 16, 101])
def test_a_gram_matrix_is_the_whole_product_and_symmetric(size):
    rows = torch.randn(3, size, 40).double()
    product = gram(rows)
    torch.testing.assert_close(product, rows @ rows.mT, rtol=1e-13, atol=1e-13)
    half = size // 2 // 8 * 8
    assert torch.equal(product[:, :half, half:], product[:, half:, :half].mT)


def test_the_features_of_a_trend_are_counted_among_the_inducing_values():
    """Coefficients and inducing values have the covariances of the trend, and of the rest of the kernel."""
    links, rows = make_links(linear_quadratic_matern32, INPUTS["all but one"]), torch.randn(9, 5).double()
    with local_parameters(), torch.no_grad():
        stack = KernelStack(links)
        among = stack.among()
        for i, link in enumerate(links):
            cross, variance = stack.at(i, rows)
            X = rows[:, link.inputs]
            torch.testing.assert_close(variance, link.kernel(X, diag=True))
            # What the coefficients determine is the trend, and the rest is the Matérn kernel's.
            trend, rest = link.kernel.kern0, link.kernel.kern1
            n_features = trend.n_features
            assert cross.shape == (n_features + 5, 9)
            torch.testing.assert_close(cross[:n_features].T @ cross[:n_features], trend(X))
            torch.testing.assert_close(cross[n_features:], rest(link.Xu, X))
            torch.testing.assert_close(among[i][:n_features, :n_features], torch.eye(n_features).double())
            torch.testing.assert_close(among[i][n_features:, n_features:], rest(link.Xu))
            assert not among[i][:n_features, n_features:].any()
            features, apart, _ = stack.apart(i, rows)
            torch.testing.assert_close(torch.cat([features, apart]), cross)


def test_a_matern_kernel_read_once_is_the_kernel():
    links, rows = make_links(matern32, INPUTS["all but one"]), torch.randn(9, 5).double()
    with local_parameters():
        stack = KernelStack(links)
        with torch.no_grad():
            fast = [stack.apart(1, rows) for _ in range(2)]
        slow = stack.apart(1, rows)
    for found in fast:
        for each, expected in zip(found, slow, strict=True):
            torch.testing.assert_close(each, expected)
