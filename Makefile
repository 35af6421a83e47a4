# Every target builds what it needs first: on a fresh machine one command is enough.

BIN            := .venv/bin
READY          := .venv/.ready
READY_FOR_DEMO := .venv/.ready-for-demo

.DEFAULT_GOAL := help
.PHONY: help setup demo run test soak interop lint format types bench docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Build .venv with the pinned versions and install the tools that tests need
	@scripts/setup

$(READY): pyproject.toml constraints.txt scripts/setup
	@scripts/setup

$(READY_FOR_DEMO): pyproject.toml constraints.txt scripts/setup
	@scripts/setup demo

demo: $(READY_FOR_DEMO) ## Show all of it in about a minute: kill what can be killed, then account for every message
	$(BIN)/leveret demo

run: $(READY) ## Run the broker on this machine; stop it with Ctrl-C
	$(BIN)/leveret serve

# Counting lines makes everything slower: it is done where the store is tested directly, and nowhere else.
COVERING := tests/storage tests/properties tests/faults/test_heavy_damage.py tests/faults/test_unknown_formats.py
COVER    := --cov=leveret.storage --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

test: $(READY) ## Run every test; leveret.storage must be covered whole, branches included
	$(BIN)/pytest -n 2 --dist loadfile $(COVERING) $(COVER)
	$(BIN)/pytest -n 3 --dist loadfile $(addprefix --ignore=,$(COVERING))

soak: $(READY) ## Kill everything around Spark queries, again and again; LEVERET_SOAK_ROUNDS times each
	LEVERET_SOAK=1 $(BIN)/pytest -s tests/soak tests/spark/test_sink.py tests/spark/test_killed_driver.py tests/spark/test_cluster.py

interop: $(READY) ## Run the tests with clients of all languages; those of others than Python are built first
	LEVERET_INTEROP_ALL=1 $(BIN)/pytest tests/interop

lint: $(READY) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## Format the code and mend what can be mended automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## Check the types of the package
	$(BIN)/mypy --strict src

bench: $(READY) ## Measure store, broker, toolkit, Spark side, groups and audit beside RabbitMQ, aio-pika and pika, on this machine
	$(BIN)/python -m bench.storage
	$(BIN)/python -m bench.broker
	$(BIN)/python -m bench.client
	$(BIN)/python -m bench.spark
	$(BIN)/python -m bench.groups
	$(BIN)/python -m bench.audit

docs: $(READY) ## Write the pages that are generated: docs/guide/compatibility.md, from the tests
	$(BIN)/python -m tests.compatibility

clean: ## Remove caches and build results; .venv stays
	rm -rf .interop-cache build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
