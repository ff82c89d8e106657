# Everything a newcomer needs: Python 3.11 and make. Each target creates .venv and installs what it uses.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo example ui down status logs doctor test test-quick test-all test-share ui-test simulate torture mutants bench bench-full bench-query bench-spark bench-stream bench-proxy bench-guard docs docs-serve newcomer dist matrix unit versions azurite hooks lint format clean
.DEFAULT_GOAL := help

help:  ## Show what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.installed-demo  ## Run the whole platform on a year of flights, and check every number
	@$(BIN)/python -m examples.flights

example: $(VENV)/.installed-demo  ## Run the example project, web analytics of three tenants, and draw its dashboard
	@$(BIN)/python -m examples.run_web_analytics

ui: $(VENV)/.installed-demo  ## Open the demo's platform in Dagster's UI, daemon included
	@$(BIN)/icedb-dagster up

down: $(VENV)/.installed-demo  ## Stop everything that `make ui` started
	@$(BIN)/icedb-dagster down

status: $(VENV)/.installed-demo  ## Show what runs
	@$(BIN)/icedb-dagster status

logs: $(VENV)/.installed-demo  ## Show what Postgres, web server and daemon print
	@$(BIN)/icedb-dagster logs

doctor: $(VENV)/.installed-demo  ## Look whether the platform is set up well, and say what to change
	@$(BIN)/icedb-dagster doctor

# Files that wait for Java to start leave a processor idle, so there are two more of them at a time than processors.
PROCESSORS = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() or 1)')
PYTEST = $(BIN)/pytest --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 1 $(OPTIONS)

test: $(VENV)/.installed-tests  ## Before a commit: each promise and each integration, ten minutes
	@$(PYTEST) -n $$(($(PROCESSORS) + 2)) --scope short

test-quick: $(VENV)/.installed-dev  ## While you write: the units alone, no server and no other process, under two minutes
	@$(PYTEST) -n $(PROCESSORS) --scope quick

test-all: $(VENV)/.installed-tests  ## Every test: all cases, much data, more clusters, fifty killed drivers, an hour
	@$(PYTEST) -n $$(($(PROCESSORS) + 2)) --scope all -m "not alone"
	@$(PYTEST) --scope all -m alone

SHARE ?= $(shell git rev-parse HEAD)
test-share: $(VENV)/.installed-tests  ## A part of what `make test` leaves out, chosen by the commit (SHARE=...: by that)
	@$(PYTEST) -n $$(($(PROCESSORS) + 2)) --scope rest --share $(SHARE)

CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
ui-test: $(VENV)/.installed-ui  ## Click through Dagster's UI in headless Chromium, and take the pictures of docs/images
	@test -x "$(CHROMIUM)" || { echo "There is no Chromium here: apt-get install chromium, or say where it is: CHROMIUM=..."; exit 1; }
	@CHROMIUM="$(CHROMIUM)" $(BIN)/pytest tests/ui

# What the tests need beyond Python's packages: an archive of Spark's classes, with which Java starts quickly, and, where
# npm is, Azure's emulator. Without npm the tests that need the emulator are skipped.
$(VENV)/.installed-tests: $(VENV)/.installed-dev
	@echo "Making an archive of Spark's classes, so that the tests' Java processes start quickly"
	@$(BIN)/python -m tests.support.spark.quick_java
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory azurite; else echo "npm is not installed: the tests of Azure are skipped"; fi
	@touch $@

SEEDS ?= 2000
simulate: $(VENV)/.installed-dev  ## Simulate SEEDS histories of crashes, delays and races (make simulate SEEDS=10000)
	@$(BIN)/python -m icedb.testing.simulation --seeds $(SEEDS)

torture: $(VENV)/.installed-dev  ## Kill processes that use one table, two minutes on each store, then count every batch
	@ICEDB_MIXED_LOAD_SECONDS=120 $(BIN)/pytest -s tests/promises/test_mixed_load.py

mutants: $(VENV)/.installed-dev  ## Seed faults of the protocol one by one: the suite must catch each
	@$(BIN)/python -m tests.support.mutants

bench: $(VENV)/.installed-dev  ## Hold speed to its goals, beside other programs, and write benchmarks/RESULTS.md (ten minutes)
	@$(BIN)/python -m benchmarks.suite

bench-full: $(VENV)/.installed-dev  ## The same at full length, nine rounds of each
	@$(BIN)/python -m benchmarks.suite --full --rounds 9

bench-query: $(VENV)/.installed-dev  ## Measure queries of DuckDB beside the bare files, and pruning, and draw it
	@$(BIN)/python -m benchmarks.query --plot docs/images/query-pruning.png

BENCH ?= --rows 10000000 --rounds 3
bench-spark: $(VENV)/.installed-dev  ## Measure writing, reading and merging on Spark, beside Spark and DuckDB alone
	@$(BIN)/python -m benchmarks.spark $(BENCH)

bench-stream: $(VENV)/.installed-dev  ## Measure how soon a stream's rows can be read, and draw it
	@$(BIN)/python -m benchmarks.stream --plot docs/images/stream-latency.png

bench-proxy: $(VENV)/.installed-dev  ## Measure requests through the S3 proxy, beside the same to the S3 server itself
	@$(BIN)/python -m benchmarks.proxy

bench-guard: $(VENV)/.installed-dev  ## Count requests, bytes and allocations: nothing may have grown since they were committed
	@$(BIN)/python -m benchmarks.guard $(if $(UPDATE),--update)

# Neither fetches anything: no fonts, no scripts from elsewhere. The variable keeps a notice out of what is printed.
docs: $(VENV)/.installed-docs  ## Build the documentation site into site/: open site/index.html, no server needed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in site/index.html"

docs-serve: $(VENV)/.installed-docs  ## Show the documentation at http://127.0.0.1:8000, and build again what changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

newcomer:  ## Follow the tutorial word by word in a fresh clone: all of it works (WITH=--uncommitted: the files as they are)
	@$(PYTHON) tests/support/newcomer.py $(WITH)

dist: $(VENV)/.installed-dev  ## Build the source distribution, and from it the wheel, into dist/
	@rm -rf dist
	@$(BIN)/uv build --quiet --out-dir dist
	@ls dist

matrix: $(VENV)/.installed-dev  ## Install the wheel with each extra alone, and try each (EXTRAS="cli spark": those; half an hour)
	@$(BIN)/python -m release.matrix $(EXTRAS)

unit: $(VENV)/.installed-dev  ## The unit suite on Python 3.12 and 3.13, where they are (PYTHONS=3.13: on that)
	@$(BIN)/python -m release.unit $(PYTHONS)

versions: $(VENV)/.installed-dev  ## The lowest and the newest Dagster, Spark and others that are supported (WHICH=lowest: those)
	@$(BIN)/python -m release.versions $(WHICH)

azurite: $(VENV)/.installed-dev  ## Install Azure's emulator for the tests (needs Node.js and npm); without it they are skipped
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/azurite azurite@3.35.0

hooks: $(VENV)/.installed-dev  ## Let git run the linters before each commit
	@$(BIN)/pre-commit install

# What .pre-commit-config.yaml runs is what runs here.
lint: $(VENV)/.installed-dev  ## Linters and strict types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@test -x $(BIN)/hadolint && $(BIN)/hadolint deploy/Dockerfile || { test ! -x $(BIN)/hadolint && echo "There is no hadolint for this system: the Dockerfile is not looked at"; }
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml
	@$(BIN)/python -m compileall -q icedb icedb_dagster pyspark_icedb spark_jobs examples benchmarks docs_site release tests

format: $(VENV)/.installed-dev  ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## Remove the virtual environment and caches; data and history in .icedb-dagster stay
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed-demo: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=demo

$(VENV)/.installed-docs: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=docs

$(VENV)/.installed-dev: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=dev

$(VENV)/.installed-ui: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=ui

.PHONY: install
install:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "Python 3.11, 3.12 or 3.13 is needed; this is $$($(BIN)/python -V). Set PYTHON=..., then: make clean"; exit 1; }
	@echo "Installing icedb-dagster[$(EXTRA)] into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRA)]'
	@touch $(VENV)/.installed-$(EXTRA)
