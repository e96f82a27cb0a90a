"""A table with a column of every kind that is modelled in a way of its own, and holes in all of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pyro_mgp import ColumnSpec

SPECS = {
    "bounded": ColumnSpec(lower=0, upper=1),
    "positive": ColumnSpec(lower=0),
    "heavy": ColumnSpec(kind="heavy-tailed"),
    "count": ColumnSpec(kind="count"),
    "total": ColumnSpec(derived="plain + curve"),
    "dose": ColumnSpec(only_if="flag"),
}


def table_of_every_kind(n_rows: int, seed: int = 0) -> pd.DataFrame:
    """Three numbers behind every row, seen through each kind of column; a quarter of the cells missing."""
    generator = np.random.default_rng(seed)
    x, y, z = generator.normal(size=(3, n_rows))

    def noise(scale: float = 0.3) -> np.ndarray:
        return scale * generator.normal(size=n_rows)

    frame = pd.DataFrame(
        {
            "plain": x + noise(),
            "curve": np.sin(2 * x) + noise(0.1),
            "long_tailed": np.sinh(1.5 * (y + noise())),
            "bounded": 1 / (1 + np.exp(-x - y - noise())),
            "positive": np.exp(z + noise()),
            "heavy": z + 0.3 * generator.standard_t(2, size=n_rows),
            "few": np.rint(2 * (x + noise())) / 2,
            "dose": np.abs(y) + 0.1,
            "whole": pd.array(np.rint(30 * (y + noise())).astype(int), dtype="Int64"),
            "count": pd.array(generator.poisson(np.exp(0.7 * x + 0.5)), dtype="Int64"),
            "flag": pd.array(z + noise() > 0, dtype="boolean"),
            "grade": pd.cut(x + noise(), [-9, -0.5, 0.5, 9], labels=["low", "middle", "high"]),
            "kind": pd.cut(y + noise(), [-9, -1, 0, 1, 9], labels=[*"abcd"]).astype(object),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.rint((z + noise()) * 1e6), unit="s"),
        }
    )
    frame["total"] = frame["plain"] + frame["curve"]
    holes = pd.DataFrame(generator.random(frame.shape) < 0.25, columns=frame.columns)
    holes["dose"] |= ~frame["flag"].to_numpy(dtype=bool)
    holes["total"] |= holes["plain"] & holes["curve"]  # one missing source can be solved for, two cannot
    return frame.mask(holes)
