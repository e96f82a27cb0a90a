#!/usr/bin/env bash
# The quick profile: all methods on all tables, then the report. Started again, it continues where it stopped.
#
#     benchmarks/paper/run.sh OUT [options of `python -m benchmarks.paper.tables`]
set -euo pipefail
out=${1:?name a folder for the results}
shift
mkdir -p "$out"
python -m benchmarks.paper.tables --profile quick -o "$out/results.csv" "$@"
python -m benchmarks.paper.report "$out/results.csv" -o "$out"
