# %% [markdown]
# # Repeated measures and dropout
#
# Patients are measured at several visits, and some stop coming. In *long* format each visit is a row, with a
# column that names the patient. Rows of a patient resemble each other: a patient who starts above others
# mostly stays above them, and each improves at a rate of their own.
#
# With the columns of patients and times named, the model of each other column has an intercept and a slope of
# time for each patient. Schools, hospitals and countries are groups as well, without times (`groups=`).

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from pyro_mgp import MGPImputer, pool

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer draws
m = 5 if quick else 20

# %% [markdown]
# ## A simulated trial
#
# 60 patients in two arms. A score of their health is measured at the start and about 3, 6, 12 and 24 months
# later; `t` is the time in years. Scores rise by 2 points a year in arm A and by 6 in arm B, by more in some
# patients and by less in others. After a visit with a high score a patient is more likely to stop coming.
# Who stops depends on observed scores only: the later ones are missing at random.

# %%
generator = np.random.default_rng(6)
n, planned = 60, np.array([0, 0.25, 0.5, 1, 2])
patient, visit = np.repeat(np.arange(n), 5), np.tile(np.arange(5), n)
treated = np.repeat(generator.permutation(n) % 2, 5)
t = (planned[visit] + np.where(visit > 0, generator.uniform(-0.08, 0.08, 5 * n), 0)).round(2)
intercept, slope = generator.normal(0, [[4], [3]], (2, n))[:, patient]
y = (50 + intercept + (2 + 4 * treated + slope) * t + generator.normal(0, 2.5, 5 * n)).round(1)
arm = np.where(treated == 1, "B", "A")
complete = pd.DataFrame({"patient": [f"P{k + 1:02}" for k in patient], "arm": arm, "t": t, "y": y})

left, frame = np.zeros(n, dtype=bool), complete.copy()
for k in range(1, 5):
    left |= generator.random(n) < 1 / (1 + np.exp(2 - 0.3 * (y.reshape(n, 5)[:, k - 1] - 52)))
    frame.loc[left[patient] & (visit == k), "y"] = np.nan
frame.head(10)

# %% [markdown]
# Rows of visits that did not take place stay in the table, with the time that was planned. At the last visit
# a third of the scores are missing in arm A, and half in arm B, where scores are higher.

# %%
frame["y"].isna().groupby([arm, visit]).mean().unstack().rename_axis(index="arm", columns="visit").round(2)

# %% [markdown]
# ## Imputation
#
# `subject` and `time` give each patient an intercept and a slope in time, and a process over time, since
# deviations from a patient's line may be alike at close times; here they are independent. For comparison, a
# second imputer gets the table without the column of patients, and takes the rows for independent of each
# other.

# %%
imputer = MGPImputer(subject="patient", time="t", random_state=0, progress=False).fit(frame)
draws = imputer.impute(m=m)
without = MGPImputer(random_state=0, progress=False).fit(frame.drop(columns="patient")).impute(m=m)
print(f"{frame['y'].isna().sum()} of {len(frame)} scores are missing.")

# %% [markdown]
# Four patients who came three times, two of each arm. Imputed scores are shown by means and 90 % intervals,
# those without the column of patients a little to the right. With it, imputed scores continue a patient's own
# curve, and are less certain after two years than after one. Without it they depend on arm and time only: in
# each arm, the patient with low scores and the one with high scores get much the same.

# %%
shown = ["P29", "P33", "P50", "P32"]
styles = [("imputed with groups", draws, 0, "#D55E00", "s"), ("without", without, 0.1, "0.6", "D")]
fig, axes = plt.subplots(1, 4, figsize=(9, 3), sharex=True, sharey=True, layout="constrained")
for ax, name in zip(axes, shown, strict=True):
    rows = (frame["patient"] == name).to_numpy()
    seen, lost = rows & frame["y"].notna(), rows & frame["y"].isna()
    ax.plot(t[seen], y[seen], "o-", color="#0072B2", markersize=4, label="observed")
    for label, tables, shift, color, marker in styles:
        cells = np.array([table["y"][lost] for table in tables])
        ax.vlines(t[lost] + shift, *np.quantile(cells, [0.05, 0.95], axis=0), color=color, linewidth=1.2)
        ax.plot(t[lost] + shift, cells.mean(0), marker, color=color, markersize=4, label=label)
    ax.set(title=f"{name}, arm {arm[rows][0]}", xlabel="years", xticks=[0, 1, 2])
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("score")
legend = fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)

# %% [markdown]
# ## Analysis
#
# The analysis is a linear mixed model, with a random intercept and slope for each patient. The coefficient
# `t:arm[T.B]` is the difference between the arms in points a year. Its true value is 4.
#
# Imputation should not change this particular result. Where only the outcome of a mixed model is missing, at
# random, the model can be fitted to the observed rows as they are, and imputation adds nothing but the noise
# of finitely many draws. Here that makes it a check. Imputations are needed where covariates are missing as
# well, or for analyses of complete rows, such as the share of patients above 60 after two years.


# %%
def analysis(table: pd.DataFrame):
    """Fit linear growth by arm, with a random intercept and slope for each patient."""
    table = table.assign(patient=frame["patient"])
    return smf.mixedlm("y ~ t * arm", table, groups="patient", re_formula="~t").fit()


fits = {"imputed, with groups": [analysis(table) for table in draws]}
pool(fits["imputed, with groups"]).table.loc[["Intercept", "t", "arm[T.B]", "t:arm[T.B]"]].round(3)

# %% [markdown]
# The next table compares the coefficient with that of other analyses. The last columns are the standard
# deviations of intercepts, slopes and residuals, averaged over imputations; the true ones are 4, 3 and 2.5.

# %%
fits["imputed, without"] = [analysis(table) for table in without]
fits |= {"observed rows": [analysis(frame.dropna())], "all visits": [analysis(complete)]}
term, rows = "t:arm[T.B]", {}
for method, own in fits.items():
    if len(own) > 1:
        found = pool(own).table.loc[term, ["estimate", "se", "low", "high"]]
    else:
        found = [own[0].params[term], own[0].bse[term], *own[0].conf_int().loc[term]]
    deviations = [[*np.sqrt(np.diag(fit.cov_re)), np.sqrt(fit.scale)] for fit in own]
    rows[method] = [*found, *np.mean(deviations, axis=0)]
columns = ["estimate", "se", "low", "high", "intercepts", "slopes", "residuals"]
pd.DataFrame(rows, index=columns).T.round(2)

# %% [markdown]
# With groups, the estimate differs from that of the observed rows by a quarter of its standard error, and the
# standard deviations hardly differ. Without them, residuals have a standard deviation of 3.5 instead of 2.4,
# and intercepts and slopes vary less, since imputed visits have nothing of their patient. The estimate is
# lower as well, and its standard error does not warn of that. How often intervals hold the truth is no
# question for one table; [coverage](../benchmarks/coverage/README.md) has the answer.
#
# ## A patient who was not in the table
#
# The effects of such a patient have the prior of the patients in the table, and are drawn given the scores
# that are observed: one intercept and one slope in each imputation, for all rows. The first two scores are
# high here, and so are the later ones, compared with those of a patient of the same arm without any:

# %%
visits = pd.DataFrame(
    {"patient": "new", "arm": "B", "t": [0, 0.25, 0.5, 1, 2], "y": [62, 64, None, None, None]}
)


def later(tables) -> pd.DataFrame:
    """Return mean and standard deviation of the last three scores over imputations."""
    cells = pd.DataFrame([table["y"].to_numpy()[-3:] for table in tables], columns=["0.5", "1", "2"])
    return cells.agg(["mean", "std"]).round(1)


both = {"two scores": visits, "none": visits.assign(y=np.nan)}
pd.concat({name: later(imputer.impute(rows, m=5 * m)) for name, rows in both.items()})

# %% [markdown]
# A fit to a table with the patient in it gives nearly the same:

# %%
both = pd.concat([frame, visits], ignore_index=True)
later(MGPImputer(subject="patient", time="t", random_state=0, progress=False).fit(both).impute(m=5 * m))
