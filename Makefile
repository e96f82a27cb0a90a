# Everything a person types here. The first target of a fresh clone also makes .venv; later ones install nothing.
PYTHON ?= python3
BIN := .venv/bin
# One thread per process: the two test workers would otherwise fight over the cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test test-all notebooks bench-speed bench-tables bench-draws lint words format clean

help:    ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /make \1	/'

demo: .venv/installed    ## 20 imputations of the penguins, into build/demo
	$(BIN)/pyro-mgp impute examples/data/penguins.csv -o build/demo -m 20 --seed 0 --overwrite
	@echo "The results lie in build/demo:" && ls build/demo

test: .venv/installed    ## all tests and the examples in the docstrings
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile

# Python 3.11 resolves ArviZ 0.23, later ones ArviZ 1: newest releases, without the constraints.
PYTHONS := 3.11 3.12 3.13
test-all:    ## all tests under each of these Pythons that is installed
	@for v in $(PYTHONS); do \
	  python$$v -c '' 2>/dev/null || { echo "python$$v is not installed: left out"; continue; }; \
	  test -f .venv-$$v/installed || { python$$v -m venv .venv-$$v && \
	    .venv-$$v/bin/python -m pip install --quiet torch==2.13.0 && \
	    .venv-$$v/bin/python -m pip install --quiet -e '.[dev]' && touch .venv-$$v/installed; } || exit 1; \
	  $(ONE_THREAD) .venv-$$v/bin/python -m pytest -n 2 --dist loadfile || exit 1; \
	done

notebooks: .venv/installed    ## run the notebooks again and keep what they show
	$(ONE_THREAD) $(BIN)/python notebooks/execute.py

bench-speed: .venv/installed    ## measure speed on this machine, into build/speed.csv
	@mkdir -p build
	$(BIN)/python -m benchmarks.speed --only step latency import sizes -o build/speed.csv

bench-tables: .venv/installed    ## accuracy on the paper's tables beside other methods, into build/tables: hours
	PATH="$(CURDIR)/$(BIN):$$PATH" benchmarks/paper/run.sh build/tables

bench-draws: .venv/installed    ## impute tables of every kind, into build/draws.npz, to compare before and after a change
	@mkdir -p build
	$(ONE_THREAD) $(BIN)/python -m benchmarks.draws write build/draws.npz

lint: .venv/installed    ## style, formatting, types and direction of imports, without changing a file
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

words:    ## words of an old dialect that must not come back (docs/words.txt), with file and line
	@! grep -rnP "$$(paste -sd'|' docs/words.txt)" --include='*.py' --include='*.md' --include='*.html' \
	  pyro_mgp benchmarks tests examples notebooks docs README.md CONTRIBUTING.md SECURITY.md

format: .venv/installed    ## mend style and formatting in place
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:    ## remove .venv and everything else that was made
	rm -rf .venv .venv-* build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and on its own: left unpinned, it would pull gigabytes of CUDA packages.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@
