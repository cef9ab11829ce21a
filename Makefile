# The words that people and CI both use. `make demo` and `make test` work on a fresh machine with Python 3.11 or newer.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: help demo test test-services check format docs bench soak coverage clean

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.cli ## install, migrate an SQLite file, record a sample run and look back into it
	$(BIN)/clew demo

test: $(VENV)/.dev ## the whole suite, on SQLite and on a Postgres that it brings itself
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-services: $(VENV)/.dev ## the tests against PgBouncer and Debian's Postgres; installs them where they are missing
	@installed() { { command -v pgbouncer || ls /usr/sbin/pgbouncer; } && ls /usr/lib/postgresql/*/bin/postgres && command -v openssl; }; \
	  installed >/dev/null 2>&1 \
	  || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends pgbouncer postgresql openssl; } \
	  || true; \
	  installed >/dev/null 2>&1 || { echo "test-services: PgBouncer, Postgres and openssl could not be installed" >&2; exit 1; }
	$(BIN)/python -m pytest -m services $(ARGS)

check: $(VENV)/.dev ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_layers.py

format: $(VENV)/.dev ## rewrite the code to the format that `make check` asks for
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## write what is made from the code in docs/ anew
	$(BIN)/python docs/generate.py

bench: $(VENV)/.dev ## the benchmark against LangGraph's savers
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.dev ## the long runs
	$(BIN)/python -m pytest -m soak $(ARGS)

coverage: $(VENV)/.dev ## line and branch coverage of src/
	rm -f .coverage*
	$(BIN)/coverage run -m pytest -n $(WORKERS) $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

clean: ## remove everything that was made here
	rm -rf $(VENV) build dist htmlcov .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis

# PYTHON=… chooses an interpreter; otherwise the first that runs and is new enough.
$(VENV)/bin/python:
	@for candidate in $${PYTHON:-python3.13 python3.12 python3.11 python3}; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$($$candidate --version)"; \
	    "$$candidate" -m venv $(VENV) && exit 0; \
	    echo "make: $$candidate cannot create a virtual environment (on Debian: apt install python3-venv)" >&2; \
	    rm -rf $(VENV); exit 1; \
	  fi; \
	done; \
	echo "make: clew needs Python 3.11 or newer, and none of these is: $${PYTHON:-python3.13 python3.12 python3.11 python3}" >&2; exit 1

# The stamps say what is installed, so that it is not installed again until pyproject.toml changes.
$(VENV)/.cli: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[cli]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.cli
