"""Check that a change of the code changes no result.

`write` imputes tables of every kind by every engine with fixed seeds and keeps the results in a file.
`compare` prints the largest difference between two such files, one written before and one after the change.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import command
from benchmarks.generated import kinds, numbers, product
from benchmarks.paper import data
from pyro_mgp import ColumnSpec, Engine, MGPImputer

_PENGUINS = Path(__file__).parents[1] / "examples" / "data" / "penguins.csv"
_SPECS = {
    "share": ColumnSpec(lower=0, upper=1),
    "heavy": ColumnSpec(kind="heavy-tailed"),
    "count": ColumnSpec(kind="count"),
    "total": ColumnSpec(derived="number + skewed"),
    "dose": ColumnSpec(only_if="yes"),
}


def results(imputer: MGPImputer, frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield draws, means, shifted draws, and draws after saving and loading of a fitted imputer."""
    incomplete = [str(label) for label in frame.select_dtypes("float") if frame[label].isna().any()]
    yield from imputer.impute(frame, m=2)
    yield pd.DataFrame(imputer.transform(frame))
    yield from imputer.impute(frame, m=1, delta={incomplete[0]: 0.5})
    with tempfile.TemporaryDirectory() as folder:
        imputer.save(f"{folder}/imputer")
        yield from MGPImputer.load(f"{folder}/imputer").impute(frame, m=1)


def _fit(frame: pd.DataFrame, *, n_new: int = 300, **settings: Any) -> Iterator[pd.DataFrame]:
    imputer = MGPImputer(random_state=0, progress=False, **settings).fit(frame)
    return results(imputer, frame[:n_new])


def _paper() -> Iterator[pd.DataFrame]:
    frame = numbers(300, 6)
    return results(MGPImputer.paper(random_state=0, max_steps=60, progress=False).fit(frame), frame)


def _target() -> Iterator[pd.DataFrame]:
    frame = numbers(400, 6).dropna(subset="c5")
    target = frame.pop("c5")
    imputer = MGPImputer(random_state=0, progress=False).fit(frame, target)
    yield from results(imputer, frame)
    yield imputer.predict(frame)


def _parquet() -> Iterator[pd.DataFrame]:
    frame = numbers(2500, 6)
    with tempfile.TemporaryDirectory() as folder:
        frame.to_parquet(f"{folder}/table.parquet")
        imputer = MGPImputer(random_state=0, progress=False).fit_parquet(f"{folder}/table.parquet")
        yield from results(imputer, frame[:300])


def _public(name: str, folder: Path) -> Iterator[pd.DataFrame]:
    frame = data.load(name, folder, rows=2500)
    return _fit(frame.mask(np.random.default_rng(0).random(frame.shape) < 0.2))


Case = Callable[[], Iterator[pd.DataFrame]]
"""Function that fits an imputer and yields its results."""

CASES: dict[str, Case] = {
    "penguins": lambda: _fit(pd.read_csv(_PENGUINS)),
    "kinds": lambda: _fit(kinds(400, 0), specs=_SPECS),
    "all columns": lambda: _fit(kinds(150, 1), specs=_SPECS, columns="all"),
    "product": lambda: _fit(product(300)),
    "independent draws": lambda: _fit(product(200), engine=Engine(joint_draws=False)),
    "numbers": lambda: _fit(numbers(2500, 6)),
    "mixed precision": lambda: _fit(numbers(1200, 6), precision="mixed"),
    "given order": lambda: _fit(
        numbers(300, 6), n_neighbors=0, warp=False, order=[f"c{d}" for d in (5, 1, 3, 0, 2, 4)]
    ),
    "parquet": _parquet,
    "target": _target,
    "paper": _paper,
}
"""Cases on generated tables and the penguins, by name."""


def write(file: Path, cases: Mapping[str, Case] = CASES) -> None:
    """Write the results of cases to a NumPy archive, an array per case, result and column."""
    arrays: dict[str, NDArray[np.float64]] = {}
    for name, case in cases.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the tables
            for j, table in enumerate(case()):
                arrays |= {f"{name}/{j}/{label}": _numbers(table[label]) for label in table}
    with file.open("wb") as opened:
        np.savez_compressed(opened, **arrays)  # type: ignore[arg-type]


def _numbers(column: pd.Series[Any]) -> NDArray[np.float64]:
    if column.dtype.kind == "M":
        return column.to_numpy(np.int64).astype(np.float64)
    try:
        return column.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        return pd.Categorical(column.astype(str)).codes.astype(np.float64)


def compare(first: Path, second: Path) -> dict[str, float]:
    """Return the largest difference between two files for each case, in standard deviations of the column.

    It is infinite where one file lacks an array, or where arrays differ in shape or in missing cells.
    """
    largest: dict[str, float] = {}
    with np.load(first) as a, np.load(second) as b:
        for key in {*a, *b}:
            case = key.partition("/")[0]
            difference = _difference(a[key], b[key]) if key in a and key in b else np.inf
            largest[case] = max(largest.get(case, 0.0), difference)
    return dict(sorted(largest.items()))


def _difference(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    if x.shape != y.shape or (np.isnan(x) != np.isnan(y)).any():
        return np.inf
    off = np.abs(x - y)[~np.isnan(x)]
    return float(off.max() / (np.nanstd(x) or 1.0)) if off.size else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Write or compare results; return the exit status, 1 if a difference exceeds the tolerance."""
    parser = command.new_parser("draws", __doc__)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    writing = actions.add_parser("write", help="impute all tables and write the results")
    writing.add_argument("file", metavar="FILE", type=Path, help="NPZ file to write")
    command.add_data_dir(writing, "$PYRO_MGP_DATA; without either the public tables are left out")
    writing.set_defaults(run=_write)
    comparing = actions.add_parser("compare", help="print the largest difference between two files")
    for name in "AB":
        comparing.add_argument(name, type=Path, help="file that `write` wrote")
    comparing.add_argument(
        "--tolerance", metavar="SD", type=float, default=1e-9,
        help="largest difference allowed, in standard deviations (default: 1e-9)",
    )  # fmt: skip
    comparing.set_defaults(run=_compare)
    return command.execute(parser, argv, lambda args: args.run(args))


def _write(args: argparse.Namespace) -> None:
    folder = data.folder(args.data_dir)
    public = {} if folder is None else {name: partial(_public, name, folder) for name in data.DATASETS}
    write(args.file, CASES | public)


def _compare(args: argparse.Namespace) -> int:
    largest = compare(args.A, args.B)
    for case, difference in largest.items():
        command.say(f"{case:<20} {difference:.2g}")
    return int(max(largest.values(), default=0.0) > args.tolerance)


if __name__ == "__main__":
    sys.exit(main())
