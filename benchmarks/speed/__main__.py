"""Measure speed: training step, latency, import, table sizes, and time to accuracy.

The measurements are step (training step and sweep), latency (one new row), import, sizes (10,000 to 1,000,000
rows: minutes), costs (stages of fits and imputations by joint densities: minutes); and, on the public tables
parkinson.csv and protein.csv.gz, training (natural gradients against Adam) and forests (default imputer
against chained extra trees).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import command
from benchmarks.speed import measurements
from benchmarks.speed.measurements import MEASUREMENTS, ON_DATA


def main(argv: Sequence[str] | None = None) -> int:
    """Measure speed, print the figures and optionally write them; return the exit status."""
    parser = command.new_parser("speed", __doc__)
    names = (*MEASUREMENTS, *ON_DATA)
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="take some measurements only")
    command.add_data_dir(parser)
    parser.add_argument(
        "--device", default="cpu", help="torch device for step, latency, sizes and costs (default: cpu)"
    )
    command.add_out(parser)
    return command.execute(
        parser,
        argv,
        lambda args: command.report(measurements.run(args.only, args.data_dir, args.device), args.out),
    )


if __name__ == "__main__":
    sys.exit(main())
