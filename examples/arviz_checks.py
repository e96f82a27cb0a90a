"""Check the imputations of the penguins in ArviZ: convergence across fits, and predictions of observed cells.

    python examples/arviz_checks.py -o checks

The table is fitted with several seeds and the imputations are passed to ArviZ, one chain per fit. The script
prints whether the chains within each fit mixed, R-hat of the imputed cells over fits, and for each column the
leave-one-out log density of its observed cells, where Pareto k allows it. It plots imputed cells (forest),
observed cells beside replicates (ppc), the probability integral transform of observed cells (pit), and its
leave-one-out version (loo_pit); the last two are uniform if draws are calibrated. The script runs with ArviZ
0.x and 1.x, which name their plots differently.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import arviz as az
import matplotlib as mpl
import pandas as pd

from pyro_mgp import Imputations, MGPImputer, leave_one_out, to_arviz
from pyro_mgp.imputer import FitWarning

TABLE = Path(__file__).parent / "data" / "penguins.csv"
COLUMNS = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
BEFORE_1 = int(version("arviz").split(".")[0]) < 1


def imputations(frame: pd.DataFrame, seeds: range, max_steps: int) -> list[Imputations]:
    """Return 50 imputations of a table by a fit per seed."""
    fits = [MGPImputer(random_state=seed, max_steps=max_steps, progress=False).fit(frame) for seed in seeds]
    return [fit.impute(m=50) for fit in fits]


def plots(tree: Any) -> dict[str, Callable[[], Any]]:
    """Return functions that draw the plots, by name."""
    column = "body_mass_g"
    if BEFORE_1:
        return {
            "forest": lambda: az.plot_forest(tree.predictions, var_names=column),
            "ppc": lambda: az.plot_ppc(tree, var_names=COLUMNS, num_pp_samples=50, random_seed=0),
            "pit": lambda: az.plot_bpv(tree, kind="u_value", var_names=COLUMNS),
            "loo_pit": lambda: az.plot_loo_pit(tree, y=column, ecdf=True),
        }
    return {
        "forest": lambda: az.plot_forest(tree, group="predictions", var_names=column),
        "ppc": lambda: az.plot_ppc_dist(tree, var_names=COLUMNS),
        "pit": lambda: az.plot_ppc_pit(tree, var_names=COLUMNS),
        "loo_pit": lambda: az.plot_loo_pit(tree, var_names=column),
    }


def main() -> None:
    """Print the tables and draw the plots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("checks"), help="folder for the plots")
    parser.add_argument("--quick", action="store_true", help="two short fits to a third of the rows")
    args = parser.parse_args()
    mpl.use("agg")
    import matplotlib.pyplot as plt

    args.out.mkdir(parents=True, exist_ok=True)
    frame = pd.read_csv(TABLE)
    draws = imputations(frame[::3], range(2), 5) if args.quick else imputations(frame, range(4), 20)
    tree = to_arviz(draws)
    tree["posterior_predictive"] = tree["in_sample_predictive"]  # the name that the plots look for
    for number, chain in enumerate(draws):
        print(f"fit {number}: {chain.mixing.words}" if chain.mixing else "no chains")
    print(az.summary(tree, var_names=["imputed"], filter_vars="like", kind="diagnostics").to_string())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the table says which columns are refused
        print(leave_one_out(draws).round(2).to_string())
    for name, plot in plots(tree).items():
        plot()
        plt.savefig(args.out / f"{name}.png", bbox_inches="tight")
        plt.close("all")


if __name__ == "__main__":
    main()
