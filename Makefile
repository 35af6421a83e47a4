# Every target builds what it needs first: on a fresh machine one command is enough.

BIN   := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup test lint format types bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Build .venv with the pinned versions and install the tools that tests need
	@scripts/setup

$(READY): pyproject.toml constraints.txt scripts/setup
	@scripts/setup

test: $(READY) ## Run every test; leveret.storage must be covered whole, branches included
	$(BIN)/pytest --cov=leveret.storage --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

lint: $(READY) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## Format the code and mend what can be mended automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## Check the types of the package
	$(BIN)/mypy --strict src

bench: $(READY) ## Measure the store on this machine
	$(BIN)/python -m bench.storage

clean: ## Remove caches and build results; .venv stays
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
