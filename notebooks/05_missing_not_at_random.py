# %% [markdown]
# # Missing not at random
#
# Every imputation assumes something about cells nobody saw. Ours: among rows that agree in what is observed,
# missing cells are like the observed ones (*missing at random*). If people with high incomes do not tell them
# *because* they are high, that is wrong, and no table shows it. What can be done is to say how wrong it would
# have to be before a conclusion changes.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from pyro_mgp import MGPImputer, ampute, tipping_point
from pyro_mgp.plots import plot_densities, plot_tipping_point

quick = "PYRO_MGP_QUICK" in os.environ  # the tests set it: fewer draws, same story
m = 5 if quick else 40

# %% [markdown]
# ## A trial in which patients stay away
#
# 300 patients, half of them treated, have a score of pain before and after: the treatment lowers it by 4
# points. A third of those who were treated do not come back. In the first table that depends on the score
# before, which we know; in the second on the score after, which we do not: those still in pain stay away.

# %%
generator = np.random.default_rng(2)
n = 300
before = generator.normal(50, 10, n)
treated = np.arange(n) % 2
after = 50 + 0.6 * (before - 50) - 4 * treated + generator.normal(0, 8, n)
full = pd.DataFrame({"before": before, "treated": treated, "after": after})


def stay_away(mechanism: str, reason: str) -> pd.DataFrame:
    """The trial, a third of its treated patients lost."""
    holes = ampute(
        full[full["treated"] == 1],
        0.35,
        mechanism=mechanism,
        patterns=[["after"]],
        weights=[{reason: 1}],
        random_state=0,
    )
    return pd.concat([full[full["treated"] == 0], holes]).sort_index()


trials = {"at random": stay_away("MAR", "before"), "not at random": stay_away("MNAR", "after")}
pd.DataFrame(
    {name: table["after"].isna().groupby(table["treated"]).mean() for name, table in trials.items()}
).round(2)

# %% [markdown]
# ## The same analysis of both
#
# The effect of the treatment, adjusted for the score before. At random, imputation gets it right. Not at
# random, the treatment looks better than it is: those in whom it failed are not there.


# %%
def analysis(table: pd.DataFrame):
    """The effect of the treatment, adjusted."""
    return smf.ols("after ~ treated + before", table).fit()


fitted = {name: MGPImputer(random_state=0, progress=False).fit(table) for name, table in trials.items()}
effects = {name: imputer.impute(m=m).pool(analysis).table.loc["treated"] for name, imputer in fitted.items()}
complete = analysis(full)
low, high = complete.conf_int().loc["treated"]
effects["nobody missing"] = pd.Series({"estimate": complete.params["treated"], "low": low, "high": high})
pd.DataFrame(effects).T[["estimate", "low", "high"]].astype(float).round(2)

# %% [markdown]
# Nothing in the second table tells that it is the second. Hiding cells would not tell either: they are hidden
# at random. Imputed scores look alike; what differs is what nobody saw:

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharex=True)
for ax, (name, table) in zip(axes, trials.items(), strict=True):
    lost = full.loc[table["after"].isna(), "after"]
    shown = fitted[name].impute(m=m).values["after"].ravel()
    bins = np.linspace(10, 85, 26)
    ax.hist(shown, bins, density=True, histtype="step", color="#D55E00", linewidth=2, label="imputed")
    ax.hist(lost, bins, density=True, color="#C6DDEC", label="the truth")
    ax.set(title=f"missing {name}", xlabel="pain after", yticks=[])
    ax.spines[["top", "right", "left"]].set_visible(False)
legend = axes[0].legend(frameon=False)

# %% [markdown]
# ## Shift the draws
#
# `delta` adds a number to the imputed cells of a column, in its own units: "those who stayed away had five
# points more than patients like them". Nothing is fitted again. Here we know by how much they differ; in
# practice that number is knowledge about the subject, not about the table.

# %%
imputer, trial = fitted["not at random"], trials["not at random"]
missing = trial["after"].isna()
difference = full.loc[missing, "after"].mean() - imputer.impute(m=m).values["after"].mean()
shifted = imputer.impute(m=m, delta={"after": difference}).pool(analysis)
print(f"Those who stayed away had {difference:.1f} points more than imputed.")
shifted.table.loc[["treated"], ["estimate", "low", "high", "fmi"]].round(2)

# %% [markdown]
# Shifted draws lie higher than what was observed, as they should if we believe it:

# %%
axes = plot_densities(imputer.impute(m=m, delta={"after": difference}), ["after"])

# %% [markdown]
# For booleans, ordered levels and counts δ acts on the scale of their model (probit, logarithm); `impute`
# says so in detail.
#
# ## The tipping point
#
# Since δ is not known, try many, and look where the conclusion changes.

# %%
deltas = np.arange(0, 15, 14 if quick else 1)
scan = tipping_point(imputer, analysis, "after", deltas, term="treated", m=m)
scan.round(2)

# %%
ax = plot_tipping_point(scan)

# %%
spread = trial["after"].std()
tipped = scan.loc[scan["tipped"], "delta"]
print(f"Zero is reached from δ = {tipped.min():.0f} on, {tipped.min() / spread:.1f} standard deviations.")

# %% [markdown]
# That is the sentence to report: "the effect would no longer be significant if patients who stayed away had
# so many points more than patients like them who came". Whether that is believable, readers can judge better
# than any program.
#
# ## Other columns see the shift
#
# Patients who stayed away did not say how they sleep either, and those in pain sleep worse. Shifted draws of
# pain are passed on through the chain: whoever is imputed more pain is imputed less sleep.

# %%
hours = 8 - 0.04 * full["after"] + generator.normal(0, 0.8, n)
both = MGPImputer(random_state=0, progress=False).fit(trial.assign(sleep=hours.mask(missing)))
rows = {}
for delta in [0, 5, 10]:
    values = both.impute(m=m, delta={"after": delta}).values
    rows[delta] = {"pain": values["after"].mean(), "sleep": values["sleep"].mean()}
pd.DataFrame(rows).T.rename_axis("δ").round(2)

# %% [markdown]
# ## Honest limits
#
# - A scan says what *would* follow. It does not say what is true.
# - One number per column is a simple departure. Patients may differ in their reasons; a shift for some rows
#   only is made by imputing these rows apart (`imputer.impute(rows, delta=...)`).
# - Collecting reasons for missing cells, or a few of the missing cells themselves, beats every scan.
