#!/usr/bin/env bash
# The quick profile: all methods on all tables, then the report. Started again, it goes on where it stopped.
#
#     examples/paper/run.sh OUT [options of `pyro-mgp bench tables`]
set -euo pipefail
out=${1:?name a folder for the results}
shift
mkdir -p "$out"
pyro-mgp bench tables --profile quick -o "$out/results.csv" "$@"
pyro-mgp bench report "$out/results.csv" -o "$out"
