# The two commands of the README are `make book` and `make test`; each does its whole set-up.
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# Written last by the installation, so that an interrupted one is done again and a finished one is not repeated.
INSTALLED := $(VENV)/.installed

.PHONY: help setup book test lint bench lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Create .venv and install the locked packages

$(INSTALLED): requirements.lock pyproject.toml
	@python=$$(.ci/find-python)
	$(BIN)/python -m pip --version &> /dev/null || "$$python" -m venv --clear $(VENV)
	echo "Installing the locked packages into $(VENV); this takes some minutes."
	# The lock names everything, which the check makes sure of: nothing is left to resolve.
	$(PIP) --no-deps -r requirements.lock
	$(PIP) --no-deps --editable .
	$(BIN)/python -m pip check
	# Built now, since matplotlib would otherwise report it on the first page that draws a figure.
	$(BIN)/python -c "import matplotlib.font_manager"
	touch $@

book: $(INSTALLED) ## Execute the chapters and build the site
	$(BIN)/fedlib run --all
	$(BIN)/fedlib site

test: $(INSTALLED) ## Lint, run the tests, execute the book's digits edition, build the site and walk it in Chromium
	.ci/find-chromium > /dev/null || .ci/apt-install chromium
	$(BIN)/ruff check .
	$(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --ignore tests/test_site.py
	# The site by itself, whose browser wants the cores as well.
	$(BIN)/pytest tests/test_site.py

lint: $(INSTALLED) ## Check the style of code and notebooks
	$(BIN)/ruff check .

bench: $(INSTALLED) ## Compare the speed with the bare loop and with other frameworks
	$(BIN)/python -m benchmarks

lock: $(INSTALLED) ## Resolve requirements.lock again from pyproject.toml, keeping the versions that still fit
	$(PIP) uv==0.13.9
	$(BIN)/uv pip compile pyproject.toml --extra test --python-version 3.11 \
	    --python-platform x86_64-manylinux_2_28 --custom-compile-command "make lock" --output-file requirements.lock

clean: ## Remove the environment, the executed chapters and the site; run records stay
	rm -rf $(VENV) _build book/chapters
