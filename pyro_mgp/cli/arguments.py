"""Commands and options of the command line, as tables from which the argument parser is built."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from pyro_mgp.cli.messages import PROGRAM


def at_least(least: int) -> Callable[[str], int]:
    """Return an argument type: an integer of at least `least` that fits 63 bits."""

    def integer(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text) or not least <= int(text) < 2**63:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return integer


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds from 0, got {text!r}")
    return number


_HELP = {
    "table": "CSV (.csv, .tsv, .csv.gz) or Parquet (.parquet) file; a folder of the latter for `fit` and "
    "`impute --engine dask`",
    "-o --out": "folder to create; must not exist yet",
    "-m": "number of completed tables (default: 20)",
    "--drop": "columns to leave out of the model, such as identifiers; they pass through as they are",
    "--missing": "text that marks a missing cell in a CSV besides an empty one, in any case "
    "(default: NA N/A #N/A <NA> NaN NULL)",
    "--seed": "same seed, same result (default: 0, or the seed of --model)",
    "--model": "folder that `pyro-mgp fit` wrote, or OUT/imputer of an earlier run: impute TABLE with it, "
    "without fitting again; columns that it was not fitted to pass through",
    "--format": "format of the completed tables (default: that of TABLE)",
    "--overwrite": "replace the output if an earlier run of this command wrote it",
    "--resume": "continue the same command after it was killed or interrupted, with the same result as "
    "without the interruption",
    "--checkpoint-every": "interval of checkpoints for --resume; longer where writing would take more than "
    "2%% of the time (default: 10)",
    "--quiet": "no progress bars and no summary; warnings and errors only",
    "--steps": "most training steps (default: 15 where a local GP of nearby rows is added, 40 in a joint "
    "density with columns of counts or levels, 20 elsewhere)",
    "--columns": "columns to learn to predict: those with missing cells in this table, or all; then the "
    "saved imputer can impute any column of new rows (default: incomplete)",
    "--survival": "columns of a survival time and of the event (else the time is censored): the model sees "
    "the cumulative hazard in place of the time",
    "--weights": "column of sampling weights, whose logarithms predict other columns; use it in analyses",
    "--groups": "columns of labels of groups, such as schools or patients: other columns have random effects "
    "of these",
    "--subject": "column of the subjects of a table of visits",
    "--time": "column of the times of visits: subjects have slopes of it, and their cells are the more "
    "alike, the closer their times; needs --subject",
    "--paper": "the method exactly as in the paper (arXiv:2204.04648); slower, 10000 steps by default",
    "--device": "where to compute; auto: a CUDA GPU, if there is one, from 10,000 rows on (default: auto)",
    "--distributed": "run as one of several processes started by torchrun, which share the rows of each "
    "minibatch",
    "--scratch": "folder of the temporary files of a fit to Parquet files (default: that of the system)",
    "--engine": "dask: TABLE and OUT/imputation_01, ... are folders of Parquet files, of which no process "
    "holds a whole one in memory; needs --model (default: pandas)",
    "--scheduler": "address of a Dask cluster whose workers can access TABLE and OUT by these paths "
    "(default: a cluster on this machine)",
    "--workers": "processes on this machine, of one thread each (default: one per core)",
    "--row-ids": "column of ids that are unique in the whole table: it passes through, distinguishes equal "
    "rows and saves the first of two passes over the table",
    "out": "folder that `pyro-mgp impute` wrote",
    "-o --page": "file to write (default: report.html in OUT)",
    "--folds": "hold out every observed cell once, in K folds: K fits",
    "--share": "hold out that share of observed cells: one fit",
    "--no-calibration": "hold out nothing: no fit",
    "--search": "search for a joint density in every fit, as in the first one: several times slower",
    "--jobs": "processes that fit folds side by side (default: one per processor)",
}
"""Help of each option or positional argument."""
_FLAG = {"action": "store_true"}
_SETTINGS: dict[str, dict[str, Any]] = {
    "table": {"metavar": "TABLE"},
    "-o --out": {"metavar": "OUT", "required": True},
    "-m": {"metavar": "M", "type": at_least(1), "default": 20},
    "--drop": {"metavar": "COLUMN", "nargs": "+", "action": "extend", "default": []},
    "--missing": {"metavar": "TEXT", "nargs": "+", "action": "extend"},
    "--seed": {"type": at_least(0)},
    "--model": {"metavar": "MODEL"},
    "--format": {"choices": ("csv", "tsv", "parquet")},
    "--checkpoint-every": {"metavar": "SECONDS", "type": _seconds, "default": 10.0},
    "--steps": {"metavar": "STEPS", "type": at_least(1)},
    "--survival": {"metavar": ("TIME", "EVENT"), "nargs": 2},
    "--weights": {"metavar": "COLUMN"},
    "--groups": {"metavar": "COLUMN", "nargs": "+", "action": "extend"},
    "--subject": {"metavar": "COLUMN"},
    "--time": {"metavar": "COLUMN"},
    "--columns": {"choices": ("incomplete", "all")},
    "--device": {"choices": ("auto", "cpu", "cuda"), "default": "auto"},
    "--scratch": {"metavar": "FOLDER"},
    "--engine": {"choices": ("pandas", "dask"), "default": "pandas"},
    "--scheduler": {"metavar": "ADDRESS"},
    "--workers": {"metavar": "N", "type": at_least(1)},
    "--row-ids": {"metavar": "COLUMN"},
    "out": {"metavar": "OUT"},
    "-o --page": {"metavar": "PAGE"},
    "--folds": {"metavar": "K", "type": at_least(2)},
    "--share": {"metavar": "PERCENT", "type": at_least(1)},
    "--jobs": {"metavar": "N", "type": at_least(1)},
}
"""Arguments of `add_argument` for each option that is not a flag."""
MODEL = ("steps", "columns", "paper", "survival", "weights", "groups", "subject", "time")
"""Names of the options on the model."""
_COMMON = (
    *("table", "-o --out", "--drop", "--missing", "--seed", "--overwrite", "--resume", "--checkpoint-every"),
    *("--quiet", "--device", *(f"--{name}" for name in MODEL)),
)
"""Options of both `fit` and `impute`."""


class _Command(NamedTuple):
    summary: str
    usage: str
    description: str
    epilog: str
    options: tuple[str, ...]
    title: str  # of a group of options; none for options that exclude each other
    group: tuple[str, ...]


_COMMANDS = {
    "fit": _Command(
        "fit an imputer to a table, for use in `impute --model`",
        "TABLE -o OUT [--seed SEED] [other options]",
        """\
Fit an imputer to a table and save it in the folder OUT, whole or not at all.
`pyro-mgp impute OTHER --model OUT -o FILLED` imputes other tables with it, as does
MGPImputer.load in Python. It may hold rows of the table: keep it as safe as the table.""",
        """\
A folder of Parquet files may be larger than memory: one column at a time is read, and the
encoded table lies in temporary files (19 bytes per cell).

examples:
  pyro-mgp fit survey.csv -o model --columns all
  pyro-mgp fit parts/ -o model --drop id --scratch /large/disk
  torchrun --nproc-per-node 2 -m pyro_mgp fit survey.csv -o model --distributed""",
        _COMMON,
        "large tables",
        ("--distributed", "--scratch"),
    ),
    "impute": _Command(
        "impute the missing cells of a table m times",
        "TABLE -o OUT [--model MODEL] [-m M] [--seed SEED] [other options]",
        """\
Impute the missing cells of a table m times by draws from their predictive distribution.
Run your analysis on every completed table and pool the results by Rubin's rules: the
intervals then include the uncertainty due to missing cells.

Columns may hold numbers, integers, true/false, dates and times (2024-12-31, 2024-12-31 23:59),
or text of at most 100 different values.""",
        """\
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
  pyro-mgp impute parts/ -o imputed -m 5 --model imputer --engine dask --row-ids id""",
        (*_COMMON, "-m", "--model", "--format"),
        "tables larger than memory",
        ("--engine", "--scheduler", "--workers", "--row-ids"),
    ),
    "report": _Command(
        "write an HTML page on the output of `impute`: missing cells, draws and their calibration",
        "OUT [-o PAGE] [--folds K | --share PERCENT | --no-calibration] [options]",
        """\
Write a self-contained HTML page about imputations: where cells are missing, observed and
imputed values side by side, which columns predict which, the settings, and whether the draws
are calibrated: observed cells are held out, imputed and compared with their values. That fits
the imputer again, five times by default (once for more than 5,000 rows), with the inputs of
links and the order of the columns that it chose. The page shows values of cells: keep it as safe
as the table.""",
        "",
        ("out", "-o --page", "--seed", "--search", "--jobs", "--overwrite", "--quiet"),
        "",
        ("--folds", "--share", "--no-calibration"),
    ),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with a subparser per command."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM, description="Multiple imputation of tables by a chain of sparse Gaussian processes."
    )
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name, own in _COMMANDS.items():
        command = commands.add_parser(name, help=own.summary, usage=f"{PROGRAM} {name} {own.usage}")
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.description, command.epilog = own.description, own.epilog
        exclusive = command.add_mutually_exclusive_group
        group = command.add_argument_group(own.title) if own.title else exclusive()
        for option in (*own.options, *own.group):
            place, settings = group if option in own.group else command, _SETTINGS.get(option, _FLAG)
            place.add_argument(*option.split(), help=_HELP[option], **settings)
    return whole
