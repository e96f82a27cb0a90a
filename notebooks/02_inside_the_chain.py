# %% [markdown]
# # Inside the chain
#
# This notebook is for users of Pyro. A fitted imputer has a Pyro module, `imputer.chain_`, with a `model` and
# a `guide`. We look at its sites, train it with a loop of our own, draw from it, change its kernels, and
# compare its settings with those of the paper.

# %%
import os
from dataclasses import asdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import pyro.contrib.gp.kernels as kernels
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO

from pyro_mgp import Engine, MGPImputer
from pyro_mgp.analysis.relevance import relevance
from pyro_mgp.plots import plot_relevance

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer rows, steps and draws
examples = Path("examples") if Path("examples").exists() else Path("..", "examples")
penguins = pd.read_csv(examples / "data" / "penguins.csv")[:: 3 if quick else 1]
imputer = MGPImputer(n_neighbors=0, max_steps=5 if quick else 40, random_state=0, progress=False)
chain = imputer.fit(penguins).chain_

# %% [markdown]
# ## One link per incomplete column
#
# A *link* is a sparse Gaussian process that predicts its column from all the others through M inducing
# inputs. A *sweep* visits the links in this order; each link writes its draws into the missing cells of its
# column before the next link predicts.

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
# The chain works on standardised numbers. `codec_` encodes tables and decodes draws: categories become
# indicators, numbers have mean 0 and standard deviation 1, and heavy-tailed numbers are transformed first.

# %%
table = imputer.codec_.encode(penguins)
observed = table.observed  # Bool [N, D]
filled = table.values.nan_to_num()  # [N, D], zero is the mean
filled.shape, observed.sum().item(), (~observed).sum().item()

# %% [markdown]
# ## Sites
#
# The model is a joint density. It draws `u_<column>`, the whitened inducing values of each link, and
# `e_<column>`, what they leave open of the function in each row, from their priors. It scores `x_<column>`,
# the observed cells; a mask excludes the missing ones, which it draws as `z_<column>`. It returns `filled`,
# the table with draws of its missing cells.

# %%
chain.train()
trace = poutine.trace(chain.model).get_trace(filled, observed)
trace.compute_log_prob()
print(trace.format_shapes().split("Sample Sites:")[1])

# %% [markdown]
# The model reads nothing of the guide, so that any inference of Pyro's applies to it: other guides, NUTS,
# priors of hyperparameters ([Inside Pyro](../docs/pyro.md)). The guide of the chain draws u from q(u), and
# the rest as the model does. `Trace_ELBO` then estimates the paper's bound; the estimate is noisy, since
# functions are drawn. `chain.marginal_model` integrates them out, as the imputer does.

# %% [markdown]
# ## A training loop of our own
#
# The imputer trains q(u) by natural gradients, which Pyro does not offer. Pyro's optimisers work too, but
# need many more steps: `MGPImputer(inference="svi")` calls them. Here is a loop of our own with `Adam`, which
# starts from an imputer after one step. (The imputer's own loss is for a tenth fewer cells, since it holds
# some out for validation.) Parameters belong to the module; Pyro's global parameter store stays empty, which
# keeps imputers independent of each other.

# %%
options = {"inference": "svi", "inputs": "others", "n_neighbors": 0, "n_inducing": 50}
untrained = MGPImputer(max_steps=1, random_state=0, progress=False, **options)
ours = untrained.fit(penguins).chain_.train()
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
# In evaluation mode the guide draws u, and then the missing cells given one function per link, shared by all
# rows, and given all observed cells. This makes the imputations *proper*: the error of a drawn function is
# common to all missing cells, as it must be for pooled intervals of the right width. `Predictive` then
# performs multiple imputation.

# %%
chain.eval()
incomplete = ~observed.all(dim=1)
start, is_observed = filled[incomplete], observed[incomplete]
n_draws = 5 if quick else 60
drawn = Predictive(chain.model, guide=chain.guide, num_samples=n_draws, parallel=True)(start, is_observed)
{name: tuple(site.shape) for name, site in drawn.items() if not name.startswith(("x_", "e_"))}

# %% [markdown]
# `imputer.impute` does this with random numbers keyed by row: a draw depends neither on batches nor on the
# order of the rows. Do the two agree? A draw is taken after `n_sweeps` sweeps through the chain, which are
# steps of a Gibbs sampler. We started from zeros, the imputer starts from a joint Gaussian. Two birds lack
# four measurements, and a Gibbs sampler moves slowly where several cells of a row are missing. Five sweeps
# from zeros are too few for them; more suffice:

# %%
column = imputer.codec_.slices["body_mass_g"].start
codec = imputer.codec_.columns[penguins.columns.get_loc("body_mass_g")]


def masses(filled: torch.Tensor) -> np.ndarray:
    """Return the draws of the two missing masses, in grams."""
    return codec.mean[0] + codec.scale[0] * filled[:, ~is_observed[:, column], column].numpy()


chain.n_sweeps = 10 if quick else 30
longer = Predictive(chain.model, guide=chain.guide, num_samples=n_draws, parallel=True)(start, is_observed)
chain.n_sweeps = imputer.n_sweeps
cells = imputer.impute(m=20 if quick else 500).cells().query("column == 'body_mass_g'").set_index("row")
means = {
    "5 sweeps from zeros": masses(drawn["filled"]).mean(0),
    "more sweeps": masses(longer["filled"]).mean(0),
}
pd.DataFrame({**means, "impute": cells["mean"], "sd of a draw": cells["sd"]}).round(0)

# %% [markdown]
# ## Drawn functions
#
# The plot shows 30 drawn functions: body mass against flipper length for female Gentoos, without the noise of
# single birds. They agree near the data and diverge outside it. There they follow a linear trend; with a
# Matérn kernel alone they would return to the mean.

# %%
flippers = np.linspace(160, 260, 60)
gentoo = penguins[(penguins["species"] == "Gentoo") & (penguins["sex"] == "female")].dropna()
grid = gentoo.iloc[[0] * 60].reset_index(drop=True).assign(flipper_length_mm=flippers)
grid[["bill_length_mm", "bill_depth_mm"]] = gentoo[["bill_length_mm", "bill_depth_mm"]].mean().to_numpy()
inputs = imputer.codec_.encode(grid).values
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
# `kernel` may be a function that takes the number of inputs and returns a kernel of `pyro.contrib.gp`; it is
# called once per link. The default is a linear kernel plus a Matérn 3/2 kernel with a lengthscale per input.
# Here are two others, with the log density of the cells that training held out (nats per cell, mean of the
# last four checks, higher is better).


# %%
def linear_plus_rational_quadratic(input_dim: int) -> kernels.Kernel:
    """Return a linear kernel plus a rational quadratic kernel, which varies on several scales."""
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
    other.set_params(inputs="others", n_neighbors=0, n_inducing=50).fit(penguins)
    scores[name] = np.mean(other.history_.validation[-4:])
pd.Series(scores, name="held-out log density").to_frame().round(3)

# %% [markdown]
# This is one split of one small table, in which differences in the second decimal are chance. The README
# reports results on larger tables.
#
# ## Which column informs which
#
# Lengthscales ignore the linear part of the kernel. `relevance` instead computes the root mean square slope
# of the learnt function with respect to each input, in standard deviations. Compare values within a row only,
# since sex has another unit (probit). Relevance does not mean causation.

# %%
ax = plot_relevance(relevance(imputer))

# %% [markdown]
# ## The paper's method
#
# The method of the paper is one combination of settings: a mean fill that is not refreshed, one sweep, latent
# functions as inputs of later links, a Matérn 3/2 kernel, Adam for all parameters, and independent draws of
# cells. (Twenty steps are far too few; the paper uses thousands.)

# %%
paper = MGPImputer.paper(max_steps=5 if quick else 20, n_paths=5, random_state=0, progress=False)
paper.fit(penguins)
settings = {name: each.get_params() for name, each in {"default": MGPImputer(), "paper": paper}.items()}
engines = {name: asdict(each["engine"] or Engine()) for name, each in settings.items()}
chosen = ["initial_fill", "refresh_fill", "propagate", "joint_draws"]
pd.concat(
    [pd.DataFrame(settings).loc[["kernel", "n_sweeps", "inference"]], pd.DataFrame(engines).loc[chosen]],
    keys=["MGPImputer", "Engine"],
)

# %% [markdown]
# It is included for comparisons, as in `04_diagnostics`; the README reports measurements that explain why the
# defaults differ. The next notebook, `03_analysis_and_pooling`, returns to tables.
