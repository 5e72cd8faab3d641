# Every command a person or CI types. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
PYTEST_ARGS ?=

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: lint
lint: ## ruff, mypy, floors, yamllint, ansible-lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

.PHONY: test
test: lint ## lint, then every test that needs no long time
	$(PY) -m pytest $(PYTEST_ARGS)
