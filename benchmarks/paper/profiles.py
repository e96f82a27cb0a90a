"""How much of the tables a run takes, and how long its systems may learn."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from benchmarks.paper.data import QUICK_ROWS


@dataclass(frozen=True)
class Budget:
    """What the systems may spend, and where they compute."""

    draws: int = 100
    """Draws m of each missing cell, from systems that have cheap ones."""
    gain_iterations: int = 20_000
    """Minibatches of GAIN."""
    svgp_steps: int = 100
    """Most training steps of each sparse GP."""
    dgp_steps: int = 10_000
    """Training steps of the deep GP."""
    dgp_batch_size: int = 100
    """Rows in one of its minibatches."""
    dgp_paths: int = 20
    """Monte Carlo paths through it in training."""
    mgp_paper_steps: int = 10_000
    """Training steps of the chain in the paper's corner."""
    mgp_paper_batch_size: int = 100
    """Rows in one of its minibatches."""
    mgp_paper_paths: int = 20
    """Monte Carlo paths of each of these rows."""
    miceforest_datasets: int = 10
    """Completed tables of miceforest, each with forests of its own."""
    device: str = "cpu"
    """Torch device of the systems that use one."""
    threads: int = 1
    """Threads of those that want to be told."""


@dataclass(frozen=True)
class Profile:
    """A size of the experiments."""

    rows: int | None
    """Most rows of a table; None for all."""
    budget: Budget
    """For the larger tables."""
    small: Budget
    """For tables of a few thousand rows at most."""

    def budget_for(self, dataset: str) -> Budget:
        """The budget on a public table."""
        return self.small if dataset == "parkinson" else self.budget


# Of MGP, 500, 1,000 and 2,000 steps gave .440, .430 and .424 on Parkinson with 10 % missing (split 0); 500
# and 1,000 steps on one path of each of four times the rows, in two fifths of the time, .440 and .427.
# Of the deep GP, 100, 200 and 800 steps gave .358, .358 and .357 on Protein with 10 % missing (split 0); it
# starts from the optimum of the SVGP.
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
    # What takes hours is cut: the deep GP, which starts from the SVGP, and the chain in the paper's corner.
    "quick": Profile(QUICK_ROWS, _QUICK, _QUICK),
    "paper": Profile(None, _PAPER, dataclasses.replace(_PAPER, dgp_steps=2000, mgp_paper_steps=2000)),
}
"""The profiles: "quick" for a machine with two cores, "paper" for the paper's own settings on a GPU."""
