# Everything runs in .venv, which is built on first use and again only when pyproject.toml or constraints.txt change.
# PYTHON=… picks the interpreter; UV= (empty) builds the environment with pip even where uv is installed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
    "$$p" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
UV ?= $(shell command -v uv 2>/dev/null)
VENV := .venv
BIN := $(VENV)/bin
PROJECT := pyproject.toml constraints.txt

ifneq ($(strip $(UV)),)
CREATE = $(UV) venv --quiet --clear --python "$(PYTHON)" $(VENV)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
else
CREATE = "$(PYTHON)" -m venv --clear $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

# caches stay in the checkout, so that an empty or read-only HOME does no harm
export MPLCONFIGDIR ?= $(CURDIR)/.cache/matplotlib
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYTHON
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.PHONY: help demo browser test test-all test-package test-matrix lint docs oracle bench venv clean check-python

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.cli ## fit, predict, design and explain on the shipped measurements; writes out/report.html
	$(BIN)/dmodel demo

browser: $(VENV)/.dev ## add what tests of the explorer's page need: Chromium, Node, Playwright, esbuild
	.ci/browser
	$(INSTALL) -c constraints.txt -e '.[cli,dev,browser]'

test: $(VENV)/.dev ## quick tests, two at a time; says which it skips
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" -rfEs

test-all: $(VENV)/.dev ## all tests, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-package: $(VENV)/.dev ## build the distributions, install them in a clean environment and use them
	$(BIN)/python -m pytest tests/test_packaging.py

test-matrix: $(VENV)/.dev ## core tests on each supported Python that is here, with the oldest and the newest packages allowed
	$(BIN)/python -m tests.matrix

lint: $(VENV)/.dev ## ruff and pyright
	@echo "-- ruff check"
	$(BIN)/ruff check .
	@echo "-- ruff format --check"
	$(BIN)/ruff format --check .
	@echo "-- pyright"
	$(BIN)/pyright

docs: $(VENV)/.docs ## build the site into out/site, running its notebooks; open out/site/index.html
	@mkdir -p out/explorer
	$(BIN)/dmodel explore --out out/explorer/explorer.html
	$(BIN)/python -m sphinx -W --keep-going -q -j 2 -b html docs out/site
	@echo "open out/site/index.html"

oracle: $(VENV)/.dev ## what the model says of the published rows, against what was frozen; FREEZE=1 freezes it anew
	$(BIN)/python -m tests.oracle $(if $(FREEZE),--freeze)

bench: $(VENV)/.cli ## speed of the model, its gradient, the fit and the shell; OLD=COMMIT: against that commit, by turns
	$(BIN)/python -m $(if $(OLD),experiments.bench_against $(OLD),experiments.bench)

venv: $(VENV)/.dev ## build the environment in .venv

clean: ## remove the environment, caches and outputs
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache build dist out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@"$${PYTHON:-false}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "No usable Python: expected 3.11 or newer with the venv module; PYTHON is '$$PYTHON' (when empty: none of python3.13, python3.12," \
	       "python3.11, python3 will do). Install one (Debian: python3 and python3-venv) or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }

# what the demo needs; -e, so that edits count at once
$(VENV)/.cli: $(PROJECT) | check-python
	@echo "Building $(VENV) with $$("$(PYTHON)" -V) (a minute or so, once)"
	$(CREATE)
	$(INSTALL) -c constraints.txt -e '.[cli]'
	@rm -f $(VENV)/.dev $(VENV)/.docs && touch $@

$(VENV)/.dev: $(VENV)/.cli
	@echo "Adding the tools of tests and linting"
	$(INSTALL) -c constraints.txt -e '.[cli,dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.cli
	@echo "Adding the tools of the site"
	$(INSTALL) -c constraints.txt -e '.[cli,docs]'
	@touch $@
