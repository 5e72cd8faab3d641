# Every command that a person or CI types; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# torch is no part of the locks: pip installs it first, from whatever your index serves under this requirement.
TORCH ?= torch==2.13.0
PYTHON ?= python3.11
PY := .venv/bin/python
# A wall around one whole run of pytest; each test has its own deadline long before.
WALL_S ?= 5000
PYTEST_ARGS ?=
BENCH_ARGS ?= --quick
export TORCH PYTHON
export LC_ALL := C.UTF-8
export ANSIBLE_NOCOWS := 1
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Without compiled modules every start of Python would compile them again.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- machine

.PHONY: setup
setup: ## make or refresh .venv: torch by pip, the rest from requirements/all.txt, our six distributions editable
	@tools/machine.sh setup

.PHONY: setup-airflow
setup-airflow: ## make or refresh .venv-airflow from requirements/airflow.txt
	@tools/machine.sh setup-airflow

.PHONY: doctor
doctor: ## what this machine lacks, and how to get it
	@tools/machine.sh doctor

.PHONY: lock
lock: setup ## write requirements/*.txt anew from the dependency lists (LOCK_ARGS=--upgrade moves the pins)
	$(PY) tools/lock.py $(LOCK_ARGS)

# ---- checks

LINTS := lint-ruff lint-format lint-types lint-floors lint-yaml lint-ansible
# Silent if clean; if not, what the tool said.
check = @said=$$($(1) 2>&1) || { printf '%s: red\n%s\n' $@ "$$said"; exit 1; }; echo "$@: clean"

.PHONY: lint
lint: setup ## every static check, two at a time; all of them report
	@start=$$SECONDS; $(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target $(LINTS); \
	echo "lint: clean in $$((SECONDS - start)) s"

.PHONY: $(LINTS)
lint-ruff:
	$(call check,$(PY) -m ruff check .)
lint-format:
	$(call check,$(PY) -m ruff format --check .)
lint-types:
	$(call check,$(PY) -m mypy $(addsuffix /src,core control agents pipelines loaders training) tools benchmarks demo \
		&& for newer in 3.12 3.13; do $(PY) -m mypy --python-version $$newer agents/src || exit 1; done)
lint-floors:
	$(call check,.venv/bin/lint-imports --no-cache)
lint-yaml:
	$(call check,.venv/bin/yamllint --strict .)
lint-ansible:
	$(call check,.venv/bin/ansible-lint --offline -q && $(PY) tools/role_readme.py --check roles)

.PHONY: test
test: lint ## lint, then the layers unit, contract, integration, cluster, gpu in one run
	timeout --foreground --kill-after=30 $(WALL_S) $(PY) -m pytest --junitxml=build/test.xml $(PYTEST_ARGS)

.PHONY: full-%
full-%: setup ## the long suite of one area, e.g. make full-catalog; log the run in docs/full-runs.md
	$(PY) -m pytest -m full --area=$* --junitxml=build/full-$*.xml $(PYTEST_ARGS)

# ---- things to see

.PHONY: demo
demo: demo-local ## the whole thing in small, on this machine

.PHONY: bench
bench: setup ## every benchmark, drawn in docs/benchmarks.md (BENCH_ARGS= for the long form)
	$(PY) benchmarks/run_all.py $(BENCH_ARGS)

.PHONY: clean
clean: ## remove what can be made again, except the virtual environments
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .ansible
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

include mk/cluster.mk
include mk/demo.mk
include mk/viewers.mk
