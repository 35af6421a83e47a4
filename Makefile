# Every target builds what it needs first: on a fresh machine one command is enough.

BIN            := .venv/bin
READY          := .venv/.ready
READY_FOR_DEMO := .venv/.ready-for-demo
READY_FOR_DEV  := .venv/.ready-for-dev
READY_FOR_RUN  := .venv/.ready-for-run

# Tests start hundreds of processes: without compiled files each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo run test test-all soak interop lint format types bench docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Build .venv with the pinned versions and install the tools that tests need
	@scripts/setup

$(READY): pyproject.toml constraints.txt scripts/setup
	@scripts/setup

.venv/.ready-for-%: pyproject.toml constraints.txt scripts/setup
	@scripts/setup $*

demo: $(READY_FOR_DEMO) ## Show all of it in about a minute: kill what can be killed, then account for every message
	$(BIN)/leveret demo

run: $(READY_FOR_RUN) ## Run the broker on this machine; stop it with Ctrl-C
	$(BIN)/leveret serve

# Twice as many workers as cores: most tests wait for a process, a disk or a clock for two thirds of their time.
PYTEST := $(BIN)/pytest -n 4 --dist loadgroup
ARGS   ?=

test: $(READY) ## Prove every rule once, in about ten minutes; ARGS="-k confirm" runs a part
	$(PYTEST) $(ARGS)

# Counting lines makes everything slower: it is done where the store is tested directly, and nowhere else.
COVERING := tests/storage tests/properties tests/faults/test_heavy_damage.py tests/faults/test_unknown_formats.py
COVER    := --cov=leveret.storage --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
# Other random histories each time; `make test-all SEED=n` repeats a run.
SEED     ?= $(shell date +%s)
FULL     := --full --seed $(SEED) --hypothesis-seed $(SEED)

test-all: $(READY) ## Prove everything: clusters, all clients, thousands of histories; leveret.storage covered whole
	$(PYTEST) $(FULL) $(COVER) $(COVERING)
	$(PYTEST) $(FULL) $(addprefix --ignore=,$(COVERING)) $(ARGS)

soak: $(READY) ## Kill everything around Spark queries, again and again; LEVERET_SOAK_ROUNDS times each
	LEVERET_SOAK=1 $(BIN)/pytest -s --full tests/soak tests/spark/test_sink.py tests/spark/test_killed_driver.py tests/spark/test_cluster.py

interop: $(READY) ## Run the tests with clients of all languages; those of others than Python are built first
	$(BIN)/pytest --full tests/interop

lint: $(READY_FOR_DEV) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY_FOR_DEV) ## Format the code and mend what can be mended automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY_FOR_DEV) ## Check the types of the package
	$(BIN)/mypy --strict src

bench: $(READY) ## Measure store, broker, toolkit, Spark side, groups and audit beside RabbitMQ, aio-pika and pika, on this machine
	$(BIN)/python -m bench.storage
	$(BIN)/python -m bench.broker
	$(BIN)/python -m bench.client
	$(BIN)/python -m bench.spark
	$(BIN)/python -m bench.groups
	$(BIN)/python -m bench.audit

docs: $(READY) ## Write what is generated in docs/: compatibility.md, configuration.md, the tables in ARCHITECTURE.md
	$(BIN)/python -m tests.compatibility
	$(BIN)/python -m tests.configuration_page
	$(BIN)/python -m tests.module_tables

clean: ## Remove caches and build results; .venv stays
	rm -rf .interop-cache build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
