# The targets need Python 3.11 and make only. Each target creates .venv and installs its dependencies.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo example ui down status logs doctor test test-quick test-all test-share ui-test dbt-test simulate torture mutants bench bench-full bench-query bench-spark bench-stream bench-proxy bench-iceberg bench-platform bench-guard docs docs-serve newcomer dist matrix unit versions azurite hooks lint lock format clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.installed-demo  ## Run the whole platform on a year of flights, and check every result
	@$(BIN)/python -m examples.flights

example: $(VENV)/.installed-demo  ## Run the example project, web analytics of three tenants, and draw its dashboard
	@$(BIN)/python -m examples.run_web_analytics

ui: $(VENV)/.installed-demo  ## Open the demo's platform in Dagster's UI, daemon included
	@$(BIN)/icedb-dagster up

down: $(VENV)/.installed-demo  ## Stop the processes that `make ui` started
	@$(BIN)/icedb-dagster down

status: $(VENV)/.installed-demo  ## Show the running processes
	@$(BIN)/icedb-dagster status

logs: $(VENV)/.installed-demo  ## Show the logs of Postgres, web server and daemon
	@$(BIN)/icedb-dagster logs

doctor: $(VENV)/.installed-demo  ## Check the set-up of the platform, and print remedies
	@$(BIN)/icedb-dagster doctor

# Tests that wait leave a processor idle, so two more test files run at a time than there are processors.
PROCESSORS = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() or 1)')
PYTEST = $(BIN)/pytest --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 1 $(OPTIONS)

test: $(VENV)/.installed-tests  ## Run before a commit: each promise and each integration, ten minutes on 2 quiet processors
	@$(PYTEST) -n $$(($(PROCESSORS) + 2)) --scope short

test-quick: $(VENV)/.installed-dev  ## Run while you write: the units, without servers and other processes, under two minutes
	@$(PYTEST) -n $(PROCESSORS) --scope quick

test-all: $(VENV)/.installed-tests  ## Run every test: all cases, much data, more clusters, more killed processes, an hour
	@$(PYTEST) -n $$(($(PROCESSORS) + 2)) --scope all -m "not alone"
	@$(PYTEST) --scope all -m alone

SHARE ?= $(shell git rev-parse HEAD)
test-share: $(VENV)/.installed-tests  ## Run a share of the tests that `make test` omits, selected by the commit (SHARE=...: by that hash)
	@$(PYTEST) -n $$(($(PROCESSORS) + 2)) --scope rest --share $(SHARE)

CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
ui-test: $(VENV)/.installed-ui  ## Click through Dagster's UI in headless Chromium, and take the pictures of docs/images
	@test -x "$(CHROMIUM)" || { echo "Chromium is not installed. Run: apt-get install chromium, or set its path: CHROMIUM=..."; exit 1; }
	@CHROMIUM="$(CHROMIUM)" $(BIN)/pytest tests/ui

dbt-test:  ## Test the plugin of dbt-duckdb and its example, in an environment of their own (.venv-dbt)
	@$(MAKE) --no-print-directory VENV=.venv-dbt .venv-dbt/.installed-dbt-tests
	@.venv-dbt/bin/python -m pytest -c tests/dbt/pytest.ini --rootdir . --confcutdir tests/dbt tests/dbt

# The tests use an archive of Spark's classes, with which Java starts quickly, and Azure's emulator, which needs npm.
# Without npm, the tests of Azure are skipped. The emulator of Google Cloud is a wheel of the extra dev, for Linux.
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

bench: $(VENV)/.installed-dev  ## Compare the speed with its goals and with other programs, and write benchmarks/RESULTS.md (ten minutes)
	@$(BIN)/python -m benchmarks.suite

bench-full: $(VENV)/.installed-dev  ## Run the same at full length, with nine rounds each
	@$(BIN)/python -m benchmarks.suite --full --rounds 9

bench-query: $(VENV)/.installed-dev  ## Measure DuckDB queries against the bare files, and pruning, and draw the results
	@$(BIN)/python -m benchmarks.query --plot docs/images/query-pruning.png

BENCH ?= --rows 10000000 --rounds 3
bench-spark: $(VENV)/.installed-dev  ## Measure writes, reads and merges on Spark against Spark and DuckDB alone
	@$(BIN)/python -m benchmarks.spark $(BENCH)

bench-stream: $(VENV)/.installed-dev  ## Measure the time until a stream's rows can be read, and draw it
	@$(BIN)/python -m benchmarks.stream --plot docs/images/stream-latency.png

bench-proxy: $(VENV)/.installed-dev  ## Measure requests through the S3 proxy against direct requests to the S3 server
	@$(BIN)/python -m benchmarks.proxy

bench-iceberg: $(VENV)/.installed-dev  ## Measure the Iceberg catalog of the proxy over a table of 100,000 parts
	@$(BIN)/python -m benchmarks.iceberg_catalog

bench-platform: $(VENV)/.installed-dev  ## Measure a running platform of 50 tables for two hours: processor, memory, growth, sensor lag
	@$(BIN)/python -m benchmarks.running_platform

bench-guard: $(VENV)/.installed-dev  ## Count requests, bytes and allocations, and fail if a committed figure has grown
	@$(BIN)/python -m benchmarks.guard $(if $(UPDATE),--update)

# Neither target fetches fonts or scripts. The variable suppresses a notice.
docs: $(VENV)/.installed-docs  ## Build the documentation site into site/: open site/index.html without a server
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in site/index.html"

docs-serve: $(VENV)/.installed-docs  ## Serve the documentation at http://127.0.0.1:8000, and rebuild changed pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

newcomer:  ## Follow the quickstart and the tutorials word by word in a fresh clone (WITH=--uncommitted: with uncommitted changes)
	@$(PYTHON) tests/support/newcomer.py $(WITH)

dist:  ## Build the source distribution and the wheel into dist/, with an environment of their own (.venv-dist)
	@test -x .venv-dist/bin/uv || { $(PYTHON) -m venv .venv-dist && .venv-dist/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'; }
	@rm -rf dist
	@.venv-dist/bin/uv build --quiet --out-dir dist
	@ls dist

matrix: $(VENV)/.installed-dev  ## Install and test the wheel with each extra alone (EXTRAS="cli spark": only these; half an hour)
	@$(BIN)/python -m release.matrix $(EXTRAS)

unit: $(VENV)/.installed-dev  ## Run the unit suite on Python 3.12 and 3.13 if they are installed (PYTHONS=3.13: only that)
	@$(BIN)/python -m release.unit $(PYTHONS)

versions: $(VENV)/.installed-dev  ## Test the lowest and the newest supported Dagster, Spark and others (WHICH=lowest: only these)
	@$(BIN)/python -m release.versions $(WHICH)

azurite: $(VENV)/.installed-dev  ## Install Azure's emulator for the tests (needs Node.js and npm)
	@npm install --loglevel=error --no-fund --no-audit --prefix $(VENV)/azurite azurite@3.35.0 >/dev/null

hooks: $(VENV)/.installed-dev  ## Let git run the linters before each commit
	@$(BIN)/pre-commit install

# .pre-commit-config.yaml runs the same checks.
lint: $(VENV)/.installed-dev  ## Run linters and check strict types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@test -x $(BIN)/hadolint && $(BIN)/hadolint deploy/Dockerfile || { test ! -x $(BIN)/hadolint && echo "hadolint is not available for this system, so the Dockerfile is not checked"; }
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml
	@$(BIN)/python -m compileall -q icedb icedb_dagster pyspark_icedb spark_jobs examples benchmarks docs_site release tests

lock: $(VENV)/.installed-dev  ## Update deploy/lock: the versions and digests of the images' dependencies
	@for image in "platform dagster exporter spark" "service proxy ingest"; do set -- $$image; name=$$1; shift; \
	  $(BIN)/uv pip compile pyproject.toml $$(printf -- '--extra %s ' "$$@") --output-file deploy/lock/$$name.txt --upgrade --quiet \
	    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	    --python-version 3.11 --python-platform x86_64-manylinux_2_28 || exit 1; done

format: $(VENV)/.installed-dev  ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## Remove the virtual environment and caches; data and history in .icedb-dagster stay
	rm -rf $(VENV) .venv-dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed-demo: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=demo

$(VENV)/.installed-docs: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=docs

$(VENV)/.installed-dev: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=dev

$(VENV)/.installed-dbt-tests: pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=dbt-tests

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
