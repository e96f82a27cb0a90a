"""Generated incomplete tables on which the benchmarks run."""

from __future__ import annotations

import numpy as np
import pandas as pd


def numbers(
    n_rows: int, n_columns: int = 10, seed: int = 0, most_incomplete: int | None = None
) -> pd.DataFrame:
    """Return a table of correlated columns, two of them transformed by tanh, with 10 % missing cells.

    Columns after the first `most_incomplete` are complete; None for none.
    """
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(n_rows, 3)) @ generator.normal(size=(3, n_columns))
    table[:, :2] = np.tanh(table[:, :2])
    table += 0.3 * generator.normal(size=table.shape)
    frame = pd.DataFrame(table, columns=[f"c{d}" for d in range(n_columns)])
    holes = generator.random(table.shape) < 0.1
    if most_incomplete is not None:
        holes[:, most_incomplete:] = False
    return frame.mask(holes)


def mixed(n_rows: int, seed: int) -> pd.DataFrame:
    """Return a table of numbers, counts, booleans, categories and dates, with 20 % missing cells."""
    g = np.random.default_rng(seed)
    z = g.normal(size=n_rows)
    frame = pd.DataFrame(
        {
            "number": z + 0.3 * g.normal(size=n_rows),
            "skewed": np.exp(z + 0.3 * g.normal(size=n_rows)),
            "count": pd.array(g.poisson(np.exp(0.5 * z)), dtype="Int64"),
            "yes": pd.array(z + 0.5 * g.normal(size=n_rows) > 0, dtype="boolean"),
            "level": pd.Categorical(np.array(["a", "b", "c"])[np.digitize(z, [-0.5, 0.5])]),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.rint(30 * z), unit="D"),
        }
    )
    return frame.mask(g.random(frame.shape) < 0.2)


def kinds(n_rows: int, seed: int) -> pd.DataFrame:
    """Return the table of `mixed` with columns of the other kinds.

    They are `share` in (0, 1), `rounded`, `heavy` (heavy-tailed), `grade` (ordered), `text`, `total` (number
    + skewed) and `dose` (only where yes).
    """
    g, frame = np.random.default_rng([seed, 1]), mixed(n_rows, seed)
    noise = g.normal(size=(4, n_rows))
    more = pd.DataFrame({"share": 1 / (1 + np.exp(noise[0] - frame["number"]))})
    more["rounded"] = noise[1].round()
    more["heavy"] = noise[0] + 0.3 * g.standard_t(2, size=n_rows)
    more["grade"] = pd.cut(noise[1] + noise[2], [-9, -1, 1, 9], labels=["low", "middle", "high"])
    more["text"] = np.array(["a", "b", "c"], dtype=object)[np.digitize(noise[0] - noise[2], [-1, 1])]
    more = more.mask(g.random(more.shape) < 0.2)
    more["total"] = frame["number"] + frame["skewed"]
    more["dose"] = np.where(frame["yes"].eq(True).fillna(False), np.abs(noise[3]) + 0.1, np.nan)
    return pd.concat([frame, more], axis=1)


def product(n_rows: int) -> pd.DataFrame:
    """Return a table with a product of two columns, one of which is incomplete."""
    generator = np.random.default_rng(1)
    a, b, e = generator.normal(size=(3, n_rows))
    return pd.DataFrame({"a": np.where(e > 0.5, np.nan, a), "b": b, "y": a * b + 0.3 * e})
