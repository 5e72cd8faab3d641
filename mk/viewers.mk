# Viewers that the tests open episodes with; without them those tests are skipped and say so.

.PHONY: viewers
viewers: setup ## rerun, @mcap/core and torchcodec, each in a folder of its own: for the tests that need them
	test -x .venv-rerun/bin/rerun || { uv venv -q .venv-rerun --python $(PY) && \
	  uv pip install -q --python .venv-rerun/bin/python 'rerun-sdk>=0.41,<0.42'; }
	test -d build/torchcodec/torchcodec || uv pip install -q --python $(PY) --target build/torchcodec --no-deps torchcodec==0.13.0
	tools/machine.sh need npm nodejs npm
	mkdir -p build/viewers && cd build/viewers && npm install --silent --no-fund --no-audit '@mcap/core@^2.2' '@mcap/support@^1'
