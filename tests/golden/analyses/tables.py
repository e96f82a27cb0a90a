"""Write the five completed tables of `tables.csv`, and `mids.csv`, which mice reads: `python tables.py`.

They are one table of 160 rows in which a fifth of x, k and y were drawn anew in each copy.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from pyro_mgp.results.imputations import Imputations


def draw(seed: int, n: int = 160) -> pd.DataFrame:
    """Return rows of two covariates, an outcome of each kind, a survival time, weights and clusters."""
    g = np.random.default_rng(seed)
    site = np.arange(n) % 20
    x, k = g.normal(size=n), g.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
    eta = 0.5 * x + 0.6 * (k == "b") - 0.4 * (k == "c") + 0.5 * np.random.default_rng(9).normal(size=20)[site]
    time = g.exponential(np.exp(-eta))
    limit = g.exponential(2.0, n)
    level = np.digitize(eta + g.logistic(size=n), [-0.8, 0.9])
    return pd.DataFrame(
        {
            "x": x,
            "k": k,
            "y": 1 + eta + g.normal(size=n),
            "yes": (g.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "count": g.poisson(np.exp(0.3 + 0.5 * eta)),
            "level": np.array(["low", "mid", "high"])[level],
            "time": np.minimum(time, limit),
            "event": (time <= limit).astype(int),
            "w": g.uniform(0.5, 2.0, n),
            "site": site,
        }
    ).round(4)


def main() -> None:
    """Write the tables in long format, with their number in the column imp."""
    base, tables = draw(0), []
    for imp in range(1, 6):
        other, g = draw(imp), np.random.default_rng(100 + imp)
        table = base.copy()
        for column in ("x", "k", "y"):
            table[column] = table[column].where(g.random(len(table)) > 0.2, other[column])
        tables.append(table.assign(imp=imp))
    folder = Path(__file__).parent
    pd.concat(tables).to_csv(folder / "tables.csv", index=False)
    imputations(tables).to_mice().to_csv(folder / "mids.csv", index=False)


def imputations(tables: list[pd.DataFrame]) -> Imputations:
    """Return draws of the cells of x, k and y that are not the same in all tables."""
    frame, values = tables[0].drop(columns="imp", errors="ignore"), {}
    for column in ("x", "k", "y"):
        cells = np.array([table[column].astype(object) for table in tables])
        differs = (cells != cells[0]).any(0)
        values[column] = cells[:, differs] if column == "k" else cells[:, differs].astype(float)
        frame[column] = frame[column].mask(differs)
    return Imputations(frame, values, m=len(tables))


if __name__ == "__main__":
    main()
