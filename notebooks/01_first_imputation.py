# %% [markdown]
# # A first imputation
#
# A table has holes. We fill them in twenty times, each time a little differently: as differently as the truth
# is uncertain. Twenty completed tables say what one cannot: how much of an answer hangs on cells nobody saw.
#
# The table is that of the Palmer penguins: 344 birds, their species, island, sex, and four measurements.

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

quick = "PYRO_MGP_QUICK" in os.environ  # the tests set it: fewer draws, same story
m = 5 if quick else 20
examples = Path("examples") if Path("examples").exists() else Path("..", "examples")
penguins = pd.read_csv(examples / "data" / "penguins.csv")
penguins.head()

# %% [markdown]
# ## Look at the holes first
#
# Only 19 cells are missing here: too few to see much. So we make more, in a way we know: in every third row
# either both bill measurements are lost or the body mass is, the more often the larger the other measurements
# are. That is *missing at random*: why a cell is missing can be read off cells that are still there. And we
# keep the truth to compare with, which outside of a notebook nobody has.

# %%
measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
together = [["bill_length_mm", "bill_depth_mm"], ["body_mass_g"]]
weights = [{"flipper_length_mm": 1, "body_mass_g": 1}, {"flipper_length_mm": 1, "bill_length_mm": 1}]
table = ampute(penguins, 0.33, patterns=together, weights=weights, random_state=1)
patterns(table)

# %% [markdown]
# The map shows each cell, the pattern plot each combination of holes and how many rows have it.

# %%
ax = plot_missingness(table)

# %%
ax = plot_patterns(table)

# %% [markdown]
# Is there anything to impute from? *Outflux* of a column is high if it is observed where others have holes;
# *influx* if, where it has holes, others are observed. A column in the lower left corner neither helps nor
# can be helped.

# %%
ax = plot_flux(table)

# %% [markdown]
# ## Fit and impute
#
# `fit` trains one Gaussian process per incomplete column, each predicting its column from all the others.
# Kinds of columns (numbers, labels, counts, ...) are found from dtypes and cells. Training stops when
# observed cells that were set aside are no longer predicted better, on average over a few checks: one check
# alone is a matter of luck.

# %%
imputer = MGPImputer(random_state=0, progress=False).fit(table)
axes = plot_loss(imputer)

# %% [markdown]
# `impute` draws. Each of the m tables has the index, dtypes and observed cells of ours; only holes are
# filled. The same seed gives the same draws, and the first five of twenty are those of `impute(m=5)`.

# %%
draws = imputer.impute(m=m)
draws

# %%
rows = table.index[table["body_mass_g"].isna()][:4]
pd.concat({f"draw {j}": draws[j].loc[rows, ["bill_length_mm", "body_mass_g", "sex"]] for j in (0, 1)}, axis=1)

# %% [markdown]
# ## What the draws say of each cell
#
# `cells()` has one row per missing cell. Numbers have mean, standard deviation and quantiles in the column's
# own units; labels have their most frequent value and its share.

# %%
draws.cells().groupby("column").head(2).round(2)

# %%
ax = plot_cells(draws, "body_mass_g", n=20)

# %% [markdown]
# Some cells are known to 200 grams, others hardly at all. An analysis of one completed table would take all
# of them for observations.

# %%
ax = plot_cells(draws, "sex")

# %% [markdown]
# ## Look at all imputations
#
# Observed cells are thick or solid, imputed ones thin or hollow. *They need not agree*: heavy birds lost more
# cells, so imputed masses should lie higher. What to look for is the impossible: negative masses, values out
# of any penguin's reach, a curve unlike all others.

# %%
axes = plot_densities(draws)

# %%
ax = plot_strips(draws, "bill_length_mm")

# %% [markdown]
# Do draws keep the shape that columns have together? Diamonds are rows in which at least one of the two was
# missing.

# %%
ax = plot_scatter(draws, "bill_length_mm", "body_mass_g", n=60)

# %% [markdown]
# ## Were they right?
#
# Here the truth is known. Nine in ten of the 90 % intervals should hold it; and the draws should spread no
# more than they need, which is what the standard deviations of the column are for.

# %%
cells = imputer.impute(m=100).cells().set_index(["row", "column"])
known = cells[cells["mean"].notna()].assign(truth=penguins.stack()).dropna(subset="truth")
known["held"] = known["truth"].between(known["q05"], known["q95"])
known["error"] = (known["truth"] - known["mean"]).abs()
summary = known.groupby("column")[["held", "sd", "error"]].mean()
summary.assign(cells=known.groupby("column").size(), sd_of_column=penguins[measured].std()).astype(
    float
).round(2)

# %% [markdown]
# Your own table has no truth to compare with. `calibrate` hides cells that are known and does the same: see
# `04_diagnostics`.
#
# ## Keep it
#
# Draws and imputers are saved as folders, without pickle: loading runs no code from them. A saved imputer may
# hold rows of your table: keep it as safe as the table itself.

# %%
with tempfile.TemporaryDirectory() as folder:
    draws.save(Path(folder, "draws"))
    imputer.save(Path(folder, "imputer"))
    same = Imputations.load(Path(folder, "draws"))
    again = MGPImputer.load(Path(folder, "imputer"))
print(same == draws)

# %% [markdown]
# A fitted imputer also completes rows it has not seen, without fitting again. Here is a bird of which only
# the species and the flipper are known.

# %%
bird = pd.DataFrame([{"species": "Gentoo", "island": "Biscoe", "flipper_length_mm": 222, "year": 2009}])
bird = bird.reindex(columns=table.columns).astype(table.dtypes)
again.impute(bird, m=100).cells()[["column", "mean", "q05", "q95", "mode", "mode_share"]].round(2)

# %% [markdown]
# ## What this does not do
#
# All of it rests on an assumption that no table can prove: among rows that agree in what is observed, missing
# cells are like the observed ones. If heavy birds were not weighed *because* they are heavy, and nothing else
# in the table shows it, draws are too light and say so nowhere: `05_missing_not_at_random` is about that.
#
# Next: what to do with twenty tables, in `03_analysis_and_pooling`; or how the imputer works, in
# `02_inside_the_chain`.
