# `make run`: train the example from nothing. `make test`: lint and tests. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
# Every process that tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test lint format clean

run: .venv/.run
	$(BIN)/python examples/digits.py

test: .venv/.test lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/.run: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[examples]'
	touch $@

.venv/.test: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[cuda,examples,test]'
	touch $@

clean:
	rm -rf .venv build out generated/*/build generated/.build-cache
	find generated -name '*.so' -delete
