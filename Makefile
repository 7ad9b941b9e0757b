PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test attack docs reference vendor format clean

demo: $(VENV)/installed
	$(BIN)/torchcaps demo

test: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -W error -m torchcaps.cli.reference build/reference
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

attack: $(VENV)/installed-dev
	TORCHCAPS_ATTACK=500 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rP --durations=10 tests/attack tests/train/test_results.py

docs: $(VENV)/installed-dev
	$(BIN)/python -m torchcaps.cli.catalog
	$(BIN)/python -m torchcaps.cli.docs README.md docs/*.md
	$(BIN)/python -m torchcaps.cli.reference build/reference

reference: $(VENV)/installed-dev
	$(BIN)/python -m torchcaps.cli.reference build/reference

vendor: $(VENV)/installed
	$(BIN)/python -m torchcaps.cli.vendor

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
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
