"""Run a Pyro model on every completed table and combine its posteriors into a posterior mixture.

    python examples/mix_posteriors.py

The model is a robust regression (Student's t with four degrees of freedom) of penguins' body mass on flipper
length, for sixty penguins, eight of which lack the flipper length. NUTS draws from the posterior given each
completed table; their mixture with equal weights is the posterior given the observed cells.

R-hat and effective sample sizes are computed within tables. Posteriors differ between tables because of the
missing cells; this is no lack of convergence.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from pyro_mgp import MGPImputer

PENGUINS = Path(__file__).parent / "data" / "penguins.csv"
N_ROWS, N_MISSING = 60, 8


def measured(seed: int) -> pd.DataFrame:
    """Return a sample of penguins in standardised units, some without flipper length."""
    penguins = pd.read_csv(PENGUINS).rename(columns={"flipper_length_mm": "flipper", "body_mass_g": "mass"})
    penguins = penguins[["species", "sex", "flipper", "mass"]].dropna()
    sizes = penguins[["flipper", "mass"]]
    penguins[["flipper", "mass"]] = (sizes - sizes.mean()) / sizes.std()
    frame = penguins.sample(N_ROWS, random_state=seed)
    missing = np.random.default_rng(seed).choice(frame.index, N_MISSING, replace=False)
    return frame.assign(flipper=frame["flipper"].mask(frame.index.isin(missing)))


def regression(flipper: Tensor, mass: Tensor) -> None:
    """Define a robust regression of body mass on flipper length."""
    intercept = pyro.sample("intercept", dist.Normal(0.0, 1.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("penguins", len(mass)):
        pyro.sample("mass", dist.StudentT(4.0, intercept + slope * flipper, scale), obs=mass)


def main() -> None:
    """Print the posterior mixture, and the posterior given each table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", type=int, default=5, help="number of imputations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="few draws: R-hat may be above one by chance")
    arguments = parser.parse_args()
    warmup, n_draws = (50, 60) if arguments.quick else (100, 200)
    pyro.set_rng_seed(arguments.seed)

    def posterior(table: pd.DataFrame) -> dict[str, Tensor]:
        sampler = MCMC(NUTS(regression), num_samples=n_draws, warmup_steps=warmup, disable_progbar=True)
        with pyro.validation_enabled(False):
            sampler.run(*(torch.tensor(table[name].to_numpy(np.float32)) for name in ("flipper", "mass")))
        return sampler.get_samples(group_by_chain=True)

    draws = (
        MGPImputer(random_state=arguments.seed, progress=False)
        .fit(measured(arguments.seed))
        .impute(m=arguments.m)
    )
    mixture = draws.mix(posterior, group_by_chain=True)
    print(mixture)
    print("\nwithin each table")
    print(mixture.by_table.round(3).to_string())


if __name__ == "__main__":
    main()
