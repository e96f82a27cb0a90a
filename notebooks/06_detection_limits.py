# %% [markdown]
# # Below the limit of detection
#
# A laboratory reports concentrations down to a limit, and "<0.5" below it. Such a cell is not simply missing:
# it is known to be small. Half the limit in its place gives all of these cells one value, which biases means,
# spreads and slopes; without the cells, or imputed as if they were missing at random, results are too high.
#
# A cell with limits is drawn within them, from a model that learns from it what is known: its probability to
# lie there.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from pyro_mgp import ColumnSpec, MGPImputer, split_limits

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer draws
m = 5 if quick else 40

# %% [markdown]
# ## A table as laboratories send it
#
# 250 wells, with the depth of each and the arsenic in its water, in µg/l, which falls with depth. One
# laboratory measures down to 2 µg/l, the other down to 5. Some samples were lost: their cells are empty.

# %%
generator = np.random.default_rng(1)
n = 250
depth = generator.uniform(5, 60, n)
true = np.exp(2.2 - 0.03 * depth + generator.normal(size=n))
limit = np.where(generator.random(n) < 0.5, 2.0, 5.0)
text = [f"<{below:g}" if cell < below else f"{cell:.2f}" for cell, below in zip(true, limit, strict=True)]
wells = pd.DataFrame({"depth": depth.round(1), "arsenic": text})
wells.loc[generator.choice(n, 20, replace=False), "arsenic"] = None
wells.head(8)

# %% [markdown]
# `split_limits` turns the text into numbers, with the limits in a column of their own, and returns the specs
# that name it. On the command line, `pyro-mgp impute wells.csv` does the same.

# %%
frame, specs = split_limits(wells)
print(specs)
frame.head(8)

# %% [markdown]
# A table that already has limits as numbers needs `specs` only. `upper_limit` is for cells that lie below a
# number, `lower_limit` for cells above one (right-censored), both for cells in an interval. In rows in which
# a cell is observed, or missing for another reason, its limits are empty.

# %%
print(specs == {"arsenic": ColumnSpec(upper_limit="arsenic at most")})

# %% [markdown]
# ## Imputation

# %%
imputer = MGPImputer(specs=specs, random_state=0, progress=False).fit(frame)
draws = imputer.impute(m=m)
below = frame["arsenic at most"].notna()
print(f"{below.sum()} cells lie below a limit, {(frame['arsenic'].isna() & ~below).sum()} are lost.")
ratio = max((table["arsenic"] / frame["arsenic at most"]).max() for table in draws)
print(f"The largest draw is {ratio:.3f} of its limit.")

# %% [markdown]
# The picture shows one completed table. Draws follow the relation to depth below the limits, where no cell
# was observed; they spread as observed cells do.

# %%
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
first, lost = draws[0], frame["arsenic"].isna() & ~below
ax.plot(depth[frame["arsenic"].notna()], frame["arsenic"].dropna(), ".", color="#8FB3CC", label="observed")
ax.plot(depth[below], first["arsenic"][below], ".", color="#D55E00", label="drawn below a limit")
ax.plot(depth[lost], first["arsenic"][lost], "x", color="black", markersize=5, label="lost, imputed")
for height in (2, 5):
    ax.axhline(height, color="grey", linewidth=0.8, linestyle="--")
ax.set(xlabel="depth, m", ylabel="arsenic, µg/l", yscale="log", ylim=(0.1, 400))
ax.set_title("One of the imputations")
ax.spines[["top", "right"]].set_visible(False)
legend = ax.legend(frameon=False, ncols=3, loc="upper right")

# %% [markdown]
# ## What it changes
#
# The slope of log arsenic on depth (true value -0.03) and the mean of log arsenic, by three ways to complete
# the table, and with the true concentrations.


# %%
def slope(table: pd.DataFrame):
    """Regress the logarithm of arsenic on depth."""
    return smf.ols("np.log(arsenic) ~ depth", table).fit()


def mean(table: pd.DataFrame):
    """Estimate the mean of the logarithm of arsenic."""
    return smf.ols("np.log(arsenic) ~ 1", table).fit()


half = frame.assign(arsenic=frame["arsenic"].fillna(frame["arsenic at most"] / 2)).dropna(subset=["arsenic"])
no_limits = MGPImputer(random_state=0, progress=False).fit(frame[["depth", "arsenic"]]).impute(m=m)
rows = {}
for name, analysis, term in (("slope", slope, "depth"), ("mean", mean, "Intercept")):
    for method, imputed in (("within limits", draws), ("as if missing at random", no_limits)):
        rows[name, method] = imputed.pool(analysis).table.loc[term, ["estimate", "low", "high"]]
    for method, table in (("half the limit", half), ("true values", frame.assign(arsenic=true))):
        fit = analysis(table)
        low, high = fit.conf_int().loc[term]
        rows[name, method] = pd.Series({"estimate": fit.params[term], "low": low, "high": high})
pd.DataFrame(rows).T.astype(float).round(3)

# %% [markdown]
# Half the limit flattens the slope; cells imputed as if they were missing at random give a mean that is too
# high and a slope that is too flat. Within limits both intervals hold the values of the true concentrations,
# and are wider than these only by what the limits leave open.
#
# Whether the assumption holds, a column that is nearly normal after a logarithm here, can be checked on
# observed cells only: no cell below the limits was observed. `imputer.codec_` holds the transform that was
# chosen, by the likelihood of observed cells and limits together.
