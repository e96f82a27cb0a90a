"""Draw the picture of the README: `python docs/pictures.py` from the root of the repository."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from pyro_mgp import MGPImputer
from pyro_mgp.plots import plot_cells, plot_scatter

HERE = Path(__file__).parent


def main() -> None:
    """Remove a third of two columns of the penguins, impute them, and draw `penguins.png`."""
    penguins = pd.read_csv(HERE.parent / "examples" / "data" / "penguins.csv")
    missing = np.random.default_rng(0).random((len(penguins), 2)) < 1 / 3
    columns = ["flipper_length_mm", "body_mass_g"]
    penguins[columns] = penguins[columns].mask(missing)
    draws = MGPImputer(random_state=0).fit(penguins).impute(m=20)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    plot_scatter(draws, *columns, ax=left)
    plot_cells(draws, "body_mass_g", ax=right, n=25)
    figure.savefig(HERE / "penguins.png", dpi=110)


if __name__ == "__main__":
    main()
