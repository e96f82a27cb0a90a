# %% [markdown]
# # Analysis and pooling
#
# With m completed tables, run the analysis m times and pool the results. Rubin's rules add two variances: the
# variance that each analysis reports, and the variance between the analyses, which is due to missing cells.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from pyro_mgp import MGPImputer, ampute, likelihood_ratio_test, pool_chi2
from pyro_mgp.plots import plot_fmi

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer draws
m = 20 if quick else 50

# %% [markdown]
# ## A simulated table
#
# 250 patients: blood pressure depends on age, weight and treatment; weight depends on age. Weight is missing
# more often where the observed blood pressure is high. It is missing at random, but an analysis of complete
# cases is biased.


# %%
def simulate(seed: int, n: int = 250) -> pd.DataFrame:
    """Return a complete table."""
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
# `draws.pool` takes a function of a completed table that returns a fit: results of statsmodels, or a pair of
# estimates and variances. Impute with every variable of the analysis, *including the outcome*. Otherwise the
# imputed weights are independent of blood pressure given the other columns, which biases the slope towards
# zero.


# %%
def analysis(frame: pd.DataFrame):
    """Fit the regression to a completed table."""
    return smf.ols("pressure ~ age + weight + treated", frame).fit()


draws = MGPImputer(random_state=0, progress=False).fit(table).impute(m=m)
pooled = draws.pool(analysis)
pooled

# %%
fits = {"full table": analysis(full), "complete cases": analysis(table.dropna())}
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
# One table proves nothing: the estimate from the full table differs from the truth as well. Pooled intervals
# should be *wider* than those from the full table, and over many tables contain the true value at their
# nominal rate.
#
# ## Missing information
#
# - `riv`: relative increase of the variance, compared with the variance within tables.
# - `lambda`: share of the variance that is due to missing cells.
# - `fmi`: fraction of missing information; it is similar, but also includes the uncertainty from a finite m.
#   If it is far from `lambda`, increase m.
#
# The coefficient of weight, the incomplete column, loses most information; the others lose information as far
# as they are correlated with weight.

# %%
ax = plot_fmi(pooled)

# %% [markdown]
# ## How many imputations?
#
# With ten tables, estimates are already reproducible to a per cent or two. Standard errors and p-values need
# more. Von Hippel's rule gives the number at which standard errors vary by at most 5 % (the default) when the
# table is imputed again:

# %%
pooled.recommended_m()

# %% [markdown]
# Draws are cheap compared with the fit. The plot shows the standard error of weight's coefficient for the
# first 2, 3, 4, ... tables.

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
ax.plot(counts, np.sqrt(within), color="#0072B2", linestyle="--", label="within tables")
ax.set(xlabel="imputations", ylabel="standard error of weight", ylim=(0, None))
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## Several coefficients at once
#
# Are the coefficients of age and weight both zero? There are three tests, which need different results of the
# analysis:
#
# - **D1** uses estimates and covariances; it is the default.
# - **D4** uses likelihoods of each table and of all tables stacked; it suits models with poor Wald tests.
# - **D2** uses only the m chi-square statistics; it has the least power.
#
# For effects as large as these the three statistics may differ, but the conclusion is the same.

# %%
pooled.joint_test(["age", "weight"])

# %%
likelihood_ratio_test(draws, analysis, lambda frame: smf.ols("pressure ~ treated", frame).fit())

# %%
statistics = [fit.wald_test("age = 0, weight = 0", use_f=False, scalar=True).statistic for fit in analyses]
pool_chi2(statistics, df=2)

# %% [markdown]
# Contrasts are linear combinations of coefficients: is the effect of a year equal to that of a kilogram?

# %%
names = pooled.table.index
contrast = (names == "age").astype(float) - (names == "weight")
pooled.joint_test(contrasts=[contrast])

# %% [markdown]
# ## Posterior mixtures
#
# In a Bayesian analysis, the mixture of the posteriors given each completed table, with equal weights, is the
# posterior given the observed cells. It needs no normal approximation, but many tables: a mixture of few is
# too narrow, and raises a warning.
#
# Here is the exact posterior of the regression under a flat prior. The function may also run MCMC in Pyro, as
# in `examples/mix_posteriors.py`. The posterior of a ratio of two coefficients is not normal, which is no
# problem for a mixture.

# %%
generator = np.random.default_rng(0)


def posterior(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Draw from the posterior given a completed table."""
    fit, n_draws = analysis(frame), 200
    spread = np.sqrt(fit.df_resid / generator.chisquare(fit.df_resid, n_draws))
    noise = generator.normal(size=(n_draws, len(fit.params))) @ np.linalg.cholesky(fit.cov_params()).T
    coefficients = fit.params.to_numpy() + spread[:, None] * noise
    drawn = dict(zip(names, coefficients.T, strict=True))
    return {"weight": drawn["weight"], "kilograms per year": drawn["age"] / drawn["weight"]}


mixture = draws.mix(posterior)
mixture

# %% [markdown]
# R-hat is computed *within* tables. Differences between the posteriors of different tables express the
# missing information, and are no fault of the sampler.

# %%
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
per_table = mixture.draws["weight"].reshape(m, -1)
bins = np.linspace(0.2, 0.8, 41)
for own in per_table[:20]:
    ax.hist(own, bins, density=True, histtype="step", color="#0072B2", linewidth=0.5, alpha=0.6)
ax.hist(mixture.draws["weight"], bins, density=True, histtype="step", color="#D55E00", linewidth=2)
ax.axvline(truth["weight"], color="0.4", linestyle="--", linewidth=1)
ax.set(xlabel="coefficient of weight: each table (thin), mixture (thick), truth (dashed)", yticks=[])
ax.spines[["top", "right", "left"]].set_visible(False)

# %% [markdown]
# ## Limits
#
# - Pooling cannot repair wrong imputations. `04_diagnostics` shows how to check them.
# - The imputation model should be compatible with the analysis. Products and squares in the analysis are
#   computed from imputed columns; effects that the imputer cannot learn from few rows are biased towards
#   zero.
# - Pool bounded or skewed estimates (correlations, variances, odds ratios) on a scale on which they are
#   nearly normal, such as Fisher's z or logarithms, or use `mix`, which needs no normality.
