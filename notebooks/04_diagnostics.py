# %% [markdown]
# # May these imputations be trusted?
#
# Imputations state the likely values of a missing cell and their uncertainty. Observed cells can check both:
# hold some out, impute them, and compare. The second half exports the draws to ArviZ for its model checks.

# %%
import os
import warnings
from importlib.metadata import version
from pathlib import Path

import arviz as az
import pandas as pd
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn needs it)
from sklearn.impute import IterativeImputer

from pyro_mgp import MGPImputer, calibrate, compare, leave_one_out, to_arviz
from pyro_mgp.imputer import FitWarning
from pyro_mgp.plots import plot_calibration, plot_pit

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer rows, draws and fits
examples = Path("examples") if Path("examples").exists() else Path("..", "examples")
penguins = pd.read_csv(examples / "data" / "penguins.csv")[:: 3 if quick else 1]
measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
steps = 5 if quick else 20  # of training; 20 is the default
imputer = MGPImputer(max_steps=steps, random_state=0, progress=False)

# %% [markdown]
# ## Hold out, impute, compare
#
# With `folds=5` every observed cell of the incomplete columns is held out once, and five fits impute them. Of
# a hundred 90 % intervals, about ninety should contain the held-out cell. If there are fewer, standard errors
# of your analysis will be too small; if there are more, they will be larger than necessary.

# %%
calibration = calibrate(imputer, penguins, folds=2 if quick else 5, m=20 if quick else 100)
calibration

# %% [markdown]
# The plots show coverage at every level. Lines should stay within the pale band, which contains 95 % of
# calibrated imputers at each level.

# %%
axes = plot_calibration(calibration)

# %% [markdown]
# The *probability integral transform* (PIT) is the rank of the true value among its draws. It is uniform if
# the draws are calibrated. High bars at both ends mean that draws are too certain, a hill in the middle that
# they are too uncertain, and a slope that they are off centre.

# %%
axes = plot_pit(calibration, measured)

# %% [markdown]
# ## Comparison of imputers
#
# A less obvious mistake than imputing means is to impute the predictions of chained regressions *without*
# noise. Their errors are as small as those of other imputers, but all draws are equal, and their intervals
# contain no true value.
#
# `compare` runs imputers on the same held-out cells: the defaults of this package, the paper's method, and
# scikit-learn's chained regressions with and without draws. (The latter take numbers only, without species.)

# %%
imputers = {
    "MGPImputer": imputer,
    "paper's method": MGPImputer.paper(max_steps=5 if quick else 300, n_paths=5, progress=False),
    "ridge, drawn": IterativeImputer(sample_posterior=True),
    "ridge, predicted": IterativeImputer(max_iter=50),
}
compared = compare(imputers, penguins, columns=measured, share=0.2, m=20, levels=[0.5, 0.9])
overall = compared[compared["column"].isna()].set_index("imputer")
overall[["coverage_50", "coverage_90", "se_90", "rmse_sd", "crps_sd", "verdict"]].round(3)

# %% [markdown]
# RMSE measures only the mean of the draws. CRPS measures their whole distribution: it is small if draws are
# near the true value *and* have the right spread. Compare imputers by CRPS, together with coverage. On this
# small table the paper's method does a little better than the defaults; the README reports tables on which it
# does not.

# %% [markdown]
# `calibrate` also takes a function that imputes. This one halves the distance of the draws from their means:


# %%
def too_certain(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Return completed tables in which the spread of numbers is half of what it should be."""
    sweeps = 5 if quick else 10
    fitted = MGPImputer(max_steps=steps, n_sweeps=sweeps, random_state=seed, progress=False).fit(frame)
    means, draws = fitted.transform(frame)[measured], fitted.impute(m=m)
    return [table.assign(**(table[measured] + means) / 2) for table in draws]


certain = calibrate(too_certain, penguins, columns=measured, share=0.2, m=20 if quick else 50)
axes = plot_calibration(certain)

# %% [markdown]
# ## Export to ArviZ
#
# `to_arviz` takes one `Imputations`, or several of the same table by fits with different seeds, which become
# chains. It returns an `InferenceData` for ArviZ 0.x and an xarray `DataTree` for 1.x. The next cell handles
# the different names of the two versions.

# %%
fits = [
    MGPImputer(max_steps=steps, random_state=seed, progress=False).fit(penguins)
    for seed in range(2 if quick else 4)
]
imputations = [fit.impute(m=20 if quick else 50) for fit in fits]
tree = to_arviz(imputations)

if int(version("arviz").split(".")[0]) < 1:
    forest = {"data": tree.predictions, "combined": False}
    loo_pit, ppc = {"y": "body_mass_g", "ecdf": True}, az.plot_ppc
    some = {"num_pp_samples": 40, "random_seed": 0}
else:
    forest = {"dt": tree, "group": "predictions", "combined": False}
    loo_pit, ppc = {"var_names": "body_mass_g"}, az.plot_ppc_dist
    some = {"num_samples": 40}

{name: list(tree[name].data_vars)[:4] for name in ("posterior", "predictions", "log_likelihood")}

# %% [markdown]
# ## Did the chains mix?
#
# Imputations are drawn by several chains of Gibbs sampling within a fit. `mixing` holds R-hat and effective
# sample sizes of what the chains passed through after burn-in, by column; `mixing.words` names columns in
# which draws still depend on each other, and how many sweeps they need. R-hat approaches 1 with more
# iterations: compare it with `largest`, which chance allows. In the export the figures are in `sample_stats`,
# with R-hat of every missing cell.

# %%
mixing = imputations[0].mixing
print(mixing.words)
mixing.table.round(2)

# %% [markdown]
# ## Do restarts agree?
#
# The seed of a fit chooses the held-out cells and the random numbers of training. Fits with different seeds
# should give similar imputations. R-hat of the means of imputed cells measures this: near 1 the fits agree.
# (R-hat of kernel parameters is not informative, since each fit has one point estimate of them.)

# %%
az.summary(tree, var_names=["imputed"], filter_vars="like", kind="diagnostics")

# %%
plots = az.plot_forest(**forest, var_names=["body_mass_g"])

# %% [markdown]
# ## Posterior predictive checks
#
# The model also predicts observed cells, as if they were missing, by functions that have learnt from these
# cells. The export calls such replicates `in_sample_predictive`; ArviZ looks for `posterior_predictive`.
# Their distribution should be that of the column:

# %%
tree["posterior_predictive"] = tree["in_sample_predictive"]
plots = ppc(tree, var_names=measured, **some)

# %% [markdown]
# Leave-one-out cross-validation (PSIS-LOO) corrects for this by importance weights. `elpd` is the sum of the
# expected log densities of left-out cells; use it to compare settings on the same table (higher is better).
# Weights with a large Pareto k are unreliable; a column with such cells gets no estimate, and a warning that
# says so: hold its cells out and impute again, as `calibrate` did above.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FitWarning)  # the table shows which columns are refused
    table = leave_one_out(imputations)
table.round(2)

# %% [markdown]
# This is the leave-one-out probability integral transform of each cell. The line shows its deviation from a
# uniform distribution; within the band it is compatible with one.

# %%
plots = az.plot_loo_pit(tree, **loo_pit)

# %% [markdown]
# ## Limits
#
# Cells were held out *at random*. Cells may be missing for reasons that the table does not show, and none of
# these checks can detect that. `05_missing_not_at_random` shows how to study the consequences.
