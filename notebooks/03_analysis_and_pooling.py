# %% [markdown]
# # Analysis and pooling
#
# With m completed tables, run your analysis m times and pool. Rubin's rules add two variances: the one that
# each analysis reports, and the one between the analyses, which is what the holes cost.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from pyro_mgp import MGPImputer, ampute, likelihood_ratio_test, pool_chi2
from pyro_mgp.plots import plot_fmi

quick = "PYRO_MGP_QUICK" in os.environ  # the tests set it: fewer draws, same story
m = 10 if quick else 50

# %% [markdown]
# ## A table whose answer we know
#
# 250 patients: blood pressure depends on age, weight and treatment; weight depends on age. Weight is missing
# the more often the higher the blood pressure, which is observed: missing at random, but complete cases
# mislead.


# %%
def simulate(seed: int, n: int = 250) -> pd.DataFrame:
    """A table without holes."""
    generator = np.random.default_rng(seed)
    age = generator.normal(50, 10, n).round()
    treated = generator.random(n) < 0.5
    weight = 75 + 0.3 * (age - 50) + generator.normal(0, 12, n)
    pressure = 130 + 0.4 * (age - 50) + 0.5 * (weight - 75) - 6 * treated + generator.normal(0, 10, n)
    return pd.DataFrame({"pressure": pressure, "age": age, "weight": weight, "treated": treated})


truth = pd.Series({"age": 0.4, "weight": 0.5, "treated[T.True]": -6.0}, name="truth")
full = simulate(1)
table = ampute(full, 0.45, patterns=[["weight"]], weights=[{"pressure": 1, "age": -0.3}], random_state=1)
table.isna().mean()

# %% [markdown]
# ## Pool
#
# `draws.pool` takes a function from a completed table to a fit: anything of statsmodels, or a pair of
# estimates and variances. Impute with every variable that the analysis uses, *the outcome included*: an
# imputer that does not see it draws weights that do not go with blood pressure, and flattens the slope.


# %%
def analysis(frame: pd.DataFrame):
    """The regression of a completed table."""
    return smf.ols("pressure ~ age + weight + treated", frame).fit()


draws = MGPImputer(random_state=0, progress=False).fit(table).impute(m=m)
pooled = draws.pool(analysis)
pooled

# %%
fits = {"without holes": analysis(full), "complete cases": analysis(table.dropna())}
estimates = {name: fit.params[truth.index] for name, fit in fits.items()}
errors = {name: fit.bse[truth.index] for name, fit in fits.items()}
estimates["imputed"], errors["imputed"] = (
    pooled.table["estimate"][truth.index],
    pooled.table["se"][truth.index],
)
pd.concat(
    {"truth": pd.DataFrame(truth), "estimate": pd.DataFrame(estimates), "se": pd.DataFrame(errors)}, axis=1
).round(2)

# %% [markdown]
# One table proves nothing: the estimate without holes misses the truth as well. What to expect of pooled
# intervals is that they are *wider* than those without holes, and over many tables hold the truth as often as
# they say.
#
# ## What the holes cost
#
# - `riv`: by how much the variance has grown, relative to the one within tables.
# - `lambda`: which share of the variance is due to missing cells.
# - `fmi`, fraction of missing information: much the same, but it counts also that m is finite. Far from
#   `lambda`, more imputations would help.
#
# The coefficient of weight, which has the holes, pays most; the others pay as far as they go with weight.

# %%
ax = plot_fmi(pooled)

# %% [markdown]
# ## How many imputations?
#
# Estimates are the same within a per cent or two with ten tables. Standard errors and p-values need more. Von
# Hippel's rule says how many make them come out alike when the table is imputed again (5 % variation by
# default):

# %%
pooled.recommended_m()

# %% [markdown]
# Draws are cheap, so take them: the fit is what takes time. Below is the standard error of weight's
# coefficient, for the first 2, 3, 4, ... tables.

# %%
analyses = [analysis(frame) for frame in draws]
weights = pd.DataFrame(
    {"estimate": [a.params["weight"] for a in analyses], "se": [a.bse["weight"] for a in analyses]}
)
counts = np.arange(2, m + 1)
within = weights["se"].pow(2).expanding().mean()[1:]
between = weights["estimate"].expanding().var()[1:]
fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
ax.plot(counts, np.sqrt(within + (1 + 1 / counts) * between), color="#D55E00", label="pooled")
ax.plot(counts, np.sqrt(within), color="#0072B2", linestyle="--", label="as if nothing had been missing")
ax.set(xlabel="imputations", ylabel="standard error of weight", ylim=(0, None))
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## Several coefficients at once
#
# Do age and weight matter at all, together? Three tests, by what the analysis can give:
#
# - **D1** from estimates and covariances: the default.
# - **D4** from likelihoods, of each table and of all stacked: good where Wald tests are not.
# - **D2** from the m chi-square statistics alone: when nothing else is known. The weakest.
#
# Where effects are as large as these, the three may well differ; the conclusion does not.

# %%
pooled.joint_test(["age", "weight"])

# %%
likelihood_ratio_test(draws, analysis, lambda frame: smf.ols("pressure ~ treated", frame).fit())

# %%
statistics = [fit.wald_test("age = 0, weight = 0", use_f=False, scalar=True).statistic for fit in analyses]
pool_chi2(statistics, df=2)

# %% [markdown]
# Contrasts are combinations of coefficients: are ten years worth as much as ten kilograms?

# %%
names = pooled.table.index
contrast = (names == "age").astype(float) - (names == "weight")
pooled.joint_test(contrasts=[contrast])

# %% [markdown]
# ## For Bayesians: mix
#
# A posterior given each completed table, draws put together with equal weights, is the posterior given what
# was observed. No normal distribution is needed, but many tables are: the mixture of few is too narrow, and a
# warning says so.
#
# Below is the exact posterior of the regression under a flat prior; a function from a table to draws could as
# well run MCMC of Pyro (`examples/mix_posteriors.py`). A ratio of two coefficients (how many kilograms raise
# blood pressure as a year does) is not normal, and no trouble.

# %%
generator = np.random.default_rng(0)


def posterior(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Draws from the posterior given a completed table."""
    fit, n_draws = analysis(frame), 200
    spread = np.sqrt(fit.df_resid / generator.chisquare(fit.df_resid, n_draws))
    noise = generator.normal(size=(n_draws, len(fit.params))) @ np.linalg.cholesky(fit.cov_params()).T
    coefficients = fit.params.to_numpy() + spread[:, None] * noise
    drawn = dict(zip(names, coefficients.T, strict=True))
    return {"weight": drawn["weight"], "kilograms per year": drawn["age"] / drawn["weight"]}


mixture = draws.mix(posterior)
mixture

# %% [markdown]
# R-hat is that *within* tables. That posteriors of different tables differ is what imputation is for, and no
# fault of the sampler.

# %%
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
per_table = mixture.draws["weight"].reshape(m, -1)
bins = np.linspace(0.2, 0.8, 41)
for own in per_table[:20]:
    ax.hist(own, bins, density=True, histtype="step", color="#0072B2", linewidth=0.5, alpha=0.6)
ax.hist(mixture.draws["weight"], bins, density=True, histtype="step", color="#D55E00", linewidth=2)
ax.axvline(truth["weight"], color="0.4", linestyle="--", linewidth=1)
ax.set(xlabel="coefficient of weight: each table (thin), mixed (thick), truth (dashed)", yticks=[])
ax.spines[["top", "right", "left"]].set_visible(False)

# %% [markdown]
# ## Honest limits
#
# - Pooling cannot repair imputations that are wrong. Whether yours may be trusted is the subject of
#   `04_diagnostics`.
# - Imputer and analysis should be able to agree. Terms of the analysis (products, squares) follow from
#   columns that the imputer sees; what it cannot learn from few rows, it draws too flat.
# - Estimates that are bounded or skewed (correlations, variances, odds ratios) are pooled on the scale on
#   which they are nearly normal: Fisher's z, logarithms. Or by `mix`, which does not mind.
