# The whole way on one machine. DEMO_DIR names another folder, DEMO_ARGS adds options of `python -m demo.run`.
DEMO_DIR ?= build/demo
DEMO_ARGS ?=

.PHONY: demo-local
demo-local: ## the whole way on this machine: vendor files to training steps, and a report
	@[[ -w . ]] || { echo "make demo-local: the checkout $(CURDIR) is read-only: copy it to a folder of your own, or if it has a .venv: .venv/bin/python -m demo.run --dir /path" >&2; exit 1; }
	@tools/machine.sh setup-python || { echo "make demo-local: set-up failed, the reason stands above; without a network it needs a .venv that was made before" >&2; exit 1; }
	@$(PY) -m demo.run --dir "$(DEMO_DIR)" $(DEMO_ARGS)

.PHONY: clean-demo
clean-demo: ## stop and remove everything that the demo made
	@[[ -x $(PY) ]] || { echo "make clean-demo: it needs .venv to stop the servers properly: make setup" >&2; exit 1; }
	@$(PY) -m demo.clean --dir "$(DEMO_DIR)"
