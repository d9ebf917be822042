# `make demo` runs the complete workflow on example data; `make test` runs lint, type checks and tests.
# Both create their own virtual environment and require Python 3.11 or newer and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# spinning threads slow down small machines; the command line sets this variable itself
export OMP_WAIT_POLICY ?= PASSIVE
# a worker runs whole files, so that what the tests of a file share is made once; the longest files come first
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test lint types unit test-slow test-all test-load test-distributed test-gpu test-kernels torture torture-full docs clean

demo: $(VENV)/.demo
	$(BIN)/headstart demo --out demo-run

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(PYTEST) -m "not slow and not gpu"

# tests that `make test` skips: compilations, exports, pages of the documentation, killed processes and repeated runs
test-slow: $(VENV)/.dev
	$(PYTEST) -m "slow and not gpu"

test-all: $(VENV)/.dev
	$(PYTEST) -m "not gpu"

# two to four processes started by torchrun, killed, stopped and resumed: about ten minutes on two cores
test-distributed: $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/distributed -m "not gpu"

# the tests beside four busy loops: does one depend on the speed of the machine?
test-load: $(VENV)/.dev
	$(BIN)/python tests/under_load.py --all 2 --processes 5

# requires a CUDA device and a Python with torch and pytest
test-gpu:
	PYTHONPATH=src:starters/src $(PYTHON) -m pytest -q -m gpu tests/gpu tests/kernels tests/model tests/train tests/recipes tests/distributed

# the kernels without a GPU, in the interpreter of triton; requires triton and numpy < 2.4
test-kernels:
	TRITON_INTERPRET=1 PYTHONPATH=src $(PYTHON) -m pytest -q tests/kernels/test_triton_cross_entropy.py tests/kernels/test_triton_elementwise.py tests/kernels/test_triton_mlp.py

# builds the documentation in build/site; view it with: python3 -m http.server -d build/site
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# kills, full disks, damaged files and invalid bytes: minutes; torture-full takes an hour and writes docs/results/robustness.md
torture: $(VENV)/.dev
	$(BIN)/python tests/faults/torture.py --size usual --out build/torture.json

torture-full: $(VENV)/.dev
	$(BIN)/python tests/faults/torture.py --size full --out docs/results/torture.json
	$(BIN)/python benchmarks/results.py

$(VENV)/bin/python:
	$(PYTHON) -c "import sys; sys.exit('Headstart needs Python 3.11 or newer, this is ' + sys.version.split()[0] if sys.version_info < (3, 11) else 0)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml starters/pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[demo]" -e ./starters
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml starters/pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[demo,dev,docs,fast,hf,onnx,serve,tune,url]" -e ./starters
	touch $@

clean:
	rm -rf $(VENV) demo-run build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
