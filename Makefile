PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo lint test test-slow test-all nightly cluster attack mutants docs screenshots vendor dist format clean

demo: $(VENV)/installed
	$(BIN)/torchcaps demo

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/pyright

test: lint
	$(PYTEST)

test-slow: $(VENV)/installed-dev
	$(PYTEST) -m slow

test-all: test test-slow

nightly: test-all cluster attack mutants

# a SLURM cluster (root, slurm-wlm and munge; skipped without) and a Ray cluster on this machine
cluster: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[ray]'
	$(PYTEST) -n 0 -m "slurm or ray" tests/places

attack: $(VENV)/installed-dev
	TORCHCAPS_ATTACK=500 $(PYTEST) -m "slow or not slow" -rP --durations=10 tests/attack tests/papers/test_records.py

mutants: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.mutants

docs: $(VENV)/installed-dev
	$(BIN)/python -m torchcaps.cli.catalog
	$(BIN)/python scripts/fill_tables.py README.md docs
	$(BIN)/python scripts/site.py build/site

screenshots: $(VENV)/installed-dev
	$(BIN)/python scripts/screenshots.py build/site build/screenshots

vendor:
	$(PYTHON) scripts/vendor.py

dist: vendor
	$(PYTHON) -m venv build/dist-env
	build/dist-env/bin/python -m pip install --quiet build twine
	rm -rf dist
	build/dist-env/bin/python -m build
	build/dist-env/bin/twine check --strict dist/*
	$(PYTHON) scripts/check_dist.py dist

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[explore]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
