"""The command line: `pyro-mgp impute TABLE -o OUT`, `pyro-mgp report OUT`.

Imports that take long stand inside the functions that need them: `--help` and most errors come at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mgp.column import Label
    from pyro_mgp.files import Source
    from pyro_mgp.imputations import Imputations
    from pyro_mgp.imputer import MGPImputer

PROGRAM = "pyro-mgp"

_FORMAT_VERSION = 1
_PAGE = "report.html"
_INTERRUPTED = 130

# ------------------------------------------------------------------------------------------ command line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; None takes those of the process.

    Returns:
        The exit status: 0, 2 for an error the user can mend, 130 if interrupted.

    Raises:
        SystemExit: After `--help` (0), or if the arguments make no sense (2).
    """
    args = parser().parse_args(argv)
    try:
        args.run(args)
    except KeyboardInterrupt:
        _say(f"{PROGRAM}: interrupted, nothing was written", sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, FloatingPointError, OSError) as error:
        _say(f"{PROGRAM}: error: {_sentence(error)}", sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, one subparser per command."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM, description="Multiple imputation of tables by a chain of sparse Gaussian processes."
    )
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_impute(commands)
    _add_page(commands)
    _add_bench(commands)
    return whole


def _add_impute(commands: Any) -> None:
    impute = commands.add_parser(
        "impute",
        help="fill the missing cells of a table m times",
        usage="pyro-mgp impute TABLE -o OUT [-m M] [--seed SEED] [other options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    impute.set_defaults(run=_impute)
    option = impute.add_argument
    option("table", metavar="TABLE", help="CSV (.csv, .tsv, .csv.gz) or Parquet (.parquet) file")
    option("-o", "--out", metavar="OUT", required=True, help="folder to make; must not exist yet")
    option("-m", metavar="M", type=_at_least(1), default=20, help="number of completed tables (default: 20)")
    option("--seed", type=_at_least(0), default=0, help="same seed, same imputations (default: 0)")
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
    option("--steps", metavar="STEPS", type=_at_least(1), help="most training steps (default: 40)")
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


def _add_page(commands: Any) -> None:
    page = commands.add_parser(
        "report",
        help="one HTML page about what `impute` wrote: holes, draws, and whether they may be trusted",
        usage="pyro-mgp report OUT [-o PAGE] [--folds K | --share PERCENT | --no-calibration] [options]",
        description="Write one HTML page, which needs nothing but itself, about imputations: what was "
        "imputed, where cells are missing, observed beside imputed values, which column informs which, how "
        "it was made, and whether the draws are calibrated: observed cells are hidden, imputed without them, "
        "and compared. That fits the imputer again, five times unless told otherwise (once for more than "
        "5,000 rows). The page shows values of cells: keep it as safe as the table.",
    )
    page.set_defaults(run=_report)
    option = page.add_argument
    option("out", metavar="OUT", help="folder that `pyro-mgp impute` wrote")
    option("-o", "--page", metavar="PAGE", help=f"file to write (default: {_PAGE} in OUT)")
    how = page.add_mutually_exclusive_group()
    how.add_argument(
        "--folds", metavar="K", type=_at_least(2), help="hide every observed cell once, in K parts: K fits"
    )
    how.add_argument(
        "--share", metavar="PERCENT", type=_at_least(1), help="hide that share of the observed cells: one fit"
    )
    how.add_argument("--no-calibration", action="store_true", help="hide nothing: the page is there at once")
    option("--seed", type=_at_least(0), default=0, help="of what is hidden (default: 0)")
    option("--overwrite", action="store_true", help="replace PAGE if this command wrote it")
    option("--quiet", action="store_true", help="no progress bars and no summary; errors only")


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure the package on this machine")
    kinds = bench.add_subparsers(title="measurements", metavar="WHAT", required=True)
    speed = kinds.add_parser(
        "speed",
        help="speed against plain code and the hardware",
        description="Measure speed on this machine. The measurements: step (training step and walk), latency "
        "(one new row), import, sizes (10,000 to 1,000,000 rows: minutes); and, on the public tables "
        "parkinson.csv and protein.csv.gz, training (natural gradients against Adam) and forests (against "
        "chained extra trees).",
    )
    speed.set_defaults(run=_bench_speed)
    names = ("step", "latency", "import", "sizes", "training", "forests")
    speed.add_argument("--only", nargs="+", choices=names, default=names, help="take some measurements only")
    speed.add_argument(
        "--data-dir", metavar="DIR", help="folder with the public tables (default: $PYRO_MGP_DATA)"
    )
    speed.add_argument(
        "--device", default="cpu", help="torch device for step, latency and sizes (default: cpu)"
    )
    speed.add_argument("-o", "--out", metavar="FILE", help="also write the figures to this CSV file")
    _add_tables(kinds)
    _add_report(kinds)
    _add_mixed(kinds)
    _add_coverage(kinds)


def _add_tables(kinds: Any) -> None:
    tables = kinds.add_parser(
        "tables",
        help="accuracy on the paper's tables, beside other imputation methods",
        description="Run the paper's experiments: public tables × rates of missing cells × splits × methods, "
        "each run in a process of its own. One line per run is added to the CSV file as soon as it is done; "
        "started again, the command goes on where it stopped. `pyro-mgp bench report` makes tables and "
        "figures of it.",
    )
    tables.set_defaults(run=_bench_tables)
    option = tables.add_argument
    option(
        "--profile", choices=("quick", "paper"), default="quick",
        help="quick: at most 10,000 rows per table; paper: all rows and the paper's settings, for a GPU "
        "(default: quick)",
    )  # fmt: skip
    several: dict[str, Any] = {"nargs": "+", "default": argparse.SUPPRESS}
    option(
        "--datasets", metavar="NAME", **several,
        help="protein, keggdirected, keggundirected, parkinson (default: all)",
    )  # fmt: skip
    option(
        "--rates", metavar="PERCENT", type=_at_least(1), **several,
        help="per cent of the cells to remove (default: 10 20 30 40)",
    )  # fmt: skip
    option(
        "--splits", metavar="NUMBER", type=_at_least(0), **several,
        help="numbers of the random splits into training and test rows (default: 0 1 2 3 4)",
    )  # fmt: skip
    option(
        "--methods", metavar="NAME", **several,
        help="mean, median, knn, mice, svgp, gain, mgp, extra_trees, miceforest, random_forests, dgp, "
        "mgp_paper (default: all)",
    )  # fmt: skip
    option(
        "--data-dir", metavar="DIR",
        help="folder with the public tables (default: $PYRO_MGP_DATA; without either they are fetched)",
    )  # fmt: skip
    option("-o", "--out", metavar="FILE", default="results.csv", help="CSV file (default: results.csv)")
    option("--jobs", metavar="N", type=_at_least(1), default=1, help="runs at a time (default: 1)")
    option("--threads", metavar="N", type=_at_least(1), default=1, help="threads of each run (default: 1)")
    option("--device", default="cpu", help="torch device of the methods that use one (default: cpu)")
    option("--retry-failed", action="store_true", help="do runs again that failed before")


def _add_report(kinds: Any) -> None:
    report = kinds.add_parser(
        "report",
        help="tables, ranks and figures from the results of `bench tables`",
        description="From the results of `pyro-mgp bench tables`: report.md with the RMSE beside the "
        "published one, the other scores, average ranks with Friedman's and Nemenyi's tests, and figures.",
    )
    report.set_defaults(run=_bench_report)
    report.add_argument("results", metavar="RESULTS", help="CSV file that `pyro-mgp bench tables` wrote")
    report.add_argument("-o", "--out", metavar="DIR", required=True, help="folder to write into")


def _add_mixed(kinds: Any) -> None:
    mixed = kinds.add_parser(
        "mixed",
        help="numbers, booleans and categories of a table, beside other imputation methods",
        description="Hide cells of every column of a complete table, impute them by several methods, and "
        "score each column: RMSE and CRPS of numbers, accuracy and log score of anything else.",
    )
    mixed.set_defaults(run=_bench_mixed)
    option = mixed.add_argument
    option("table", metavar="TABLE", help="CSV or Parquet file; rows with missing cells are left out")
    option("--rate", metavar="PERCENT", type=_at_least(1), default=20, help="cells to hide (default: 20)")
    option("--splits", metavar="N", type=_at_least(1), default=10, help="how many times (default: 10)")
    names = ("mgp", "one_hot", "random_forests", "miceforest")
    option("--methods", nargs="+", choices=names, default=names, help="some methods only")
    option("-o", "--out", metavar="FILE", help="also write every score to this CSV file")


def _add_coverage(kinds: Any) -> None:
    coverage = kinds.add_parser(
        "coverage",
        help="pooled intervals against the truth, over many tables drawn from known designs",
        description="Draw tables with holes from designs whose truth is known, impute them by several "
        "methods, pool a regression, and count how often the 95 % interval holds the truth. Goes on where "
        "FILE stops.",
    )
    coverage.set_defaults(run=_bench_coverage)
    option = coverage.add_argument
    option("-o", "--out", metavar="FILE", required=True, help="CSV file of all repetitions, added to")
    option("--designs", nargs="+", metavar="DESIGN", help="some designs only (default: all)")
    option(
        "--methods", nargs="+", metavar="METHOD", default=["mgp"],
        help="mgp, mgp_per_cell, complete_cases, iterative, miceforest, mice_norm, mice_pmm, mice_cart, "
        "mice_rf (the last four need R's mice; default: mgp)",
    )  # fmt: skip
    option(
        "--repetitions", metavar="N", type=_at_least(1), default=100, help="tables per design (default: 100)"
    )


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
  pyro-mgp impute survey.csv -o imputed -m 50 --seed 1 --drop id name --missing NA -999"""


def _at_least(least: int) -> Callable[[str], int]:
    """A type of argument: an integer from `least` up to what fits 63 bits."""

    def integer(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text) or not least <= int(text) < 2**63:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return integer


# ---------------------------------------------------------------------------------------------- messages


def _say(text: str, stream: Any = None) -> None:
    """Print, with a question mark for letters that the stream cannot show."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)


# What the package says to Python users, and what it means here.
_IN_THE_SHELL = (
    (r"frame\.drop\(columns=\['?(.+?)'?\]\)", r"--drop '\1'"),
    (r"frame\.dropna\(how='all'\)", "a filter before"),
    (r"set it missing: frame\.replace\(.+?\)", "leave it empty"),
    (r"overwrite=True", "--overwrite"),
    (r"write it as CSV", "try --format csv"),
)


def _in_the_shell(message: str) -> str:
    for pattern, replacement in _IN_THE_SHELL:
        message = re.sub(pattern, replacement, message)
    return " ".join(message.split())


def _sentence(error: BaseException) -> str:
    """The error in one line, in words of the command line."""
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f" {str(error.filename)!r}"
        return f"cannot read or write{where}: {error.strerror}"
    return _in_the_shell(str(error))


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show each of the package's own warnings once, as one line on stderr; leave others as they are."""
    from pyro_mgp.imputer import FitWarning
    from pyro_mgp.table import TableWarning

    seen: set[str] = set()
    with warnings.catch_warnings():
        for category in (FitWarning, TableWarning):
            warnings.simplefilter("always", category)
        show = warnings.showwarning

        def show_ours(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, (FitWarning, TableWarning)):
                show(message, category, *where, **more)
            elif str(message) not in seen:
                seen.add(str(message))
                _say(f"{PROGRAM}: warning: {_in_the_shell(str(message))}", sys.stderr)

        warnings.showwarning = show_ours
        yield


# ------------------------------------------------------------------------------------------ output folder


def check_out(out: Path, overwrite: bool) -> None:
    """Find out before the work whether the folder can be written after it.

    Raises:
        ValueError: If `out` exists and may not be replaced, or cannot be made.
    """
    where = repr(str(out))
    if out.exists() and not overwrite:
        raise ValueError(f"{where} exists already: choose another folder with -o, or pass --overwrite")
    if out.exists():
        strange = _strange(out)
        if strange is not None:
            raise ValueError(
                f"--overwrite replaces only what an earlier run wrote, but {where} {strange}: choose another "
                "folder with -o, or clear it yourself"
            )
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise ValueError(f"{where} cannot be made: {str(parent)!r} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"{where} cannot be made: no permission to write into {str(parent)!r}")


def _strange(out: Path) -> str | None:
    """What keeps us from replacing `out`, if anything."""
    from pyro_mgp import _storage

    if not out.is_dir():
        return "is a file"
    found = {entry.name for entry in out.iterdir()}
    if not found:
        return None
    try:
        known = set(_storage.read_header(out, "impute", _FORMAT_VERSION)["files"])
    except (ValueError, KeyError, TypeError):
        return "was not written by this program"
    others = sorted(found - known - {_PAGE})
    return f"also holds {others[0]!r}" if others else None


# ------------------------------------------------------------------------------------------------ impute


@dataclass(frozen=True)
class _Timing:
    """Wall time in seconds."""

    fit: float
    impute: float


def _impute(args: argparse.Namespace) -> None:
    """`pyro-mgp impute`: check, read, fit, draw, write, tell."""
    from pyro_mgp import files, summary

    table, out = Path(args.table), Path(args.out)
    check_out(out, args.overwrite)
    source = files.read_table(table, args.missing or files.MISSING)
    modelled = source.frame.drop(columns=_labels(source.frame, args.drop))
    for note in _notes(modelled):
        _say(f"{PROGRAM}: note: {note}", sys.stderr)
    with _one_line_warnings():
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
        _say("\n".join(lines))


def _report(args: argparse.Namespace) -> None:
    """`pyro-mgp report`: read, hide and impute again, write, tell."""
    from pyro_mgp import _storage, report
    from pyro_mgp.imputations import Imputations
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.page import check_replaceable

    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("the report's pictures need matplotlib: pip install 'pyro_mgp[plots]'")
    out = Path(args.out)
    path = out / _PAGE if args.page is None else Path(args.page)
    if not (out / _storage.HEADER).is_file():
        raise ValueError(f"{args.out!r} was not written by `{PROGRAM} impute`: it holds no {_storage.HEADER}")
    run = _storage.read_header(out, "impute", _FORMAT_VERSION)["run"]
    check_replaceable(path, args.overwrite)
    if args.share is not None and args.share > 50:
        raise ValueError(f"--share must be at most 50 per cent, got {args.share}")
    draws, imputer = Imputations.load(out / "draws"), MGPImputer.load(out / "imputer")
    imputer.progress = not args.quiet
    left_out = {"Columns left out": _names(run["dropped"])} if run["dropped"] else {}
    with _one_line_warnings():
        report.write_report(
            draws,
            path,
            imputer=imputer,
            calibration=not args.no_calibration,
            folds=args.folds,
            share=None if args.share is None else args.share / 100,
            name=run["table"],
            settings=left_out,
            random_state=args.seed,
            overwrite=args.overwrite,
            progress=not args.quiet,
        )
    if not args.quiet:
        _say(f"written     {path}")


def _bench_speed(args: argparse.Namespace) -> None:
    """`pyro-mgp bench speed`: measure, show, write."""
    from pyro_mgp.bench import speed

    rows = []
    for row in speed.run(args.only, args.data_dir, args.device):
        _say(f"{row.what:<52} {row.measured:8.2f} {row.unit:<6} {row.asked:<17} {row.detail}")
        rows.append(row)
    if args.out is not None:
        speed.table(rows).to_csv(args.out, index=False)


def _bench_tables(args: argparse.Namespace) -> None:
    """`pyro-mgp bench tables`: run what is not done yet."""
    from pyro_mgp.bench import tables
    from pyro_mgp.bench.cell import Place

    chosen = {name: value for name, value in vars(args).items() if name in _CHOICES}
    runs = tables.plan(args.profile, **chosen)
    place = Place(args.data_dir, args.device, args.threads)
    try:
        failed = tables.run(
            runs,
            Path(args.out),
            place,
            jobs=args.jobs,
            retry_failed=args.retry_failed,
            tell=lambda line: _say(f"{PROGRAM}: {line}", sys.stderr),
        )
    except KeyboardInterrupt:
        _say(f"{PROGRAM}: interrupted; the same command goes on from what {args.out} holds", sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
    ended = f"{_count(len(runs) - failed, 'run')} in {args.out}"
    _say(ended if not failed else f"{ended}, and {failed} that failed: --retry-failed does them again")


def _bench_mixed(args: argparse.Namespace) -> None:
    """`pyro-mgp bench mixed`: hide, impute, score, show, write."""
    import pandas as pd
    from tqdm import tqdm

    from pyro_mgp import files
    from pyro_mgp.bench import mixed

    table = files.read_table(Path(args.table)).frame.dropna().reset_index(drop=True)
    runs = mixed.run(table, args.methods, range(args.splits), args.rate / 100)
    n_rows = args.splits * len(args.methods) * len(table.columns)
    scores = pd.DataFrame(tqdm(runs, total=n_rows, unit="column", disable=None, leave=False))
    if args.out is not None:
        scores.to_csv(args.out, index=False, float_format="%.4f")
    means = scores.groupby(["column", "method"], sort=False).mean(numeric_only=True)
    _say(means.drop(columns=["split", "cells"]).round(4).to_string(na_rep=""))


def _bench_coverage(args: argparse.Namespace) -> None:
    """`pyro-mgp bench coverage`: draw, impute, pool, count."""
    import pandas as pd
    from tqdm import tqdm

    from pyro_mgp.bench import coverage

    out = Path(args.out)
    done = pd.read_csv(out) if out.exists() else None
    tasks = coverage.tasks(args.designs or list(coverage.DESIGNS), args.methods, args.repetitions, done)
    for row in tqdm(coverage.run(tasks), total=len(tasks), unit="table", disable=None, leave=False):
        pd.DataFrame([row]).to_csv(out, mode="a", header=not out.exists(), index=False)
    _say(coverage.summary(pd.read_csv(out)).round(3).to_string(index=False))


_CHOICES = ("datasets", "rates", "splits", "methods")


def _bench_report(args: argparse.Namespace) -> None:
    """`pyro-mgp bench report`: tables and figures."""
    from pyro_mgp.bench import report

    for path in report.write(args.results, Path(args.out)):
        _say(str(path))


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
        _storage.write_header(folder, "impute", _FORMAT_VERSION, {"run": run, "files": written})
    return names


def _about_the_table(table: str, draws: Imputations, passed: pd.DataFrame) -> list[str]:
    from pyro_mgp.summary import percent
    from pyro_mgp.table import missing

    n_rows, n_columns = draws.frame.shape
    n_missing = sum(values.shape[1] for values in draws.values.values())
    holes = "no cell is missing"
    if n_missing:
        share = percent(n_missing / (n_rows * n_columns))
        holes = f"{_count(n_missing, 'missing cell')} ({share}) in {_count(len(draws.values), 'column')}"
    lines = [f"{table}: {_count(n_rows, 'row')}, {_count(n_columns, 'column')}; {holes}"]
    if passed.shape[1]:
        left = int(missing(passed).sum())
        still = f" ({_count(left, 'missing cell')} left missing)" if left else ""
        lines += _wrapped("left out", f"{_names(passed.columns)}{still}")
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
        *_wrapped("chain", _names(imputer.order_)),
        f"fitted      in {_seconds(timing.fit)}, {_count(len(history.loss), 'step')}, {end}",
        f"imputed     in {_seconds(timing.impute)}, {_count(draws.m, 'table')}",
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


def _wrapped(title: str, text: str) -> list[str]:
    from pyro_mgp.summary import WIDTH

    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{title:<12}", subsequent_indent=" " * 12, break_on_hyphens=False
    )


def _names(labels: Iterable[Label], most: int = 12) -> str:
    from pyro_mgp.summary import NAME_WIDTH, shortened

    names = [shortened(str(label), 2 * NAME_WIDTH) for label in labels]
    more = [f"... and {len(names) - most} more"] if len(names) > most else []
    return ", ".join(names[:most] + more)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
