# Every target is one visible line of work; `.venv` is made on first use and kept.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && command -v $$p && break; done)
BIN := .venv/bin
READY := .venv/.installed
THEIRS := .venv-bench/.installed
QUICK := $(addprefix tests/,unit property sim tui repo net/test_swarm_processes.py)
DOCS := .venv/.docs-installed

# Tests start some thousand processes; each would compile every source anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test check fix install docs generate bench bench-lines gpu
.DEFAULT_GOAL := check

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "No usable Python 3.11 or 3.12 found. On Debian or Ubuntu: apt install python3 python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

install: $(READY)

demo: $(READY)
	$(BIN)/shoal demo

# What to run after each change, in about five minutes on two cores: all but the long simulations
# and the real processes, of which one swarm runs from its first record to the export.
test: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(QUICK)

# Everything, the network lab included. Nothing is tried twice.
check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

# Their packages have an environment of their own, so that ours stays as it is.
$(THEIRS): benchmarks/peers/requirements.txt
	@test -n "$(PYTHON)" || { echo "No usable Python 3.11 or 3.12 found. On Debian or Ubuntu: apt install python3 python3-venv"; exit 1; }
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	touch $@

bench: $(READY) $(THEIRS)
	$(BIN)/python benchmarks/peers/run.py

# The same over lines as volunteers have them; needs root.
bench-lines: $(READY) $(THEIRS)
	$(BIN)/python -m benchmarks.peers.over_lines

# What only an accelerator can say. Without one the same code runs small, on the processor.
gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu.run

# What the code knows better than the documents: messages, records, bounds, diagrams, rooms.
generate: $(READY)
	$(BIN)/python docs/generate.py

$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

docs: $(DOCS)
	$(BIN)/mkdocs build --strict
	@echo "The site is in site/. To read it in a browser: $(BIN)/mkdocs serve"

fix: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
