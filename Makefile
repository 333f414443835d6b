# make train: everything from nothing to a table of results.  make test: the whole suite.
# Needs Python 3.11 or newer and make; the rest goes into .venv, at the versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: train test test-slow lint clean
.DELETE_ON_ERROR:

train: $(VENV)/installed
	$(RUN) -m train $(ARGS)

test: lint
	$(RUN) -m pytest -n auto $(ARGS)

test-slow: $(VENV)/installed
	$(RUN) -m pytest -m slow -s $(ARGS)

lint: $(VENV)/installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

$(VENV)/installed: constraints.txt setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "expected Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[extract,test]'
	touch $@

clean:
	rm -rf $(VENV) data runs
