# %% [markdown]
# # From a table with holes to the paper
#
# A regression table, marginal effects, a picture of predictions and a sentence, in some 25 lines. The
# question: how does the probability that a penguin is male change with its body mass, among birds of the same
# species and flipper length?

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from pyro_mgp import MGPImputer, ampute
from pyro_mgp.analysis.quantities import area_under_curve

quick = "PYRO_MGP_QUICK" in os.environ  # set by the tests: fewer draws
examples = Path("examples") if Path("examples").exists() else Path("..", "examples")
penguins = pd.read_csv(examples / "data" / "penguins.csv").drop(columns=["island", "bill_depth_mm"])
penguins["body_mass_kg"] = penguins.pop("body_mass_g") / 1000

# %% [markdown]
# Of 344 birds, eleven have no sex, and two no measurements. More cells are removed here, by observed flipper
# length: in 35 % of the rows body mass, or body mass and sex.

# %%
together = [["body_mass_kg"], ["body_mass_kg", "sex"]]
weights = [{"flipper_length_mm": 1.0}, {"flipper_length_mm": -1.0}]
table = ampute(penguins, 0.35, patterns=together, weights=weights, random_state=0)
table.isna().mean().round(2)

# %% [markdown]
# ## Impute
#
# The table that is imputed has all columns of the analysis, the outcome too.

# %%
draws = MGPImputer(random_state=0, progress=False).fit(table).impute(m=5 if quick else 40)

# %% [markdown]
# ## The regression table
#
# One line fits a logistic regression to every completed table and pools its coefficients by Rubin's rules.
# `exponentiate` makes odds ratios of them.

# %%
male = draws.fit("sex ~ body_mass_kg + flipper_length_mm + species", family="binomial")
male.summary(exponentiate=True).round(3)

# %% [markdown]
# `male.to_latex()` and `male.to_html()` give the table for a manuscript.
#
# ## Marginal effects
#
# Odds ratios are hard to read. Average marginal effects are in probabilities: per kilogram, per millimetre,
# and between species.

# %%
effects = male.marginal_effects()
effects

# %% [markdown]
# ## A picture
#
# Predictions are pooled on the logit scale, on which they are closer to normal, and then transformed.

# %%
mass = pd.Series(range(30, 61), name="body_mass_kg") / 10
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for species, flipper, color in [("Adelie", 190, "#0072B2"), ("Gentoo", 217, "#D55E00")]:
    rows = mass.to_frame().assign(species=species, flipper_length_mm=flipper)
    found = male.predict(rows)
    ax.fill_between(mass, found["low"], found["high"], color=color, alpha=0.2, linewidth=0)
    ax.plot(mass, found["estimate"], color=color, label=f"{species}, flipper {flipper} mm")
ax.set(xlabel="body mass, kg", ylabel="probability of a male", ylim=(-0.02, 1.02))
ax.spines[["top", "right"]].set_visible(False)
legend = fig.legend(loc="outside upper center", ncols=2, frameon=False)

# %% [markdown]
# ## The sentence
#
# How well body mass alone tells the sexes apart is an area under the curve, pooled on the logit scale.

# %%
auc = draws.estimate(
    lambda birds: area_under_curve("body_mass_kg", "male")(birds.assign(male=birds.sex == "male"))
)
row, area = effects.table.loc["body_mass_kg"], auc.table.iloc[0]
percent = row[["estimate", "low", "high"]] * 10  # percentage points per 100 g
print(
    f"Missing cells were imputed {draws.m} times by sequential Gaussian processes, and analyses pooled by\n"
    "Rubin's rules. On average, 100 g more body mass raised the probability of being male by\n"
    f"{percent.estimate:.1f} percentage points (95 % interval {percent.low:.1f} to {percent.high:.1f}; "
    f"fraction of missing information {row.fmi:.2f}).\nBy body mass alone, the area under the curve was "
    f"{area.estimate:.2f} ({area.low:.2f} to {area.high:.2f})."
)
