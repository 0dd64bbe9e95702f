# make demo: a fresh Linux machine with Python 3.11, git and make needs nothing else.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?=
export VENV PYTHON

BIN := $(VENV)/bin
MODEL := smollm2-135m
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=300 --timeout=300 --numprocesses logical --maxprocesses 4 --dist loadfile
# Half of the suite's time is waiting, so one test more at once than there are processors, at most 4 for they need a few GB of memory each;
# a module's own fixtures stay in one worker, and so does a notebook.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n + 1 : 4)))
PARALLEL := --numprocesses $(WORKERS) --dist loadscope
# Idle OpenMP threads that spin steal a shared core from the processes under test; without bytecode each process compiles what it imports.
TEST_ENV := GOMP_SPINCOUNT=1000 PYTHONDONTWRITEBYTECODE=
# What is tested is the same everywhere: engines stay on the CPU where there is a GPU too, but for test-gpu's.
ON_CPU := CUDA_VISIBLE_DEVICES=
LAB_FLAGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: demo test test-full test-browser kernels lab lint lock clean help model

help:  ## what there is
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: model  ## install, fetch the default model, run the quickstart notebook, print its results
	$(BIN)/python scripts/demo.py notebooks/00_quickstart.ipynb

test: $(VENV)/.installed-dev model  ## tests and notebooks, at most 15 minutes
	$(TEST_ENV) $(ON_CPU) $(BIN)/pytest $(PARALLEL)
	$(TEST_ENV) $(ON_CPU) $(BIN)/pytest $(NBVAL) notebooks

test-full: $(VENV)/.installed-dev model  ## the same, with what takes longer
	$(TEST_ENV) $(ON_CPU) $(BIN)/pytest $(PARALLEL) -m "not browser and not gpu"
	$(TEST_ENV) $(ON_CPU) $(BIN)/pytest $(NBVAL) notebooks

test-browser: $(VENV)/.installed-dev model  ## notebooks in JupyterLab in a headless browser; pictures of them in out/browser
	$(TEST_ENV) $(ON_CPU) $(BIN)/pytest -m browser -ra tests/browser

kernels: $(VENV)/.installed-dev  ## GPU kernels compiled ahead of time where they changed; tables of what they take in profiles/kernels
	$(BIN)/python -m mqlab_kernels compile --sweep --output profiles/kernels

test-gpu: $(VENV)/.installed-dev model  ## kernels and engine on a GPU; see docs/device.md
	$(TEST_ENV) $(BIN)/pytest -m gpu -ra tests/gpu

lab: model  ## open JupyterLab on the notebooks
	$(BIN)/jupyter lab $(LAB_FLAGS) --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks

lint: $(VENV)/.installed-dev  ## ruff, pyright, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

lock:  ## rewrite constraints.txt from a clean install; UPGRADE=1 takes newer versions
	scripts/lock

clean:  ## remove the environment and everything generated; the fetched model stays in its cache
	rm -rf $(VENV) out build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find mqlab kernels tests scripts notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

model: $(VENV)/.installed-base
	$(BIN)/mqlab fetch $(MODEL)

$(VENV)/.installed-%: pyproject.toml constraints.txt
	scripts/install $*
