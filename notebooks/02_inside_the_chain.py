# %% [markdown]
# # Inside the chain
#
# For those who speak Pyro. An imputer holds a Pyro module, `imputer.chain_`, with a `model` and a `guide`.
# Here we look at its sites, train it with our own loop, draw from it, change its kernels, and go back to the
# paper it comes from.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import pyro.contrib.gp.kernels as kernels
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO

from pyro_mgp import MGPImputer
from pyro_mgp.analysis.relevance import relevance
from pyro_mgp.plots import plot_relevance

quick = "PYRO_MGP_QUICK" in os.environ  # the tests set it: fewer steps and draws, same story
examples = Path("examples") if Path("examples").exists() else Path("..", "examples")
penguins = pd.read_csv(examples / "data" / "penguins.csv")
imputer = MGPImputer(n_neighbors=0, max_steps=5 if quick else 40, random_state=0, progress=False)
chain = imputer.fit(penguins).chain_

# %% [markdown]
# ## One link per incomplete column
#
# A *link* is a sparse Gaussian process: it predicts its column from all the others through M inducing inputs.
# Links are swept in this order, each writing its draws into the holes of its column before the next one
# looks.

# %%
pd.DataFrame(
    {
        "predicts": chain.names,
        "inputs": [len(link.inputs) for link in chain.links],
        "M": [link.n_inducing for link in chain.links],
        "kernel": [type(link.kernel).__name__ for link in chain.links],
        "observed as": [type(link.likelihood).__name__ for link in chain.links],
    }
)

# %% [markdown]
# The chain sees standardised numbers, not tables. `codec_` goes there and back: categories become indicators,
# numbers have mean 0 and standard deviation 1, long tails are bent first.

# %%
table = imputer.codec_.encode(penguins)
observed = torch.tensor(table.observed)  # Bool [N, D], True where the cell is known
filled = torch.tensor(table.values).nan_to_num()  # [N, D], zero is the mean
filled.shape, observed.sum().item(), (~observed).sum().item()

# %% [markdown]
# ## Sites
#
# The guide draws `u_<column>`, the inducing values of each link, whitened. The model draws the same from
# their prior and scores `x_<column>`, the observed cells; a mask keeps holes out of it. `filled`, the table
# with its holes drawn, is what comes out.

# %%
chain.train()
trace = poutine.trace(chain.model).get_trace(filled, observed)
trace.compute_log_prob()
print(trace.format_shapes().split("Sample Sites:")[1])

# %% [markdown]
# In training mode the model scores observed cells by the *expected* log density under q(f), in closed form or
# by quadrature, as in the paper's bound. So `Trace_ELBO` serves, and the only noise left is that of the draws
# in the holes and of KL[q(u) ‖ p(u)], estimated from u.

# %% [markdown]
# ## Our own training loop
#
# The imputer trains q(u) by natural gradients, which Pyro does not have. Pyro's own tools work too, but take
# many more steps: here `Adam`, from an imputer that has hardly been trained. (The imputer's own loss, to
# compare with, is of a tenth fewer cells: it sets some aside.) Parameters live in the module; Pyro's global
# store stays empty, so two imputers never get into each other's way.

# %%
untrained = MGPImputer(natural_gradient=False, max_steps=1, n_inducing=50, random_state=0, progress=False)
ours = untrained.set_params(n_neighbors=0).fit(penguins).chain_.train()
pyro.set_rng_seed(0)
svi = SVI(ours.model, ours.guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
losses = [svi.step(filled, observed) for _ in range(10 if quick else 100)]
len(pyro.get_param_store()), round(losses[0]), round(losses[-1])

# %%
history = imputer.history_.loss
fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
ax.plot(np.arange(1, len(losses) + 1), losses, label="Adam")
ax.plot(np.arange(1, len(history) + 1), history, "--", label="the imputer's own")
ax.set(xlabel="step", ylabel="loss (nats)", yscale="log")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## One function per imputation
#
# In evaluation mode the model uses the u that was drawn: one function per link, shared by all rows. That is
# what makes imputations *proper*: where a function lies higher, it does so for all missing cells at once, and
# pooled intervals are as wide as they should be. `Predictive` then is multiple imputation.

# %%
chain.eval()
incomplete = ~observed.all(dim=1)
start, known = filled[incomplete], observed[incomplete]
n_draws = 5 if quick else 60
drawn = Predictive(chain.model, guide=chain.guide, num_samples=n_draws)(start, known)
{name: tuple(site.shape) for name, site in drawn.items() if not name.startswith("x_")}

# %% [markdown]
# `imputer.impute` does the same, with randomness keyed by row, so that a draw depends neither on batches nor
# on the order of rows. Do the two agree? A draw counts after `n_sweeps` sweeps through the chain, which are
# steps of a Gibbs sampler. We started from zeros, the imputer from a joint Gaussian; and two birds lack four
# measurements at once, so that each sweep moves only a little. Five sweeps from zeros are too few for them,
# more will do:

# %%
column = imputer.codec_.slices["body_mass_g"].start
codec = imputer.codec_.columns[penguins.columns.get_loc("body_mass_g")]


def masses(filled: torch.Tensor) -> np.ndarray:
    """Draws of the two masses that are missing, in grams."""
    return codec.mean[0] + codec.scale[0] * filled[:, ~known[:, column], column].numpy()


chain.n_sweeps = 10 if quick else 30
longer = Predictive(chain.model, guide=chain.guide, num_samples=n_draws)(start, known)
chain.n_sweeps = imputer.n_sweeps
cells = imputer.impute(m=500).cells().query("column == 'body_mass_g'").set_index("row")
means = {
    "5 sweeps from zeros": masses(drawn["filled"]).mean(0),
    "more sweeps": masses(longer["filled"]).mean(0),
}
pd.DataFrame({**means, "impute": cells["mean"], "sd of a draw": cells["sd"]}).round(0)

# %% [markdown]
# ## What the draws of u look like
#
# Below is the mass that 30 of these functions give to female Gentoos of growing flipper length; the noise of
# single birds is left out. Near the data they agree; beyond it they part, along a trend rather than back to
# the mean, as a Matérn kernel alone would.

# %%
flippers = np.linspace(160, 260, 60)
gentoo = penguins[(penguins["species"] == "Gentoo") & (penguins["sex"] == "female")].dropna()
grid = gentoo.iloc[[0] * 60].reset_index(drop=True).assign(flipper_length_mm=flippers)
grid[["bill_length_mm", "bill_depth_mm"]] = gentoo[["bill_length_mm", "bill_depth_mm"]].mean().to_numpy()
inputs = torch.tensor(imputer.codec_.encode(grid).values)
number = chain.names.index("body_mass_g")
with torch.no_grad():
    functions = chain.functions(lambda link, n: torch.randn(30, n, dtype=inputs.dtype))
    curves = chain.conditionals(functions)[number].moments(inputs.expand(30, -1, -1)).mean

# %%
fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
ax.plot(flippers, codec.mean[0] + codec.scale[0] * curves.T, color="#D55E00", linewidth=0.6)
ax.plot(gentoo["flipper_length_mm"], gentoo["body_mass_g"], "o", color="#0072B2", markersize=4, alpha=0.6)
ax.set(xlabel="flipper length (mm)", ylabel="body mass (g)")
ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## Kernels
#
# A kernel is a function from the number of inputs to a kernel of `pyro.contrib.gp`; it is called once per
# link. The default is a linear trend plus a Matérn 3/2 with a lengthscale per input. Here are two others, and
# how well each predicts the cells that were set aside in training (nats per cell, mean of the last four
# checks, higher is better).


# %%
def linear_plus_rational_quadratic(input_dim: int) -> kernels.Kernel:
    """A linear trend, and wiggles on several scales at once."""
    trend = kernels.Linear(input_dim, variance=torch.tensor(0.4 / input_dim))
    wiggle = kernels.RationalQuadratic(input_dim, lengthscale=torch.full((input_dim,), 4.0 * input_dim**0.5))
    return kernels.Sum(trend, wiggle)


choices = {
    "linear+matern32 (default)": "linear+matern32",
    "matern32 (the paper's)": "matern32",
    "linear + rational quadratic": linear_plus_rational_quadratic,
}
scores = {}
for name, kernel in choices.items():
    other = MGPImputer(kernel=kernel, max_steps=5 if quick else 40, random_state=0, progress=False)
    other.set_params(n_neighbors=0, n_inducing=50).fit(penguins)
    scores[name] = np.mean(other.history_.validation[-4:])
pd.Series(scores, name="held-out log density").to_frame().round(3)

# %% [markdown]
# This is one split of one small table, and so differences in the second decimal are luck. The README measures
# defaults on larger ones.
#
# ## Which column informs which
#
# Not by lengthscales, which say nothing of the linear part, but by slopes: how much the learnt function moves
# with each input, root mean square over the rows, in standard deviations. Compare within a row only: sex is
# measured in another unit, that of a probit. And do not read causes into it.

# %%
ax = plot_relevance(relevance(imputer))

# %% [markdown]
# ## The paper's corner
#
# The method of the paper is one setting of the switches: mean fill that stays, one sweep, latent functions
# handed on, Matérn 3/2, Adam throughout, each cell drawn alone. (Twenty steps are far too few; the paper
# takes thousands.)

# %%
paper = MGPImputer.paper(max_steps=5 if quick else 20, n_paths=5, random_state=0, progress=False)
paper.fit(penguins)
default, changed = MGPImputer().get_params(), paper.get_params()
chosen = [
    "kernel",
    "initial_fill",
    "n_sweeps",
    "refresh_fill",
    "propagate",
    "joint_draws",
    "natural_gradient",
]
pd.DataFrame({"default": default, "paper": changed}).loc[chosen]

# %% [markdown]
# It is there to be compared with, as in `04_diagnostics`; why the defaults differ, the README says with
# measurements. The next notebook, `03_analysis_and_pooling`, goes back to tables.
