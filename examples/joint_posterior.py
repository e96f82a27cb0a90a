"""Joint posterior of a regression and its missing cells, with the imputer inside a Pyro model.

    python examples/joint_posterior.py

The model is y = b0 + b1 x + b2 z + b3 x z + e. Half of x is missing, more often for large y, and therefore
complete cases are biased; x depends on z by a nonlinear function that the imputer has to learn.

Imputation before the analysis needs the distribution of x given z and y. The product term makes its variance
depend on z, and an imputer only approximates it. Here the imputer supplies the distribution of x given z, and
the regression supplies the information that y has about x. With m_i for the mean of y_i, the posterior is

    p(b, s, x_mis | y, z, x_obs) ∝ p(b) p(s) · N(x_mis; μ, Σ) · Π_i N(y_i; m_i, s²)

N(μ, Σ) is the joint predictive distribution of all missing cells by an imputer that is fitted to z and x
alone; u ~ q(u), f = u · basis(z) and the noise are normal, and u is integrated out. Cells are missing at
random given y and z, which are both in the model, and therefore the missingness need not be modelled. Kernel
and noise variance are fixed at the values that the imputer learnt; NUTS draws everything else.

The script also prints the estimates from complete cases, from forty imputations pooled by Rubin's rules, from
the posterior mixture over these, and from the complete table. In fifty such tables (seeds 30 to 79; NUTS
replaced by a Gibbs sampler of the same posterior, which is faster here) the coverage of 95 % intervals of the
four coefficients was 90, 96, 98 and 90 %; with complete tables 90, 96, 98 and 94 %, with complete cases 38,
84, 98 and 88 %.

statsmodels fits the regressions: pip install statsmodels.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import statsmodels.formula.api as smf
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide import init_to_value
from torch import Tensor

from pyro_mgp import MGPImputer

N_ROWS, M = 120, 40
FORMULA, NAMES, TRUTH = "y ~ x * z", ["Intercept", "x", "z", "x:z"], (0.5, 1.0, -0.5, 0.8)


def simulate(seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a complete table, and the table with missing cells in x."""
    generator = np.random.default_rng(seed)
    z = generator.normal(size=N_ROWS)
    x = np.tanh(1.5 * z) + 0.5 * generator.normal(size=N_ROWS)
    y = np.column_stack([np.ones(N_ROWS), x, z, x * z]) @ TRUTH + generator.normal(size=N_ROWS)
    full = pd.DataFrame({"z": z, "x": x, "y": y})
    missing = generator.random(N_ROWS) < 1 / (1 + np.exp(-(1.2 * (y - 0.5) - 0.3)))
    return full, full.assign(x=full["x"].mask(missing))


def missing_cells(frame: pd.DataFrame, seed: int) -> tuple[Tensor, Tensor]:
    """Return mean `[n]` and covariance `[n, n]` of the missing cells of x given z and the observed cells."""
    # The chain alone: no neighbours, no transforms and no discrete support.
    imputer = MGPImputer(
        n_neighbors=0, warp=False, discrete_support=0, max_steps=40, random_state=seed, progress=False
    )
    imputer.fit(frame)
    (link,), codec = imputer.chain_.links, imputer.codec_.columns[1]
    table = imputer.codec_.encode(frame)
    inputs = table.values[~table.observed[:, 1]]
    with torch.no_grad():
        # The function for a unit vector u is a column of the basis.
        (conditional,) = imputer.chain_.conditionals([torch.eye(link.n_values, dtype=inputs.dtype)])
        moments = conditional.moments(inputs.expand(link.n_values, -1, -1))
        spread = link.u_scale_tril.T @ moments.mean
        covariance = spread.T @ spread + torch.diag(moments.variance[0] + conditional.noise)
        return codec.mean[0] + codec.scale[0] * (link.u_loc @ moments.mean), codec.scale[0] ** 2 * covariance


def regression(x: Tensor, z: Tensor, y: Tensor) -> None:
    """Define the regression of y on x and z, independently of the imputation."""
    b = pyro.sample("b", dist.Normal(x.new_zeros(4), 10.0).to_event(1))
    s = pyro.sample("s", dist.HalfNormal(x.new_tensor(5.0)))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(b[0] + b[1] * x + b[2] * z + b[3] * x * z, s), obs=y)


def joint_posterior(frame: pd.DataFrame, seed: int, warmup: int, n_draws: int) -> Tensor:
    """Draw coefficients `[n_draws, 4]` from their joint posterior with the missing cells."""
    mean, covariance = missing_cells(frame[["z", "x"]], seed)
    scale_tril = torch.linalg.cholesky(covariance)
    observed, z, y = (torch.tensor(frame[name].to_numpy()) for name in ("x", "z", "y"))
    (holes,) = observed.isnan().nonzero(as_tuple=True)
    observed = observed.nan_to_num()

    def joint() -> None:
        noise = pyro.sample("noise", dist.Normal(torch.zeros_like(mean), 1.0).to_event(1))
        regression(observed.index_put((holes,), mean + scale_tril @ noise), z, y)

    start = smf.ols(FORMULA, frame.dropna()).fit()
    near = {"noise": torch.zeros_like(mean), "b": torch.tensor(start.params[NAMES].to_numpy())}
    kernel = NUTS(joint, max_tree_depth=5, init_strategy=init_to_value(values=near))
    sampler = MCMC(kernel, num_samples=n_draws, warmup_steps=warmup, disable_progbar=True)
    with pyro.validation_enabled(False):
        sampler.run()
    return sampler.get_samples()["b"]


def main() -> None:
    """Print estimates and standard deviations by each method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few draws")
    arguments = parser.parse_args()
    pyro.set_rng_seed(arguments.seed)
    generator = np.random.default_rng(arguments.seed)
    full, frame = simulate(arguments.seed)

    def fit(table: pd.DataFrame) -> Any:
        return smf.ols(FORMULA, table).fit()

    def posterior(table: pd.DataFrame) -> dict[str, np.ndarray]:
        """Draw from the posterior under flat priors of b and log s."""
        result, n_draws = fit(table), 200
        spread = np.sqrt(result.df_resid / generator.chisquare(result.df_resid, n_draws))[:, None]
        root = np.linalg.cholesky(result.cov_params().loc[NAMES, NAMES])
        return {"b": result.params[NAMES].to_numpy() + spread * generator.normal(size=(n_draws, 4)) @ root.T}

    draws = MGPImputer(random_state=arguments.seed, progress=False).fit(frame).impute(m=M)
    pooled, mixture = draws.pool(fit).table.loc[NAMES], draws.mix(posterior).table
    joint = joint_posterior(frame, arguments.seed, *((40, 50) if arguments.quick else (100, 150)))
    answers = {
        "complete table": (fit(full).params[NAMES], fit(full).bse[NAMES]),
        "complete cases": (fit(frame.dropna()).params[NAMES], fit(frame.dropna()).bse[NAMES]),
        "imputed, pooled": (pooled["estimate"], pooled["se"]),
        "posterior mixture": (mixture["mean"], mixture["sd"]),
        "joint posterior": (joint.mean(0), joint.std(0)),
    }
    shown = {
        method: [f"{q:.2f} ± {sd:.2f}" for q, sd in zip(estimates, errors, strict=True)]
        for method, (estimates, errors) in answers.items()
    }
    print(f"{frame['x'].isna().mean():.0%} of x missing; estimates and standard deviations\n")
    print(pd.DataFrame({"truth": TRUTH, **shown}, index=NAMES).T.to_string())


if __name__ == "__main__":
    main()
