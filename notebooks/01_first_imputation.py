# %% [markdown]
# # A first imputation
#
# A table has missing cells. We impute them twenty times, and the imputations differ as much as the true
# values are uncertain. Twenty completed tables show what one cannot: how much a result depends on the missing
# cells.
#
# The table describes the Palmer penguins: 344 birds, their species, island, sex, and four measurements.

# %%
import os
import tempfile
from pathlib import Path

import pandas as pd

from pyro_mgp import Imputations, MGPImputer, ampute
from pyro_mgp.evaluation.missingness import patterns
from pyro_mgp.plots import (
    plot_cells,
    plot_densities,
    plot_flux,
    plot_loss,
    plot_missingness,
    plot_patterns,
    plot_scatter,
    plot_strips,
)

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer rows and draws
m = 5 if quick else 20
examples = Path("examples") if Path("examples").exists() else Path("..", "examples")
penguins = pd.read_csv(examples / "data" / "penguins.csv")[:: 3 if quick else 1]
penguins.head()

# %% [markdown]
# ## Look at the missing cells first
#
# Only 19 cells are missing in this table. We remove more by a known mechanism: a third of the rows lose
# either both bill measurements or the body mass, and rows with large other measurements lose them more often.
# These cells are *missing at random*: whether a cell is missing depends on observed cells only. We keep the
# true values for comparison, which are not available in practice.

# %%
measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
together = [["bill_length_mm", "bill_depth_mm"], ["body_mass_g"]]
weights = [{"flipper_length_mm": 1, "body_mass_g": 1}, {"flipper_length_mm": 1, "bill_length_mm": 1}]
table = ampute(penguins, 0.33, patterns=together, weights=weights, random_state=1)
patterns(table)

# %% [markdown]
# The map shows each cell. The pattern plot shows each combination of missing columns, with its number of
# rows.

# %%
ax = plot_missingness(table)

# %%
ax = plot_patterns(table)

# %% [markdown]
# Do observed cells carry information about missing ones? The *outflux* of a column is high if it is observed
# where other columns are missing; its *influx* is high if other columns are observed where it is missing. A
# column in the lower left corner neither helps to impute others nor can be imputed from them.

# %%
ax = plot_flux(table)

# %% [markdown]
# ## Fit and impute
#
# `fit` trains one Gaussian process per incomplete column, which predicts that column from all the others. The
# kind of each column (number, label, count, ...) is inferred from its dtype and cells. Training stops when
# the predictions of held-out observed cells, averaged over a few checks, no longer improve.

# %%
imputer = MGPImputer(random_state=0, progress=False).fit(table)
axes = plot_loss(imputer)

# %% [markdown]
# `impute` draws the missing cells. Each of the m completed tables has the index, dtypes and observed cells of
# the original table. The same seed gives the same draws, and the first five of twenty equal `impute(m=5)`.

# %%
draws = imputer.impute(m=m)
draws

# %%
rows = table.index[table["body_mass_g"].isna()][:4]
pd.concat({f"draw {j}": draws[j].loc[rows, ["bill_length_mm", "body_mass_g", "sex"]] for j in (0, 1)}, axis=1)

# %% [markdown]
# ## Summaries of single cells
#
# `cells()` returns one row per missing cell. Numbers have a mean, a standard deviation and quantiles in the
# column's own units; labels have their most frequent value and its share.

# %%
draws.cells().groupby("column").head(2).round(2)

# %%
ax = plot_cells(draws, "body_mass_g", n=20)

# %% [markdown]
# Some cells are predicted to within 200 grams, others hardly at all. An analysis of one completed table would
# treat all of them as observations.

# %%
ax = plot_cells(draws, "sex")

# %% [markdown]
# ## Look at all imputations
#
# Observed cells have thick lines or solid markers, imputed cells thin lines or hollow markers. *The two
# distributions need not agree*: heavy birds lost more cells, and imputed masses should therefore be larger.
# Look for implausible results: negative masses, values that no penguin has, a curve unlike all others.

# %%
axes = plot_densities(draws)

# %%
ax = plot_strips(draws, "bill_length_mm")

# %% [markdown]
# Do the draws preserve the relation between columns? Diamonds are rows in which at least one of the two
# columns is missing.

# %%
ax = plot_scatter(draws, "bill_length_mm", "body_mass_g", n=60)

# %% [markdown]
# ## Comparison with the true values
#
# In this example the true values are known. Nine in ten of the 90 % intervals should contain them, and the
# standard deviations of the draws should be much smaller than that of the column.

# %%
cells = imputer.impute(m=m if quick else 100).cells().set_index(["row", "column"])
removed = cells[cells["mean"].notna()].assign(truth=penguins.stack()).dropna(subset="truth")
removed["covered"] = removed["truth"].between(removed["q05"], removed["q95"])
removed["error"] = (removed["truth"] - removed["mean"]).abs()
summary = removed.groupby("column")[["covered", "sd", "error"]].mean()
summary.assign(cells=removed.groupby("column").size(), sd_of_column=penguins[measured].std()).astype(
    float
).round(2)

# %% [markdown]
# The true values of your own missing cells are unknown. `calibrate` makes this comparison with observed cells
# that it holds out; the notebook `04_diagnostics` shows how.
#
# ## Save and load
#
# Draws and imputers are saved as folders without pickle, and loading them runs no code from the folder. A
# saved imputer may contain rows of your table: keep it as safe as the table itself.

# %%
with tempfile.TemporaryDirectory() as folder:
    draws.save(Path(folder, "draws"))
    imputer.save(Path(folder, "imputer"))
    same = Imputations.load(Path(folder, "draws"))
    again = MGPImputer.load(Path(folder, "imputer"))
print(same == draws)

# %% [markdown]
# A fitted imputer also completes new rows, without fitting again. Here is a bird of which only species,
# island, year and flipper length were observed.

# %%
bird = pd.DataFrame([{"species": "Gentoo", "island": "Biscoe", "flipper_length_mm": 222, "year": 2009}])
bird = bird.reindex(columns=table.columns).astype(table.dtypes)
cells = again.impute(bird, m=m if quick else 100).cells()
cells[["column", "mean", "q05", "q95", "mode", "mode_share"]].round(2)

# %% [markdown]
# ## Limits
#
# The method assumes that cells are missing at random: among rows with equal observed cells, missing cells are
# distributed like observed ones. No table can prove this assumption. If heavy birds were not weighed
# *because* they are heavy, and no other column shows it, the imputed masses are too small, and no diagnostic
# reveals it. The notebook `05_missing_not_at_random` treats this case.
#
# Next: how to analyse twenty tables, in `03_analysis_and_pooling`; or how the imputer works, in
# `02_inside_the_chain`.
