"""How fast the package is on the machine at hand, against plain code, the hardware's floor, and rivals.

Every figure of a row is measured in one run, the things compared in turn, and the median taken: ratios then
hold on a noisy machine where single times do not.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyro.contrib.gp as gp
import torch
from torch import Tensor

from pyro_mgp.assembly import Wiring, build_chain
from pyro_mgp.chain import Chain, fresh_noise
from pyro_mgp.conjugate import ConjugateStep
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.kernels import linear_matern32
from pyro_mgp.local_parameters import local_parameters


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    what: str
    """What was measured."""
    measured: float
    """The figure."""
    unit: str
    """What it counts."""
    asked: str
    """What it should be."""
    detail: str
    """The times behind it."""


@dataclass(frozen=True)
class Problem:
    """A table and a chain of the size that the paper's Parkinson experiment has."""

    chain: Chain
    filled: Tensor
    observed: Tensor

    @classmethod
    def make(cls, n_rows: int = 2000, n_links: int = 24, n_inducing: int = 100) -> Problem:
        """Correlated columns, 10 % of the cells missing, float64."""
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(n_links, n_links, generator=generator, dtype=torch.float64)
        table = torch.randn(n_rows, n_links, generator=generator, dtype=torch.float64) @ mix
        table = (table - table.mean(0)) / table.std(0)
        observed = torch.rand(n_rows, n_links, generator=generator) > 0.1
        wirings = [Wiring(f"c{d}", d, tuple(i for i in range(n_links) if i != d)) for d in range(n_links)]
        chain = build_chain(
            wirings,
            linear_matern32,
            table[:n_inducing],
            [0.3] * n_links,
            train_inducing=False,
            n_rows=n_rows,
            backpropagate=False,
        )
        return cls(chain, table, observed)


def in_turn(*tasks: Callable[[], object], repeats: int = 5) -> list[float]:
    """Median seconds of each task, run in turn after one warm-up each."""
    for task in tasks:
        task()
    times: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeats):
        for task, seconds in zip(tasks, times, strict=True):
            start = time.perf_counter()
            task()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def our_step(problem: Problem) -> Callable[[], object]:
    """A training step as `training` takes it."""
    step = ConjugateStep(problem.chain)
    parameters = [p for n, p in problem.chain.named_parameters() if "u_" not in n and p.requires_grad]
    adam = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def run() -> None:
        adam.zero_grad()
        step(problem.filled, problem.observed, None, 1.0)
        adam.step()

    return run


def plain_links(problem: Problem) -> list[gp.models.VariationalSparseGP]:
    """The chain's links as models of contrib.gp, with the same starting parameters."""
    table, links = problem.filled, []
    for link in problem.chain.links:
        inputs = table[:, link.inputs]
        n_inputs = inputs.shape[1]
        with local_parameters():
            kernel = gp.kernels.Sum(
                gp.kernels.Polynomial(n_inputs, torch.tensor(1.0 / n_inputs), degree=1),
                gp.kernels.Matern32(n_inputs, lengthscale=torch.full((n_inputs,), n_inputs**0.5)),
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
        links.append(model.double())
    return links


def plain_step(problem: Problem) -> Callable[[], object]:
    """The same step written with contrib.gp: a loop over sparse GPs, their moments, autograd and Adam."""
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


def our_walk(problem: Problem) -> Callable[[], object]:
    """One walk at all rows, without gradients."""
    chain, paths = problem.chain, problem.filled[None]

    def run() -> None:
        with torch.no_grad():
            chain.walk(chain.conditionals(), paths, problem.observed, fresh_noise(paths))

    return run


def multiply_rate(repeats: int = 30) -> float:
    """Floating-point operations per second of `torch.mm` on matrices of a step's size."""
    left, right = torch.randn(100, 100).double(), torch.randn(100, 2000).double()
    (seconds,) = in_turn(lambda: [left @ right for _ in range(repeats)])
    return 2 * 100 * 100 * 2000 * repeats / seconds


def step_operations(problem: Problem) -> float:
    """Multiplications and additions in the matrix products that a step cannot do without."""
    n_links = len(problem.chain.links)
    M, n = problem.chain.links[0].n_inducing, problem.filled.shape[0]
    P = n_links - 1
    seen = float(problem.observed.double().mean()) * n
    kernels = 2 * (2 * M * P * n) + 3 * (2 * M * P * seen)  # two products forward, three backward
    statistics_ = 2 * (2 * M * M * seen) + 2 * M * M * (n - seen)  # H and its gradient; variances of draws
    small = 24 * M**3  # factorisations, inverses and products of [M, M], forward and backward
    return n_links * (kernels + statistics_ + small)


def walk_operations(problem: Problem) -> float:
    """The same for a walk: two kernel products, L⁻¹ k and Tᵀ φ at every row, one factorisation."""
    n_links = len(problem.chain.links)
    M, n = problem.chain.links[0].n_inducing, problem.filled.shape[0]
    return n_links * (2 * (2 * M * (n_links - 1) * n) + M * M * n + 2 * M * M * n + M**3 / 3)


def measure_step() -> list[Row]:
    """A training step against plain code and against its floor; a walk against the multiplication rate."""
    problem = Problem.make()
    ours, plain, walk = in_turn(our_step(problem), plain_step(problem), our_walk(problem))
    rate = multiply_rate()
    floor = step_operations(problem) / rate
    share = walk_operations(problem) / walk / rate
    detail = f"ours {ours * 1e3:.0f} ms, plain {plain * 1e3:.0f} ms, floor {floor * 1e3:.0f} ms"
    return [
        Row("training step, plain ÷ ours", plain / ours, "×", "≥ 2.5", detail),
        Row("training step, ours ÷ floor", ours / floor, "×", "≤ 2.5", f"mm at {rate / 1e9:.0f} GF/s"),
        Row("walk, share of mm rate", share, "share", "≥ 0.55", f"{walk * 1e3:.0f} ms"),
    ]


def synthetic(n_rows: int, n_columns: int = 10, seed: int = 0) -> pd.DataFrame:
    """Correlated columns, two of them bent, 10 % of the cells missing."""
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(n_rows, 3)) @ generator.normal(size=(3, n_columns))
    table[:, :2] = np.tanh(table[:, :2])
    table += 0.3 * generator.normal(size=table.shape)
    frame = pd.DataFrame(table, columns=[f"c{d}" for d in range(n_columns)])
    return frame.mask(generator.random(table.shape) < 0.1)


def measure_sizes(sizes: Sequence[int] = (10_000, 100_000, 1_000_000)) -> list[Row]:
    """Fit and 5 imputations to Parquet, by number of rows, each in a process of its own to see its memory."""
    rows = []
    for n_rows in sizes:
        code = (
            "import resource, tempfile, time\n"
            "from pyro_mgp.bench.speed import synthetic\n"
            "from pyro_mgp import MGPImputer\n"
            f"frame = synthetic({n_rows})\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "start = time.perf_counter()\n"
            "imputer = MGPImputer(random_state=0, progress=False).fit(frame)\n"
            "fitted = time.perf_counter() - start\n"
            "with tempfile.TemporaryDirectory() as folder:\n"
            "    imputer.impute_to_parquet(folder + '/out', m=5)\n"
            "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "print(fitted, time.perf_counter() - start, (after - before) / 2**20)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        fit, total, gigabytes = map(float, done.stdout.split())
        detail = f"fit {fit:.0f} s, peak memory above the input {gigabytes:.2f} GB"
        rows.append(Row(f"fit + 5 imputations, {n_rows:,} rows", total, "s", "linear, ≤ 1.5 GB", detail))
    return rows


def measure_latency() -> list[Row]:
    """One new row, 20 imputations, from a loaded imputer of 24 columns."""
    frame = synthetic(1000, 24)
    with tempfile.TemporaryDirectory() as folder:
        MGPImputer(random_state=0, max_steps=20, progress=False).fit(frame).save(Path(folder) / "imputer")
        imputer = MGPImputer.load(Path(folder) / "imputer")
    row = frame[frame.isna().any(axis=1)].iloc[:1]
    (seconds,) = in_turn(lambda: imputer.impute(row, m=20), repeats=15)
    holes = int(row.isna().to_numpy().sum())
    return [Row("one new row, m = 20", seconds * 1e3, "ms", "≤ 50", f"{holes} missing cells")]


def measure_import() -> list[Row]:
    """Import of the package against that of what it stands on."""

    def fresh(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    ours, base = in_turn(fresh("from pyro_mgp import MGPImputer"), fresh("import torch, pyro, pandas"))
    return [
        Row("import, ours ÷ torch, pyro, pandas", ours / base, "×", "≤ 1.3", f"{ours:.1f} s, {base:.1f} s")
    ]


MEASUREMENTS: dict[str, Callable[[], list[Row]]] = {
    "step": measure_step,
    "latency": measure_latency,
    "import": measure_import,
    "sizes": measure_sizes,
}
"""What `pyro-mgp bench speed` can measure."""


def run(names: Sequence[str]) -> pd.DataFrame:
    """Take some measurements.

    Args:
        names: Keys of `MEASUREMENTS`.

    Returns:
        One row per figure: `what`, `measured`, `unit`, `asked`, `detail`.
    """
    rows = [dataclasses.asdict(row) for name in names for row in MEASUREMENTS[name]()]
    return pd.DataFrame(rows, columns=[field.name for field in dataclasses.fields(Row)])
