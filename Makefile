# Two commands: `make sweep` sets up and runs the quickstart grid, `make test` sets up and runs the tests.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/installed

.PHONY: sweep test lint lock

sweep: $(INSTALLED)
	$(VENV)/bin/python launch.py run quickstart

test: lint
	$(VENV)/bin/python -m pytest -m "not ray" -n 2 --dist loadfile
	$(VENV)/bin/python -m pytest -m ray

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

lock: $(INSTALLED)
	{ head -n 1 constraints.txt; $(VENV)/bin/pip freeze --exclude-editable | sed 's/+cpu//' | sort; } > constraints.new
	mv constraints.new constraints.txt

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@
