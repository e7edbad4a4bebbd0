# Two commands: `make sweep` sets up and runs the quickstart grid, `make test` sets up and runs the tests.
# `make test-services` installs real services (Debian's packages; as root, or with sudo) and runs what needs them.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/installed
export PATH := $(PATH):/usr/sbin

.PHONY: sweep test test-services lint lock

sweep: $(INSTALLED)
	$(VENV)/bin/python launch.py run quickstart

test: lint
	$(VENV)/bin/python -m pytest -m "not ray" -n 2 --dist loadfile
	$(VENV)/bin/python -m pytest -m "ray and not service"

test-services: $(INSTALLED)
	which bwrap chromedriver prometheus slurmctld munged && ls /usr/lib/postgresql/*/bin/initdb || \
		{ SUDO=$$(command -v sudo || true); $$SUDO apt-get update && $$SUDO apt-get install --yes \
			bubblewrap chromium chromium-driver munge postgresql prometheus slurm-wlm; }
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,services]'
	SPOT_SERVICES=1 $(VENV)/bin/python -m pytest -m "service and not ray" -n 2 --dist loadfile
	SPOT_SERVICES=1 $(VENV)/bin/python -m pytest -m "service and ray"

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
