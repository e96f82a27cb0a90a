# %% [markdown]
# # May these imputations be trusted?
#
# Imputations claim two things: where a missing cell lies, and how uncertain that is. Observed cells can check
# both: hide some, impute them, compare. The second half hands the draws to ArviZ, for those who know its
# checks.

# %%
import os
import warnings
from importlib.metadata import version
from pathlib import Path

import arviz as az
import pandas as pd
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn wants it)
from sklearn.impute import IterativeImputer

from pyro_mgp import MGPImputer, calibrate, compare, to_arviz
from pyro_mgp.plots import plot_calibration, plot_pit

quick = "PYRO_MGP_QUICK" in os.environ  # the tests set it: fewer draws and fits, same story
examples = Path("examples") if Path("examples").exists() else Path("..", "examples")
penguins = pd.read_csv(examples / "data" / "penguins.csv")
measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
steps = 5 if quick else 20  # of training; 20 is the default
imputer = MGPImputer(max_steps=steps, random_state=0, progress=False)

# %% [markdown]
# ## Hide, impute, compare
#
# With `folds=5` every observed cell of the incomplete columns is hidden once, and five fits impute them. Of a
# hundred 90 % intervals, about ninety must hold what was hidden: fewer, and standard errors of your analysis
# will be too small; more, and they are wider than need be.

# %%
calibration = calibrate(imputer, penguins, folds=2 if quick else 5, m=50 if quick else 100)
calibration

# %% [markdown]
# The same as pictures. Lines should stay within the pale band: that is where chance takes an imputer that is
# calibrated.

# %%
axes = plot_calibration(calibration)

# %% [markdown]
# The *probability integral transform* (PIT) is the place of the truth among its draws. It is uniform if the
# draws are right: two high ends are draws too certain, a hill in the middle too uncertain, a slope off
# centre.

# %%
axes = plot_pit(calibration, measured)

# %% [markdown]
# ## What a bad one looks like
#
# Filling in means is the usual bad example. A worse one looks good: chained regressions whose predictions are
# filled in *without* noise. Their errors are no larger, and nobody is told that there are any: all draws are
# the same, and their intervals hold nothing.
#
# `compare` puts imputers before the same hidden cells: ours, the paper's corner of it, and scikit-learn's
# chained regressions with and without draws. (The latter take numbers only, and so know no species.)

# %%
imputers = {
    "MGPImputer": imputer,
    "paper's corner": MGPImputer.paper(max_steps=5 if quick else 300, n_paths=5, progress=False),
    "ridge, drawn": IterativeImputer(sample_posterior=True),
    "ridge, predicted": IterativeImputer(max_iter=50),
}
compared = compare(imputers, penguins, columns=measured, share=0.2, m=20, levels=[0.5, 0.9])
overall = compared[compared["column"].isna()].set_index("imputer")
overall[["coverage_50", "coverage_90", "se_90", "rmse_sd", "crps_sd", "verdict"]].round(3)

# %% [markdown]
# RMSE rewards the mean of the draws alone. CRPS judges all of them: it is small where draws are near the
# truth *and* as spread out as they should be, so it is the figure to compare imputers by. Look at coverage
# beside it. On this small table the paper's corner does as well as the defaults; the README says where it
# does not.

# %% [markdown]
# Anything that imputes can be judged, also a function. This one takes our draws and halves how far they are
# from their means:


# %%
def too_certain(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Completed tables whose numbers vary half as much as they should."""
    fitted = MGPImputer(max_steps=steps, random_state=seed, progress=False).fit(frame)
    means, draws = fitted.transform(frame)[measured], fitted.impute(m=m)
    return [table.assign(**(table[measured] + means) / 2) for table in draws]


axes = plot_calibration(calibrate(too_certain, penguins, columns=measured, share=0.2, m=50))

# %% [markdown]
# ## Into ArviZ
#
# `to_arviz` takes one `Imputations`, or several of the same table by fits with different seeds: these become
# chains. ArviZ 0.x gets its `InferenceData`, 1.x an xarray `DataTree`; they name a few things differently,
# and the next cell is the only one here that minds.

# %%
fits = [
    MGPImputer(max_steps=steps, random_state=seed, progress=False).fit(penguins)
    for seed in range(2 if quick else 4)
]
tree = to_arviz([fit.impute(m=50) for fit in fits])

if int(version("arviz").split(".")[0]) < 1:
    elpd_of, forest = "elpd_loo", {"data": tree.predictions, "combined": False}
    loo_pit, ppc = {"y": "body_mass_g", "ecdf": True}, az.plot_ppc
    some = {"num_pp_samples": 50, "random_seed": 0}
else:
    elpd_of, forest = "elpd", {"dt": tree, "group": "predictions", "combined": False}
    loo_pit, ppc = {"var_names": "body_mass_g"}, az.plot_ppc_dist
    some = {"num_samples": 50}

{name: list(tree[name].data_vars)[:4] for name in ("posterior", "predictions", "log_likelihood")}

# %% [markdown]
# ## Do restarts agree?
#
# A variational fit has no Markov chain, but it has a start: a seed chooses which cells are set aside and the
# order of steps. If fits with different seeds gave different imputations, yours would depend on luck. R-hat
# of the means of imputed cells says so: near 1 they agree. (That of kernel parameters would say nothing: each
# fit has one point estimate of these.)

# %%
az.summary(tree, var_names=["imputed"], filter_vars="like", kind="diagnostics")

# %%
plots = az.plot_forest(**forest, var_names=["body_mass_g"])

# %% [markdown]
# ## Observed cells, predicted
#
# The model also predicts cells that are observed, as if they were missing. Replicates of a column should look
# like the column:

# %%
plots = ppc(tree, var_names=measured, **some)

# %% [markdown]
# Each cell helped to fit the model that predicts it. Leave-one-out cross-validation (PSIS-LOO) takes that
# back by weights. `elpd` is the expected log density of a cell that is left out, summed; higher is better,
# for comparing settings on the same table. Where Pareto's k is large, weights are doubtful; hide these cells
# instead, which is what `calibrate` did above.

# %%
rows = {}
for column in measured:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto")  # counted here instead
        loo = az.loo(tree, var_name=column, pointwise=True)
    doubtful = int((loo.pareto_k > loo.good_k).sum())
    rows[column] = {
        "elpd": float(getattr(loo, elpd_of)),
        "se": float(loo.se),
        "cells": loo.n_data_points,
        "doubtful": doubtful,
    }
pd.DataFrame(rows).T.round(1)

# %% [markdown]
# And the probability integral transform of each cell, left out. The line shows how far it is from uniform;
# within the band it might as well be.

# %%
plots = az.plot_loo_pit(tree, **loo_pit)

# %% [markdown]
# ## What no diagnostic can tell
#
# Cells were hidden *at random*. Cells that are really missing may be so for reasons that the table does not
# show; about those, all of the above says nothing. What would follow is a question for
# `05_missing_not_at_random`.
