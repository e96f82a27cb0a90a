"""`pyro-mgp impute TABLE -o OUT`: impute the missing cells of a table m times."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_mgp.cli import arguments, fit, output, partitions, work
from pyro_mgp.cli.arguments import Given, at_least
from pyro_mgp.cli.messages import count, duration, listed, one_line_warnings, say, wrapped

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mgp._support.signals import Interruption
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.results.imputations import Imputations

_DESCRIPTION = """\
Impute the missing cells of a table m times by draws from their predictive distribution.
Run your analysis on every completed table and pool the results by Rubin's rules: the
intervals then include the uncertainty due to missing cells.

Columns may hold numbers, integers, true/false, dates and times (2024-12-31, 2024-12-31 23:59),
or text of at most 100 different values."""

_EPILOG = """\
written into OUT, whole or not at all:
  imputation_01.csv ...  the m completed tables; observed cells, rows and columns unchanged
  cells.csv              per missing cell: mean, sd, quantiles, most frequent value; rows count from 0
  summary.csv            per incomplete column (and category): observed against imputed
  draws/                 all draws, for Python: Imputations.load("OUT/draws")
  imputer/               the fitted model, to fill new rows: MGPImputer.load("OUT/imputer")
  header.json, run.json  options of the run; needed by --overwrite and --resume

A first column without a name in the header holds row labels, not data.

examples:
  pyro-mgp impute penguins.csv -o imputed
  pyro-mgp impute survey.csv -o imputed -m 50 --seed 1 --drop id name --missing NA -999
  pyro-mgp impute survey.csv -o imputed --resume
  pyro-mgp fit survey.csv -o model --columns all
  pyro-mgp impute later.csv --model model -o later
  pyro-mgp impute parts/ -o imputed -m 5 --model imputer --engine dask --row-ids id"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    impute = commands.add_parser(
        "impute",
        help="impute the missing cells of a table m times",
        usage="pyro-mgp impute TABLE -o OUT [--model MODEL] [-m M] [--seed SEED] [other options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    impute.set_defaults(run=run)
    arguments.add_table(
        impute,
        "CSV (.csv, .tsv, .csv.gz) or Parquet (.parquet) file; with --engine dask a folder of the latter",
    )
    option = impute.add_argument
    option("-o", "--out", metavar="OUT", required=True, help="folder to create; must not exist yet")
    option("-m", metavar="M", type=at_least(1), default=20, help="number of completed tables (default: 20)")
    option(
        "--model", metavar="MODEL",
        help="folder that `pyro-mgp fit` wrote, or OUT/imputer of an earlier run: impute TABLE with it, "
        "without fitting again; columns that it was not fitted to pass through",
    )  # fmt: skip
    option(
        "--seed", type=at_least(0),
        help="same seed, same imputations (default: 0, or the seed of the model)",
    )  # fmt: skip
    option(
        "--format", choices=("csv", "tsv", "parquet"),
        help="format of the completed tables (default: that of TABLE)",
    )  # fmt: skip
    arguments.add_run(impute)
    arguments.add_model(impute)
    arguments.add_device(impute)
    partitions.add_options(impute)


@dataclass(frozen=True)
class _Timing:
    """Wall times in seconds."""

    fit: float
    impute: float


def run(args: argparse.Namespace) -> None:
    """Run `pyro-mgp impute`."""
    from pyro_mgp._support.signals import stoppable

    if args.engine == "dask":
        partitions.run(args)
        return

    with stoppable() as interruption:
        _run(args, interruption)


def _run(args: argparse.Namespace, interruption: Interruption) -> None:
    """Fit or load an imputer, draw imputations and write them."""
    from pyro_mgp.results import summary

    out = Path(args.out)
    _check_model(args)
    if args.resume and work.is_done(out, _identity(args)):
        say(f"{args.out} is complete: there is nothing to resume")
        return
    output.check_out(out, args.overwrite, "impute")
    if Path(args.table).is_dir():
        raise ValueError(
            f"{args.table!r} is a folder: one of Parquet files is imputed with --engine dask --model MODEL"
        )
    given = arguments.read(args)
    _check_memory(given, args.m)
    with work.work_folder(out, _identity(args), resume=args.resume) as folder, one_line_warnings():
        imputer, given, draws, timing = _fit_and_draw(folder, given, args, interruption)
        compared = summary.summarise(draws)
        names = _write(folder, given, draws, compared, args)
        work.publish(folder, out, overwrite=args.overwrite)
    if not args.quiet:
        lines = [
            *_about_the_table(args.table, draws, given.source.frame[given.passed]),
            *_about_the_cells(draws, compared),
            *_about_the_work(imputer, draws, timing, args.model),
            *_about_the_files(args.out, names),
        ]
        say("\n".join(lines))


def _check_memory(given: Given, m: int) -> None:
    """Refuse more draws than fit into memory, before the fit."""
    from pyro_mgp._support import memory
    from pyro_mgp.data.table import missing

    needed = memory.of_impute(int(missing(given.modelled).sum()), m)
    advice = "take a smaller -m, or impute_to_parquet in Python, which needs memory for the table only"
    memory.check(needed, f"drawing {m} tables", advice)


def _check_model(args: argparse.Namespace) -> None:
    """Check that --model comes without options on fitting."""
    if args.model is None:
        return
    for name in fit.OPTIONS:
        if getattr(args, name):
            raise ValueError(f"--{name} has no effect on --model, which is fitted: leave one of them out")


def _identity(args: argparse.Namespace) -> dict[str, Any]:
    """Return the identity of the run, with fingerprints of the files of --model."""
    about = {"command": "impute", **arguments.identity(args, "m", "format", *fit.OPTIONS)}
    if args.model is None:
        return about
    files = {name: arguments.fingerprint(Path(args.model) / name) for name in fit.MODEL_FILES}
    return about | {f"model's {name}": content for name, content in files.items()}


def _fit_and_draw(
    folder: Path, given: Given, args: argparse.Namespace, interruption: Interruption
) -> tuple[MGPImputer, Given, Imputations, _Timing]:
    """Fit and draw, as far as the work folder does not hold the results yet."""
    start = time.perf_counter()
    if args.model is None:
        imputer = fit.fitted(folder, fit.to_frame(given.modelled), args, interruption)
    else:
        imputer, given = _loaded(folder, given, args)
    fitted = time.perf_counter()
    draws = _drawn(folder, imputer, given.modelled, args, interruption)
    return imputer, given, draws, _Timing(fitted - start, time.perf_counter() - fitted)


def _loaded(folder: Path, given: Given, args: argparse.Namespace) -> tuple[MGPImputer, Given]:
    """Return the fitted imputer, and the table with columns outside the model passing through."""
    from pyro_mgp.imputer import MGPImputer

    arguments.check_device(args)
    imputer = MGPImputer.load(args.model, device=args.device)
    imputer.progress = not args.quiet
    if not (folder / output.IMPUTER).exists():
        imputer.save(folder / output.IMPUTER)
    modelled = {column.name for column in imputer.codec_.columns}
    frame, passed = given.source.frame, given.passed
    passed = passed + [label for label in frame.columns if label not in {*passed, *modelled}]
    return imputer, dataclasses.replace(given, passed=passed)


def _drawn(
    folder: Path,
    imputer: MGPImputer,
    frame: pd.DataFrame,
    args: argparse.Namespace,
    interruption: Interruption,
) -> Imputations:
    """Return the draws of a work folder; if there are none yet, draw them and save them there."""
    from pyro_mgp.results.imputations import Imputations
    from pyro_mgp.storage.checkpoint import Checkpoint

    saved = folder / output.DRAWS
    if saved.exists():
        return Imputations.load(saved)
    checkpoint = Checkpoint(folder / work.DRAWING, args.checkpoint_every, interruption)
    draws = imputer.impute(frame, m=args.m, random_state=args.seed, checkpoint=checkpoint)
    draws.save(saved)
    checkpoint.discard()
    return draws


def _write(
    folder: Path, given: Given, draws: Imputations, compared: pd.DataFrame, args: argparse.Namespace
) -> list[str]:
    """Write tables, summaries and header, and return the names of the completed tables."""
    from pyro_mgp.results import files
    from pyro_mgp.results.table_files import write_table
    from pyro_mgp.storage.header import HEADER, write_header

    names = files.write_tables(folder, given.source, draws, args.format or given.source.format)
    write_table(folder / "cells.csv", draws.cells(), "csv")
    write_table(folder / "summary.csv", compared, "csv")
    run = {
        "table": Path(args.table).name,
        "m": args.m,
        "seed": args.seed or 0,
        "columns": args.columns or "incomplete",
        "paper": args.paper,
        "steps": args.steps,
        "dropped": [str(label) for label in given.passed],
    }
    written = sorted({HEADER, *(entry.name for entry in folder.iterdir())} - {work.LOCK})
    write_header(folder, "impute", output.FORMAT_VERSION, {"run": run, "files": written})
    return names


def _about_the_table(table: str, draws: Imputations, passed: pd.DataFrame) -> list[str]:
    from pyro_mgp.data.table import missing
    from pyro_mgp.results.summary import percent

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
    from pyro_mgp.results.summary import format_summary

    if not draws.values:
        return ["", "Nothing to impute: the completed tables equal the input table."]
    draws_of = "the draw" if draws.m == 1 else f"all {draws.m} draws"
    return ["", *format_summary(compared), f"(mean ± sd, or shares; imputed: over {draws_of} of each cell)"]


def _about_the_work(imputer: MGPImputer, draws: Imputations, timing: _Timing, model: str | None) -> list[str]:
    if not imputer.order_:
        return [""]
    how = fit.about(imputer, timing.fit)
    if model is not None:
        how = [*how[:-1], f"model       {model}"]
    return ["", *how, f"imputed     in {duration(timing.impute)}, {count(draws.m, 'table')}"]


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
