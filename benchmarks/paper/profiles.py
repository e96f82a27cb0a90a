"""Profiles of the experiments: number of rows, training steps and compute resources."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from benchmarks.paper.data import QUICK_ROWS


@dataclass(frozen=True)
class Budget:
    """Training budget and compute resources of the imputation methods."""

    draws: int = 100
    """Number of draws m of each missing cell, for methods with cheap draws."""
    neighbours: int = 2
    """Number of nearest neighbours of KNN."""
    gain_iterations: int = 20_000
    """Number of minibatches of GAIN."""
    svgp_steps: int = 100
    """Maximum number of training steps of each sparse GP."""
    dgp_steps: int = 10_000
    """Number of training steps of the deep GP."""
    dgp_batch_size: int = 100
    """Number of rows in a minibatch of the deep GP."""
    dgp_paths: int = 20
    """Number of Monte Carlo paths through the deep GP in training."""
    mgp_paper_steps: int = 10_000
    """Number of training steps of the MGP with the paper's settings."""
    mgp_paper_batch_size: int = 100
    """Number of rows in a minibatch of the MGP with the paper's settings."""
    mgp_paper_paths: int = 20
    """Number of Monte Carlo paths of each of these rows."""
    miceforest_datasets: int = 10
    """Number of completed tables of miceforest, each with its own forests."""
    device: str = "cpu"
    """Torch device of the methods that use one."""
    threads: int = 1
    """Number of threads of the methods that do not read it from the environment."""


@dataclass(frozen=True)
class Profile:
    """Size of the experiments."""

    rows: int | None
    """Maximum number of rows of a table; None for all."""
    budget: Budget
    """Budget for the larger tables."""
    small: Budget
    """Budget for the Parkinson table."""

    def budget_for(self, dataset: str) -> Budget:
        """Return the budget for a public table."""
        return self.small if dataset == "parkinson" else self.budget


# RMSE by number of steps, with 10 % of the cells missing (split 0). MGP with the paper's settings on
# Parkinson: .440, .430 and .424 after 500, 1,000 and 2,000 steps; with one path of each of four times as many
# rows, which takes two fifths of the time, .440 and .427 after 500 and 1,000. Deep GP on Protein, which
# starts from the optimum of the SVGP: .358, .358 and .357 after 100, 200 and 800 steps.
_QUICK = Budget(
    dgp_steps=200,
    dgp_batch_size=400,
    dgp_paths=1,
    mgp_paper_steps=1000,
    mgp_paper_batch_size=400,
    mgp_paper_paths=1,
)
_PAPER = Budget()

PROFILES: dict[str, Profile] = {
    # The quick profile shortens the methods that take hours: the deep GP and the MGP with the paper's
    # settings.
    "quick": Profile(QUICK_ROWS, _QUICK, _QUICK),
    "paper": Profile(None, _PAPER, dataclasses.replace(_PAPER, dgp_steps=2000, mgp_paper_steps=2000)),
}
"""Profiles by name: "quick" for a machine with two cores, "paper" for the paper's settings on a GPU."""
