# Everything a person types here. The first target of a fresh clone also makes .venv; later ones install nothing.
PYTHON ?= python3
BIN := .venv/bin
RELEASE := .venv-release/bin
# One thread per process: the two test workers would otherwise fight over the cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test test-slow test-all test-lowest coverage docs docs-links notebooks bench-speed bench-tables \
  bench-draws lint words format dist supply-chain lock clean

help:    ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /make \1	/'

demo: .venv/installed    ## 20 imputations of the penguins, into build/demo
	$(BIN)/pyro-mgp impute examples/data/penguins.csv -o build/demo -m 20 --seed 0 --overwrite
	@echo "The results lie in build/demo:" && ls build/demo

test: .venv/installed    ## the tests, but for the slow ones, and the examples in the docstrings
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: .venv/installed    ## the slow tests, with all pages, notebooks and examples
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

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

# What old releases of others warn of is theirs.
OLD_WARNINGS := -W ignore::DeprecationWarning -W ignore::SyntaxWarning -W ignore::FutureWarning
test-lowest: .venv-release/installed    ## all tests with the lowest allowed version of every dependency, on Python 3.11
	test -f .venv-lowest/installed || { $(RELEASE)/uv venv -q --seed --python 3.11 .venv-lowest && \
	  $(RELEASE)/uv pip install -q --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev]' && \
	  touch .venv-lowest/installed; }
	$(ONE_THREAD) .venv-lowest/bin/python -m pytest -n 2 --dist loadfile $(OLD_WARNINGS)

coverage: .venv/installed    ## share of lines and branches that the tests reach; fails below 95 % of lines
	rm -f .coverage .coverage.*
	@mkdir -p build
	$(ONE_THREAD) $(BIN)/coverage run -m pytest -n 2 --dist loadfile
	$(BIN)/coverage combine -q
	$(BIN)/coverage json -q -o build/coverage.json
	$(BIN)/coverage report
	$(BIN)/python -c 'import json; \
	  t = json.load(open("build/coverage.json"))["totals"]; lines = 100 * t["covered_lines"] / t["num_statements"]; \
	  print(f"{lines:.1f} % of lines"); raise SystemExit(lines < 95)'

docs: .venv/installed    ## the documentation, into build/docs, without a network; warnings are errors
	$(BIN)/sphinx-build -b html -W --keep-going -q docs build/docs
	@echo "The pages lie in build/docs: open build/docs/index.html"

docs-links: .venv/installed    ## whether addresses in the documentation can be reached; needs a network
	$(BIN)/sphinx-build -b linkcheck -q docs build/docs-links

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

dist: .venv-release/installed    ## wheel and source distribution, built and checked, into dist
	rm -rf dist build/lib
	$(RELEASE)/pyproject-build -o dist .
	$(RELEASE)/twine check --strict dist/*
	$(RELEASE)/check-wheel-contents dist/*.whl

supply-chain: .venv-release/installed    ## known vulnerabilities, licences, and a bill of materials, into build
	@mkdir -p build
	$(RELEASE)/pip-audit -r requirements.lock --disable-pip
	$(RELEASE)/cyclonedx-py requirements requirements.lock --output-format JSON -o build/sbom.json
	$(RELEASE)/pip-licenses --python .venv/bin/python --format=markdown --order=license --output-file=build/licences.md

lock: .venv-release/installed    ## exact versions of core, plots and models with their hashes, into requirements.lock
	$(RELEASE)/uv pip compile pyproject.toml --extra plots --extra models --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header -q -o requirements.lock

clean:    ## remove .venv and everything else that was made
	rm -rf .venv .venv-* build dist docs/notebooks *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and on its own: left unpinned, it would pull gigabytes of CUDA packages.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@

.venv-release/installed: pyproject.toml
	$(PYTHON) -m venv .venv-release
	$(RELEASE)/python -m pip install --quiet $$($(PYTHON) -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"])')
	@touch $@
