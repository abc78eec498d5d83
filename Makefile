# Every target creates or reuses .venv; only python3.11 (with venv) and make must be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
WORKERS ?= 2

.PHONY: help env demo test test-fast test-gpu soak lint format bench bench-env docs wheel constraints clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

env:  ## create or refresh .venv
	@$(PYTHON) tools/setup_env.py

demo: env  ## prefill engine, decode engine and proxy on this machine, tokens compared
	$(BIN)/pdkv demo

test: env  ## all tests, real engines included; 85 minutes at most
	$(BIN)/python -m pytest -m "not engine" -n $(WORKERS) --session-timeout=1500
	$(BIN)/python -m pytest -m engine --session-timeout=3600

test-fast: env  ## tests without engines
	$(BIN)/python -m pytest -m "not engine and not slow" -n $(WORKERS)

test-gpu: env  ## tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

soak: env  ## a million simulated schedules (2 hours), then half an hour of load on a real pair; 8 GB
	$(BIN)/python -m tests.simulator --count 1000000 --jobs 2
	$(BIN)/python -m tests.soak --minutes 30

lint: env  ## style, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/architecture

format: env  ## rewrite files to style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-env: env
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"

bench: bench-env  ## benchmarks, 45 minutes on a quiet machine; the last needs root and iproute2
	$(BIN)/python -m benchmarks.bench_codec
	$(BIN)/python -m benchmarks.bench_raw_codec
	$(BIN)/python -m benchmarks.bench_transport
	$(BIN)/python -m benchmarks.bench_step
	$(BIN)/python -m benchmarks.bench_ttft

docs: env  ## rewrite the generated parts of README.md and ARCHITECTURE.md
	$(BIN)/python -m tools.render_docs

wheel: env  ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

constraints: bench-env  ## pin what is installed now, after the tests have passed
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v '^triton==' > constraints.txt

clean:  ## remove the environment and caches
	rm -rf .venv build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
