"""Time of a training step and of a sweep, against plain code and against the rate of matrix multiplication.

The floor of a task is the time in which `torch.mm` would do its multiplications and additions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyro.contrib.gp as gp
import torch
from torch import Tensor

from benchmarks.figures import Row, in_turn
from pyro_mgp._support.tiles import whole_registers
from pyro_mgp.inference.adam import Adam
from pyro_mgp.inference.closed_form import ConjugateStep
from pyro_mgp.model.build import build_chain
from pyro_mgp.model.chain import Chain, fresh_noise
from pyro_mgp.model.kernels import linear_matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link_specs import LinkSpec
from pyro_mgp.model.local_parameters import local_parameters


@dataclass(frozen=True)
class Problem:
    """Table and chain of the size of the paper's Parkinson experiment."""

    chain: Chain
    """Untrained chain with a link per column."""
    filled: Tensor
    """Table `[n, D]`, complete and standardised."""
    observed: Tensor
    """Mask `[n, D]` of the cells that count as observed."""

    @classmethod
    def make(
        cls, n_rows: int = 2000, n_links: int = 24, n_inducing: int = 100, device: str = "cpu"
    ) -> Problem:
        """Return a problem with correlated columns, 10 % of the cells missing, in float64."""
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(n_links, n_links, generator=generator, dtype=torch.float64)
        table = torch.randn(n_rows, n_links, generator=generator, dtype=torch.float64) @ mix
        table = (table - table.mean(0)) / table.std(0)
        observed = torch.rand(n_rows, n_links, generator=generator) > 0.1
        table, observed = table.to(device), observed.to(device)
        link_specs = [LinkSpec(f"c{d}", d, tuple({*range(n_links)} - {d})) for d in range(n_links)]
        chain = build_chain(
            link_specs,
            linear_matern32,
            table[:n_inducing],
            [Gaussian(0.3) for _ in link_specs],
            train_inducing=False,
            n_rows=n_rows,
            backpropagate=False,
        )
        return cls(chain, table, observed)


def our_step(problem: Problem) -> Callable[[], object]:
    """Return a function that takes one training step of the package."""
    step = ConjugateStep(problem.chain)
    parameters = [p for n, p in problem.chain.named_parameters() if "u_" not in n and p.requires_grad]
    adam = Adam(parameters)

    def run() -> None:
        problem.chain.zero_grad()
        step(problem.filled, problem.observed, None, 1.0)
        adam.step(1e-3)

    return run


def plain_links(problem: Problem) -> list[gp.models.VariationalSparseGP]:
    """Return the links of the chain as models of Pyro's contrib.gp, with equal parameters."""
    table, links = problem.filled, []
    for link in problem.chain.links:
        inputs = table[:, link.inputs]
        n_inputs = inputs.shape[1]
        with local_parameters():
            linear, matern = link.kernel.kern0, link.kernel.kern1
            kernel = gp.kernels.Sum(
                gp.kernels.Polynomial(n_inputs, linear.variance.detach(), linear.bias.detach(), degree=1),
                gp.kernels.Matern32(n_inputs, matern.variance.detach(), matern.lengthscale.detach()),
            )
            model = gp.models.VariationalSparseGP(
                inputs,
                table[:, link.column],
                kernel.double(),
                link.Xu.detach().clone(),
                gp.likelihoods.Gaussian(torch.tensor(0.24).double()),
                whiten=True,
                jitter=1e-6,
            )
        links.append(model.double().to(table.device))
    return links


def plain_step(problem: Problem) -> Callable[[], object]:
    """Return a function that takes a training step with contrib.gp: loop over sparse GPs, autograd, Adam."""
    table, observed, links = problem.filled, problem.observed, plain_links(problem)
    parameters = [p for model in links for p in model.parameters()]
    adam = torch.optim.Adam(parameters, lr=1e-3)

    def run() -> None:
        adam.zero_grad()
        filled, loss = table.clone(), torch.zeros((), dtype=table.dtype)
        with local_parameters():
            for model, link in zip(links, problem.chain.links, strict=True):
                seen = observed[:, link.column]
                model.set_mode("guide")
                mean, variance = model(filled[:, link.inputs])
                noise = model.likelihood.variance
                drawn = mean + (variance + noise).sqrt() * torch.randn_like(mean)
                squared = (filled[:, link.column] - mean).square() + variance
                loss = loss + 0.5 * ((squared / noise + noise.log()) * seen).sum()
                tril, loc = model.u_scale_tril, model.u_loc
                loss = loss + 0.5 * (tril.square().sum() + loc.square().sum()) - tril.diagonal().log().sum()
                filled[:, link.column] = torch.where(seen, filled[:, link.column], drawn.detach())
        loss.backward()
        adam.step()

    return run


def our_sweep(problem: Problem) -> Callable[[], object]:
    """Return a function that sweeps through the chain at all rows, with cached factors and no gradients."""
    chain, paths = problem.chain, problem.filled[None]
    with torch.no_grad():
        conditionals = chain.conditionals()

    def run() -> None:
        with torch.no_grad():
            chain.sweep(conditionals, paths, problem.observed, fresh_noise(paths))

    return run


def multiply(repeats: int = 30, device: str = "cpu") -> Callable[[], object]:
    """Return a function that calls `torch.mm` on matrices of the size in a step, into allocated memory."""
    left, right, result = (
        torch.randn(*shape, dtype=torch.float64, device=device)
        for shape in ((100, 100), (100, 2000), (100, 2000))
    )
    return lambda: [torch.mm(left, right, out=result) for _ in range(repeats)]


def multiply_operations(repeats: int = 30) -> float:
    """Return the number of multiplications and additions in `multiply`."""
    return 2.0 * 100 * 100 * 2000 * repeats


def step_operations(problem: Problem) -> float:
    """Return the number of multiplications and additions in the matrix algebra of `our_step`."""
    n_links = len(problem.chain.links)
    M, n = problem.chain.links[0].n_inducing, problem.filled.shape[0]
    seen = float(problem.observed.double().mean()) * n
    # A kernel matrix is two products over the inputs; each has one more in the gradient.
    kernels = 2 * (2 * M * (n_links - 1) * (n + M)) + 2 * (2 * M * (n_links - 1) * (seen + M))
    # H and its gradient; variances of draws.
    rows = 2 * (_entries_of_symmetric(M) + M * M) * seen + 2 * _entries_of_symmetric(M) * (n - seen)
    # Factors and inverses of K_ZZ and S⁻¹ (2), then the products (each 2) of: the draws' quadratic form 2,
    # G 2, RG 1, WᵀRW 2, Wᵀ Φ W 2.
    small = 2 * M**3 + 9 * 2 * M**3
    return n_links * (kernels + rows + small)


def sweep_operations(problem: Problem) -> float:
    """Return the number of operations of a sweep: per row two kernel products, a mean, a quadratic form."""
    n_links = len(problem.chain.links)
    M, n = problem.chain.links[0].n_inducing, problem.filled.shape[0]
    return n_links * n * (2 * (2 * M * (n_links - 1)) + 2 * M + 2 * _entries_of_symmetric(M))


def _entries_of_symmetric(M: int) -> int:
    """Return the number of computed entries of a symmetric matrix `[M, M]`, one of two mirrored blocks."""
    half = whole_registers(M // 2)
    return M * M - half * (M - half)


def plain_step_operations(problem: Problem) -> float:
    """Return the number of operations in `plain_step`.

    They are, per row and link, two kernel products, L⁻¹k and Tᵀφ, and twice as many for the gradients.
    """
    n_links = len(problem.chain.links)
    M, n = problem.chain.links[0].n_inducing, problem.filled.shape[0]
    return n_links * n * 3 * (2 * (2 * M * (n_links - 1)) + M * M + 2 * M * M)


def plain_sweep_operations(problem: Problem) -> float:
    """Return the number of operations in a plain sweep: per row two kernel products, L⁻¹k and Tᵀφ."""
    return plain_step_operations(problem) / 3


def measure_step(device: str = "cpu", repeats: int = 15) -> list[Row]:
    """Measure a training step against plain code and its floor, and a sweep against its floor."""
    problem = Problem.make(device=device)
    tasks = our_step(problem), plain_step(problem), our_sweep(problem), multiply(device=device)
    ours, plain, sweep, multiplied = in_turn(*tasks, repeats=repeats)
    rate = multiply_operations() / multiplied
    floors = plain_step_operations(problem) / rate, step_operations(problem) / rate
    shares = plain_sweep_operations(problem) / sweep / rate, sweep_operations(problem) / sweep / rate
    times = f"ours {ours * 1e3:.0f} ms, plain {plain * 1e3:.0f} ms"
    textbook, own = "the textbook's operations", "our own, fewer operations"
    return [
        Row("training step, plain ÷ ours", plain / ours, "×", "≥ 2.5", times),
        Row("training step ÷ floor", ours / floors[0], "×", "≤ 2.5", f"{textbook}; mm {rate / 1e9:.0f} GF/s"),
        Row("training step ÷ its own floor", ours / floors[1], "×", "≤ 2.5", own),
        Row("sweep, share of mm rate", shares[0], "share", "≥ 0.55", f"{textbook}; {sweep * 1e3:.0f} ms"),
        Row("sweep, share of mm rate, own", shares[1], "share", "≥ 0.55", own),
    ]
