"""`pyro-mgp impute TABLE -o OUT`: read, fit, draw, write, tell."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_mgp.cli import partitions
from pyro_mgp.cli.arguments import at_least
from pyro_mgp.cli.messages import PROGRAM, count, duration, listed, one_line_warnings, say, wrapped
from pyro_mgp.cli.output import FORMAT_VERSION, check_out

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mgp.column import Label
    from pyro_mgp.files import Source
    from pyro_mgp.imputations import Imputations
    from pyro_mgp.imputer import MGPImputer

_DESCRIPTION = """\
Fill the missing cells of a table m times, each time with other values that could have
stood there. Run your analysis on every completed table and pool the results by Rubin's
rules: the intervals then tell how much is unknown because cells are missing.

Columns may hold numbers, integers, true/false, dates and times (2024-12-31, 2024-12-31 23:59),
or text of at most 100 different values."""

_EPILOG = """\
written into OUT, whole or not at all:
  imputation_01.csv ...  the m completed tables; observed cells, rows and columns as they came
  cells.csv              per missing cell: mean, sd, quantiles, most frequent value; rows count from 0
  summary.csv            per incomplete column (and category): observed against imputed
  draws/                 all draws, for Python: Imputations.load("OUT/draws")
  imputer/               the fitted model, to fill new rows: MGPImputer.load("OUT/imputer")
  header.json            what was run; tells --overwrite that the folder may be replaced

A first column without a name in the header is taken as row labels, not as data.

examples:
  pyro-mgp impute penguins.csv -o imputed
  pyro-mgp impute survey.csv -o imputed -m 50 --seed 1 --drop id name --missing NA -999
  pyro-mgp impute parts/ -o imputed -m 5 --model imputer --engine dask --row-ids id"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    impute = commands.add_parser(
        "impute",
        help="fill the missing cells of a table m times",
        usage="pyro-mgp impute TABLE -o OUT [-m M] [--seed SEED] [other options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    impute.set_defaults(run=run)
    option = impute.add_argument
    option("table", metavar="TABLE", help="CSV (.csv, .tsv, .csv.gz) or Parquet (.parquet) file")
    option("-o", "--out", metavar="OUT", required=True, help="folder to make; must not exist yet")
    option("-m", metavar="M", type=at_least(1), default=20, help="number of completed tables (default: 20)")
    option("--seed", type=at_least(0), default=0, help="same seed, same imputations (default: 0)")
    option(
        "--drop", metavar="COLUMN", nargs="+", action="extend", default=[],
        help="columns to leave out of the model, such as identifiers; they pass through as they are",
    )  # fmt: skip
    option(
        "--missing", metavar="TEXT", nargs="+", action="extend",
        help="what marks a missing cell in a CSV besides an empty one, in upper or lower case "
        "(default: NA N/A #N/A <NA> NaN NULL)",
    )  # fmt: skip
    option(
        "--format", choices=("csv", "tsv", "parquet"),
        help="format of the completed tables (default: that of TABLE)",
    )  # fmt: skip
    option("--overwrite", action="store_true", help="replace OUT if an earlier run of this command wrote it")
    option("--quiet", action="store_true", help="no progress bars and no summary; warnings and errors only")
    model = impute.add_argument_group("model")
    option = model.add_argument
    option("--steps", metavar="STEPS", type=at_least(1), help="most training steps (default: 40)")
    option(
        "--columns", choices=("incomplete", "all"), default="incomplete",
        help="columns to learn to predict: those with missing cells here, or all of them, so that the saved "
        "imputer can fill new rows with holes elsewhere (default: incomplete)",
    )  # fmt: skip
    option(
        "--paper", action="store_true",
        help="the method exactly as in the paper (arXiv:2204.04648); slower, 10000 steps by default",
    )  # fmt: skip
    option(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="where to compute; auto takes a CUDA GPU if there is one (default: auto)",
    )  # fmt: skip
    option("--model", metavar="IMPUTER", help="folder of a fitted imputer, for --engine dask")
    partitions.add_options(impute)


@dataclass(frozen=True)
class _Timing:
    """Wall time in seconds."""

    fit: float
    impute: float


def run(args: argparse.Namespace) -> None:
    """`pyro-mgp impute`: check, read, fit, draw, write, tell."""
    if args.engine == "dask":
        partitions.run(args)
        return
    from pyro_mgp import files, summary

    table, out = Path(args.table), Path(args.out)
    check_out(out, args.overwrite)
    source = files.read_table(table, args.missing or files.MISSING)
    modelled = source.frame.drop(columns=_labels(source.frame, args.drop))
    for note in _notes(modelled):
        say(f"{PROGRAM}: note: {note}", sys.stderr)
    with one_line_warnings():
        imputer, draws, timing = _fit_and_draw(modelled, args)
    compared = summary.summarise(draws)
    names = _write(out, source, draws, imputer, compared, args)
    if not args.quiet:
        passed = source.frame[_labels(source.frame, args.drop)]
        lines = [
            *_about_the_table(args.table, draws, passed),
            *_about_the_cells(draws, compared),
            *_about_the_work(imputer, draws, timing),
            *_about_the_files(args.out, names),
        ]
        say("\n".join(lines))


def _notes(frame: pd.DataFrame) -> Iterator[str]:
    """What a newcomer may not have meant."""
    from pyro_mgp import files

    counter = files.row_counter(frame)
    if counter is not None:
        yield (
            f"column {counter!r} counts the rows; if it means nothing else, leave it out of the model with "
            f"--drop {counter}"
        )
    for label, cell in files.read_as_text(frame):
        yield (
            f"column {label!r} is read as text because of cells such as {cell!r}; if that marks a missing "
            f"cell, pass --missing '{cell}', or leave the column out with --drop {label}"
        )


def _labels(frame: pd.DataFrame, names: Sequence[str]) -> list[Label]:
    """The labels that columns named on the command line have in the table."""
    labels = {str(label): label for label in frame.columns}
    for name in names:
        if name not in labels:
            some = ", ".join(list(labels)[:10]) + (", ..." if len(labels) > 10 else "")
            raise ValueError(f"--drop: there is no column {name!r}; the table has {some}")
    return [labels[name] for name in dict.fromkeys(names)]


def _fit_and_draw(frame: pd.DataFrame, args: argparse.Namespace) -> tuple[MGPImputer, Imputations, _Timing]:
    import torch

    from pyro_mgp.imputer import MGPImputer

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA GPU here; use --device cpu or auto")
    settings = {
        "columns": args.columns,
        "device": args.device,
        "random_state": args.seed,
        "progress": not args.quiet,
    }
    if args.steps is not None:
        settings["max_steps"] = args.steps
    imputer = (MGPImputer.paper if args.paper else MGPImputer)(**settings)
    start = time.perf_counter()
    imputer.fit(frame)
    fitted = time.perf_counter()
    draws = imputer.impute(m=args.m)
    return imputer, draws, _Timing(fitted - start, time.perf_counter() - fitted)


def _write(
    out: Path,
    source: Source,
    draws: Imputations,
    imputer: MGPImputer,
    compared: pd.DataFrame,
    args: argparse.Namespace,
) -> list[str]:
    """Write everything, whole or not at all; returns the names of the completed tables."""
    from pyro_mgp import _storage, files
    from pyro_mgp.imputations import write_table

    with _storage.atomic_folder(out, overwrite=args.overwrite) as folder:
        names = files.write_tables(folder, source, draws, args.format or source.format)
        write_table(folder / "cells.csv", draws.cells(), "csv")
        write_table(folder / "summary.csv", compared, "csv")
        draws.save(folder / "draws")
        imputer.save(folder / "imputer")
        run = {
            "table": Path(args.table).name,
            "m": args.m,
            "seed": args.seed,
            "columns": args.columns,
            "paper": args.paper,
            "steps": args.steps,
            "dropped": args.drop,
        }
        written = sorted([_storage.HEADER, *(entry.name for entry in folder.iterdir())])
        _storage.write_header(folder, "impute", FORMAT_VERSION, {"run": run, "files": written})
    return names


def _about_the_table(table: str, draws: Imputations, passed: pd.DataFrame) -> list[str]:
    from pyro_mgp.summary import percent
    from pyro_mgp.table import missing

    n_rows, n_columns = draws.frame.shape
    n_missing = sum(values.shape[1] for values in draws.values.values())
    holes = "no cell is missing"
    if n_missing:
        share = percent(n_missing / (n_rows * n_columns))
        holes = f"{count(n_missing, 'missing cell')} ({share}) in {count(len(draws.values), 'column')}"
    lines = [f"{table}: {count(n_rows, 'row')}, {count(n_columns, 'column')}; {holes}"]
    if passed.shape[1]:
        left = int(missing(passed).sum())
        still = f" ({count(left, 'missing cell')} left missing)" if left else ""
        lines += wrapped("left out", f"{listed(passed.columns)}{still}")
    return lines


def _about_the_cells(draws: Imputations, compared: pd.DataFrame) -> list[str]:
    from pyro_mgp.summary import format_summary

    if not draws.values:
        return ["", "Nothing to impute: the completed tables equal the table as it came."]
    draws_of = "the draw" if draws.m == 1 else f"all {draws.m} draws"
    return ["", *format_summary(compared), f"(mean ± sd, or shares; imputed: over {draws_of} of each cell)"]


def _about_the_work(imputer: MGPImputer, draws: Imputations, timing: _Timing) -> list[str]:
    history = imputer.history_
    if not imputer.order_:
        return [""]
    end = "stopped when nothing improved" if history.converged else "the most that --steps allows"
    return [
        "",
        *wrapped("chain", listed(imputer.order_)),
        f"fitted      in {duration(timing.fit)}, {count(len(history.loss), 'step')}, {end}",
        f"imputed     in {duration(timing.impute)}, {count(draws.m, 'table')}",
    ]


def _about_the_files(out: str, names: Sequence[str]) -> list[str]:
    tables = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return [
        f"written     to {out}: {tables},",
        "            cells.csv, summary.csv, draws/, imputer/",
        "",
        "Next, in Python:",
        "    from pyro_mgp import Imputations, MGPImputer",
        f"    draws = Imputations.load({str(Path(out) / 'draws')!r})  # draws[0], draws.cells(), ...",
        f"    imputer = MGPImputer.load({str(Path(out) / 'imputer')!r})  # imputer.impute(new_rows)",
    ]
