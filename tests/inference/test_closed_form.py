"""The closed form agrees with Pyro's bound and with natural-gradient steps by autograd."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings

import pytest
import torch
from natural_gradient import natural_step, variational_pairs
from pyro.infer import TraceMeanField_ELBO

from benchmarks.speed.step import Problem
from pyro_mgp.inference import closed_form, closed_form_rows
from pyro_mgp.inference.adam import Adam
from pyro_mgp.inference.closed_form import ConjugateStep, Posterior
from pyro_mgp.model.kernels import linear_matern32, matern32
from pyro_mgp.model.likelihoods import Category, CountScale, NegativeBinomial, Ordinal
from tests.model.test_chain import fixed, make_chain

ROWS = torch.tensor([1, 3, 5, 6, 11])


def make(kernel=linear_matern32, **switches):
    """Chain that trains in closed form, its table, and noise that both ways of computing share."""
    chain, table, observed = make_chain(kernel, backpropagate=False, **switches)
    for link in chain.links:
        link.jitter = 1e-6
    return chain, table, observed, fixed(torch.randn(1, 12, 3).double())


def make_ordinal(kernel=linear_matern32, **switches):
    """Return a problem with a column of three ordered values in the middle."""
    chain, table, observed, noise = make(kernel, **switches)
    values = torch.tensor([-1.2, 0.3, 1.5]).double()
    table[:, 1] = values[torch.bucketize(table[:, 1].contiguous(), torch.tensor([-0.5, 0.7]).double())]
    chain.links[1].likelihood = Ordinal(values, torch.tensor([0.3, 0.4, 0.3]).double())
    return chain, table, observed, noise


def make_category(kernel=linear_matern32, **switches):
    """Return a problem with a category of three levels in the last two columns and one more."""
    chain, table, observed, noise = make(kernel, **switches)
    table = torch.cat([table, table[:, :1]], dim=1)
    level = torch.arange(12) % 3
    off, on = torch.tensor([-0.7, -0.7, -0.7]).double(), torch.tensor([1.4, 1.4, 1.4]).double()
    table[:, 1:] = torch.where(torch.nn.functional.one_hot(level, 3).bool(), on, off)
    observed = torch.cat([observed[:, [0, 1, 1]], observed[:, 1:2]], dim=1)
    for link, unless in zip(chain.links[1:], ([], [1]), strict=True):
        link.likelihood = Ordinal(torch.tensor([-0.7, 1.4]).double(), torch.tensor([0.6, 0.4]).double())
        link.unless = unless
    chain.compounds = (Category((1, 2), (1, 2, 3), off, on),)
    return chain, table, observed, noise


def make_counts(kernel=linear_matern32, **switches):
    """Return a problem with a column of counts in the middle."""
    chain, table, observed, noise = make(kernel, **switches)
    scale = CountScale(0.8, 0.6)
    table[:, 1] = scale.cells(torch.tensor([0, 1, 1, 3, 0, 2, 7, 1, 0, 4, 2, 0]).double())
    chain.links[1].likelihood = NegativeBinomial(scale, 1.75)
    return chain, table, observed, noise


def make_measured(kernel=linear_matern32, **switches):
    """Return a problem with known measurement errors of the cells in the middle."""
    chain, table, observed, noise = make(kernel, **switches)
    chain.links[1].known_variance = torch.linspace(0, 2, 12).double()
    return chain, table, observed, noise


BUILDS = [make, make_ordinal, make_category, make_counts, make_measured]


@pytest.fixture
def silence_of(monkeypatch):
    """Make the closed form draw with the given noise."""
    return lambda noise: monkeypatch.setattr(closed_form, "fresh_noise", lambda _: noise)


@pytest.mark.parametrize("kernel", [linear_matern32, matern32])
@pytest.mark.parametrize("propagate", ["predictive", "latent"])
@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("build", BUILDS)
def test_loss_draws_and_gradients_are_those_of_the_pyro_model(build, kernel, propagate, rows, silence_of):
    chain, table, observed, noise = build(kernel, propagate=propagate)
    silence_of(noise)
    here = slice(None) if rows is None else rows
    loss, redrawn = ConjugateStep(chain)(table[here], observed[here], rows, 0.0)
    ours = {name: p.grad.clone() for name, p in chain.named_parameters() if p.grad is not None}

    chain.zero_grad()
    expected = TraceMeanField_ELBO().differentiable_loss(
        chain.marginal_model, chain.marginal_guide, table[here], observed[here], rows, noise=noise
    )
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    for name, parameter in chain.named_parameters():
        if "u_loc" not in name and "u_scale_tril" not in name:
            torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-7, atol=1e-9)
    with torch.no_grad():
        swept, _ = chain.sweep(chain.conditionals(), table[None, here], observed[here], noise)
    torch.testing.assert_close(redrawn, swept[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("rows", "step_size"), [(None, 1.0), (ROWS, 0.3)])
@pytest.mark.parametrize("build", BUILDS)
def test_q_moves_as_by_the_natural_gradient(build, rows, step_size, silence_of):
    chain, table, observed, noise = build()
    silence_of(noise)
    here = slice(None) if rows is None else rows
    step = ConjugateStep(chain)
    step(table[here], observed[here], rows, step_size)

    chain.zero_grad()
    TraceMeanField_ELBO().differentiable_loss(
        chain.marginal_model, chain.marginal_guide, table[here], observed[here], rows, noise=noise
    ).backward()
    for link in chain.links:
        # Links whose sites change with q go half as far.
        part = 1.0 if link.is_gaussian else 0.5
        natural_step(variational_pairs(link), part * step_size)
    expected = Posterior.of(chain)
    torch.testing.assert_close(step.posterior.precision, expected.precision, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(step.posterior.shift, expected.shift, rtol=1e-6, atol=1e-6)


def gradients_of(chain, table, observed, rows=None):
    """Return loss, redrawn rows and gradients of a step of size 0.7."""
    chain.zero_grad()
    here = slice(None) if rows is None else rows
    loss, redrawn = ConjugateStep(chain)(table[here], observed[here], rows, 0.7)
    return [loss, redrawn, *(p.grad.clone() for p in chain.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kernel", [linear_matern32, matern32])
@pytest.mark.parametrize("build", BUILDS)
def test_all_rows_with_a_mask_are_the_observed_rows(build, kernel, silence_of, monkeypatch):
    """Padding all rows, as on a GPU, gives the sums of the observed rows."""
    chain, table, observed, noise = build(kernel)
    silence_of(noise)
    expected = gradients_of(chain, table, observed)

    def all_rows(learnt_from):
        return [None] * len(learnt_from), torch.stack(learnt_from), 0

    monkeypatch.setattr(closed_form_rows, "_observed_rows", all_rows)
    monkeypatch.setattr(closed_form_rows, "rows_if_known", lambda _: None)
    # To how many digits depends on the processor.
    torch.testing.assert_close(gradients_of(chain, table, observed), expected, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("frozen", ["bias", "variance", "everything"])
@pytest.mark.parametrize("kernel", [linear_matern32, matern32])
def test_parameters_that_do_not_learn_get_no_gradient_and_change_no_others(kernel, frozen, silence_of):
    chain, table, observed, noise = make(kernel)
    silence_of(noise)
    gradients_of(chain, table, observed)
    before = {name: p.grad.clone() for name, p in chain.named_parameters() if p.grad is not None}
    for name, parameter in chain.named_parameters():
        if "u_" not in name and (frozen == "everything" or f"{frozen}_unconstrained" in name):
            parameter.requires_grad_(False)
    gradients_of(chain, table, observed)
    for name, parameter in chain.named_parameters():
        if parameter.requires_grad and name in before:
            torch.testing.assert_close(parameter.grad, before[name])
        else:
            assert parameter.grad is None


@pytest.mark.parametrize("kernel", [linear_matern32, matern32])
def test_links_in_small_groups_give_the_same(kernel, silence_of, monkeypatch):
    chain, table, observed, noise = make(kernel)
    silence_of(noise)
    expected = gradients_of(chain, table, observed, ROWS)
    monkeypatch.setattr(closed_form_rows, "_ENTRIES_AT_ONCE", 1)
    torch.testing.assert_close(gradients_of(chain, table, observed, ROWS), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", [linear_matern32, matern32])
def test_mixed_precision_gives_the_same_to_two_digits(kernel, silence_of):
    chain, table, observed, noise = make(kernel)
    silence_of(noise)
    expected = gradients_of(chain, table, observed)
    chain.precision = "mixed"
    mixed = gradients_of(chain, table, observed)
    assert not torch.equal(mixed[0], expected[0])
    torch.testing.assert_close(mixed, expected, rtol=1e-2, atol=1e-2)


def test_only_q_moves_when_only_q_is_wanted(silence_of):
    chain, table, observed, noise = make()
    silence_of(noise)
    step, other = ConjugateStep(chain), ConjugateStep(chain)
    loss, redrawn = step(table, observed, None, 1.0)
    chain.zero_grad()
    same_loss, same_redrawn = other(table, observed, None, 1.0, only_q=True)
    assert all(parameter.grad is None for parameter in chain.parameters())
    torch.testing.assert_close((same_loss, same_redrawn), (loss, redrawn))
    torch.testing.assert_close(other.posterior.mean, step.posterior.mean)


@pytest.mark.parametrize("build", [make, make_ordinal])
def test_a_fill_that_counts_as_data_is_not_redrawn(build, silence_of):
    chain, table, observed, noise = build()
    silence_of(noise)
    _, kept = ConjugateStep(chain, redraw=False)(table, observed, None, 1.0)
    _, redrawn = ConjugateStep(chain)(table, observed, None, 1.0)
    torch.testing.assert_close(kept, table)
    assert (redrawn != table)[~observed].any()


def test_a_posterior_that_is_not_finite_makes_the_loss_nan():
    chain, table, observed, _ = make()
    step = ConjugateStep(chain)
    step.posterior = dataclasses.replace(step.posterior, precision=-step.posterior.precision)
    loss, _ = step(table, observed, None, 0.0)
    assert loss.isnan()


def test_q_is_published_into_the_links_and_read_back():
    chain, table, observed, _ = make()
    step = ConjugateStep(chain)
    step(table, observed, None, 1.0)
    step.publish()
    moved = step.posterior
    published = Posterior.of(chain)
    torch.testing.assert_close(published.precision, moved.precision, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(published.shift, moved.shift, rtol=1e-9, atol=1e-9)


def test_a_column_without_a_single_observed_cell_in_the_rows_goes_back_to_the_prior():
    chain, table, observed, _ = make()
    observed[:, 1] = False
    step = ConjugateStep(chain)
    loss, _ = step(table, observed, None, 1.0)
    torch.testing.assert_close(step.posterior.precision[1], torch.eye(5).double())
    assert loss.isfinite()


def test_the_closed_form_is_refused_where_it_does_not_hold():
    assert closed_form.applies_to(make()[0])
    assert not closed_form.applies_to(make(n_paths=2)[0])
    chain, *_ = make_chain(backpropagate=True)
    assert not closed_form.applies_to(chain)
    chain, *_ = make()
    chain.links[1].jitter = 1e-10
    assert not closed_form.applies_to(chain)


def test_a_step_never_makes_the_host_wait_for_a_gpu(device):
    if device.type != "cuda":
        pytest.skip("asks a GPU: run with --device cuda")
    problem = Problem.make(n_rows=200, n_links=4, n_inducing=20, device="cuda")
    step, adam = ConjugateStep(problem.chain), Adam(problem.chain.parameters())
    step(problem.filled, problem.observed, None, 1.0)
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings(action="ignore"):  # the mode is a prototype, torch says
            torch.cuda.set_sync_debug_mode("error")
        loss, _ = step(problem.filled, problem.observed, None, 1.0)
        adam.step(0.1)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert loss.isfinite()


def test_a_level_is_learnt_from_rows_of_no_earlier_one():
    chain, table, observed, _ = make_category()
    first = table[:, 1] > 0
    assert (observed[:, 1] & first).any()
    assert torch.equal(chain.links[1].learns_from(table, observed), observed[:, 1])
    assert torch.equal(chain.links[2].learns_from(table, observed), observed[:, 2] & ~first)


def product_with(n_threads, n_rows, n_inducing):
    """Return a product of matrices as large as those of a step, computed by some threads."""
    before, generator = torch.get_num_threads(), torch.Generator().manual_seed(0)
    matrix = torch.randn(n_inducing, n_rows, generator=generator, dtype=torch.float64)
    torch.set_num_threads(n_threads)
    try:
        return matrix @ matrix.T.contiguous()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("n_rows", "n_inducing"), [(331, 20), (450, 70), (997, 100), (260, 128)])
def test_one_two_or_three_threads_give_the_same_bits(n_rows, n_inducing):
    # On some processors the bits of PyTorch's own products of long rows depend on the threads.
    first, *others = (product_with(n_threads, n_rows, n_inducing) for n_threads in (1, 2, 3))
    tolerance = 0.0 if all(torch.equal(first, other) for other in others) else 1e-9
    steps, before = [], torch.get_num_threads()
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        try:
            torch.manual_seed(0)
            problem = Problem.make(n_rows=n_rows, n_links=5, n_inducing=n_inducing)
            for link in problem.chain.links:
                link.jitter = 1e-6
            step = ConjugateStep(problem.chain)
            step(problem.filled, problem.observed, None, 1.0)
            problem.chain.zero_grad()
            loss, redrawn = step(problem.filled, problem.observed, None, 1.0)
        finally:
            torch.set_num_threads(before)
        gradients = [p.grad for p in problem.chain.parameters() if p.grad is not None]
        assert len(gradients) == 25
        steps.append([loss, redrawn, *vars(step.posterior).values(), *gradients])
    torch.testing.assert_close(steps[1:], steps[:1] * 2, rtol=tolerance, atol=tolerance)


def test_a_step_imports_no_library_for_algebra():
    """Training does not import sympy, which takes as long as six steps of a small table."""
    code = (
        "import sys\n"
        "from benchmarks.speed.step import Problem, our_step\n"
        "our_step(Problem.make(50, 2, 5))()\n"
        "print('sympy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
