# %% [markdown]
# # Missing not at random
#
# Every imputation makes an assumption about missing cells. Ours is that cells are *missing at random*: among
# rows with equal observed cells, missing cells are distributed like observed ones. If people do not report
# their incomes *because* these are high, the assumption is wrong, and the table does not show it. A
# sensitivity analysis finds how large the departure must be to change a conclusion.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from pyro_mgp import AfterDropout, MGPImputer, ampute, tipping_point, tipping_points
from pyro_mgp.plots import plot_densities, plot_tipping_point, plot_tipping_points

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer draws
m = 5 if quick else 40

# %% [markdown]
# ## A trial with dropout
#
# 300 patients, half of them treated, have a pain score before and after; the treatment lowers it by 4 points.
# A third of the treated patients drop out. In the first table dropout depends on the score before, which is
# observed; in the second it depends on the score after, which is missing: patients still in pain drop out.

# %%
generator = np.random.default_rng(2)
n = 300
before = generator.normal(50, 10, n)
treated = np.arange(n) % 2
after = 50 + 0.6 * (before - 50) - 4 * treated + generator.normal(0, 8, n)
full = pd.DataFrame({"before": before, "treated": treated, "after": after})


def drop_out(mechanism: str, reason: str) -> pd.DataFrame:
    """Return the trial after a third of its treated patients dropped out."""
    incomplete = ampute(
        full[full["treated"] == 1],
        0.35,
        mechanism=mechanism,
        patterns=[["after"]],
        weights=[{reason: 1}],
        random_state=0,
    )
    return pd.concat([full[full["treated"] == 0], incomplete]).sort_index()


trials = {"at random": drop_out("MAR", "before"), "not at random": drop_out("MNAR", "after")}
pd.DataFrame(
    {name: table["after"].isna().groupby(table["treated"]).mean() for name, table in trials.items()}
).round(2)

# %% [markdown]
# ## Analysis of both tables
#
# We estimate the effect of the treatment, adjusted for the score before. If scores are missing at random, the
# pooled estimate is close to the truth. If they are not, the treatment appears better than it is, because
# patients in whom it failed dropped out.


# %%
def analysis(table: pd.DataFrame):
    """Estimate the adjusted effect of the treatment."""
    return smf.ols("after ~ treated + before", table).fit()


fitted = {name: MGPImputer(random_state=0, progress=False).fit(table) for name, table in trials.items()}
effects = {name: imputer.impute(m=m).pool(analysis).table.loc["treated"] for name, imputer in fitted.items()}
complete = analysis(full)
low, high = complete.conf_int().loc["treated"]
effects["complete table"] = pd.Series({"estimate": complete.params["treated"], "low": low, "high": high})
pd.DataFrame(effects).T[["estimate", "low", "high"]].astype(float).round(2)

# %% [markdown]
# The observed cells do not show which table is which. Holding cells out would not show it either, since they
# are held out at random. The imputed scores are similar in both tables; only the missing scores differ:

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharex=True)
for ax, (name, table) in zip(axes, trials.items(), strict=True):
    lost = full.loc[table["after"].isna(), "after"]
    shown = fitted[name].impute(m=m).values["after"].ravel()
    bins = np.linspace(10, 85, 26)
    ax.hist(shown, bins, density=True, histtype="step", color="#D55E00", linewidth=2, label="imputed")
    ax.hist(lost, bins, density=True, color="#C6DDEC", label="true values")
    ax.set(title=f"missing {name}", xlabel="pain after", yticks=[])
    ax.spines[["top", "right", "left"]].set_visible(False)
legend = axes[0].legend(frameon=False)

# %% [markdown]
# ## Shift the draws
#
# `delta` adds a number to the imputed cells of a column, in its own units, such as "patients who dropped out
# had five points more than similar patients". The model is not fitted again. In this example we know the
# difference; in practice it must come from knowledge of the subject, not from the table.

# %%
imputer, trial = fitted["not at random"], trials["not at random"]
missing = trial["after"].isna()
difference = full.loc[missing, "after"].mean() - imputer.impute(m=m).values["after"].mean()
shifted = imputer.impute(m=m, delta={"after": difference}).pool(analysis)
print(f"Patients who dropped out had {difference:.1f} points more than imputed.")
shifted.table.loc[["treated"], ["estimate", "low", "high", "fmi"]].round(2)

# %% [markdown]
# The shifted draws are larger than the observed scores, as the assumption implies:

# %%
axes = plot_densities(imputer.impute(m=m, delta={"after": difference}), ["after"])

# %% [markdown]
# For booleans, ordered levels and counts, δ acts on the scale of their model (probit, logarithm); the
# documentation of `impute` has the details.
#
# ## The tipping point
#
# Since δ is unknown, try many values, and find where the conclusion changes.

# %%
deltas = np.arange(0, 15, 14 if quick else 1)
scan = tipping_point(imputer, analysis, "after", deltas, term="treated", m=m)
scan.round(2)

# %%
ax = plot_tipping_point(scan)

# %%
spread = trial["after"].std()
tipped = scan.loc[scan["tipped"], "delta"]
sds = tipped.min() / spread
print(f"The interval includes zero from δ = {tipped.min():.0f}, or {sds:.1f} standard deviations.")

# %% [markdown]
# Report it in a sentence: "the effect would no longer be significant if patients who dropped out had so many
# points more than similar patients who did not". Readers can judge whether this is plausible.
#
# ## Shifts affect other columns
#
# Sleep is missing for patients who dropped out as well, and patients in pain sleep less. Later links of the
# chain predict from the shifted draws: larger imputed pain scores lead to less imputed sleep.

# %%
hours = 8 - 0.04 * full["after"] + generator.normal(0, 0.8, n)
both = MGPImputer(random_state=0, progress=False).fit(trial.assign(sleep=hours.mask(missing)))
rows = {}
for delta in [0, 5, 10]:
    values = both.impute(m=m, delta={"after": delta}).values
    rows[delta] = {"pain": values["after"].mean(), "sleep": values["sleep"].mean()}
pd.DataFrame(rows).T.rename_axis("δ").round(2)

# %% [markdown]
# ## Several visits and a reference arm
#
# Trials with several visits state their assumption by the arm whose course a patient follows after dropout.
# Under *jump to reference* (J2R), treated patients who drop out have the mean course of the control arm from
# then on, and stay as far above or below it as before.

# %%
visits = [f"pain_{week}" for week in (2, 4, 6)]
course = full[["before", "treated"]].copy()
level = generator.normal(0, 6, n)  # of a patient
for k, visit in enumerate(visits):
    mean = 50 + 0.6 * (before - 50) - 2 * (1 + k) * treated
    course[visit] = mean + level + generator.normal(0, 5, n)
for k, visit in enumerate(visits[1:]):
    stops = course[visits[k]] > np.where(treated == 1, 54, 58)  # patients still in pain
    course.loc[stops | course[visits[k]].isna(), visit] = np.nan

rows = {}
for strategy in ["MAR", "CIR", "CR", "J2R"]:
    assumed = AfterDropout(visits, arm="treated", reference=0, strategy=strategy)
    of_visits = MGPImputer(**assumed.settings, random_state=0).fit(course)
    draws = of_visits.impute(m=m, after_dropout=assumed)
    rows[strategy] = draws.fit("pain_6 ~ treated + before").table.loc["treated", ["estimate", "low", "high"]]
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# The less of the effect a strategy lets patients keep, the smaller it is. Beyond a strategy, both arms' cells
# after dropout can be shifted:

# %%
shifts = np.linspace(0, 12, 3 if quick else 7)
scan = tipping_points(
    of_visits,
    lambda table: smf.ols("pain_6 ~ treated + before", table).fit(),
    assumed,
    shifts,
    [-4, 0, 4],
    "treated",
    course,
    m=m,
)
ax = plot_tipping_points(scan)

# %% [markdown]
# ## Limits
#
# - A scan shows what *would* follow from each shift. It does not show which shift is true.
# - One number per column is a simple departure. To shift only some rows, impute them separately with
#   `imputer.impute(rows, delta=...)`.
# - Recording the reasons for missing cells, or observing a few of them later, is better than any scan.
