# `make run`: train the example from nothing. `make test`: lint and tests. Both set up .venv themselves.
# `make torch TORCH=2.14.1`: what depends on PyTorch, with another version than the tests' own, in an environment apart.
PYTHON ?= python3
TORCH ?= 2.15.0
BIN := .venv/bin
# Every process that tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test torch lint format clean

run: .venv/.run
	$(BIN)/python examples/digits.py

test: .venv/.test lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

torch:
	$(PYTHON) -m venv --clear .venv-torch
	.venv-torch/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[examples,test]'
	.venv-torch/bin/python -m pip install --quiet --no-compile torch==$(TORCH)
	.venv-torch/bin/python -m pytest -n 2 --dist loadfile tests/frontends tests/test_torch_training.py \
		tests/codegen/test_autograd.py tests/codegen/test_planned_arguments.py tests/codegen/test_planned_calls.py \
		tests/codegen/test_planned_memory.py tests/codegen/test_replacement.py

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
	rm -rf .venv .venv-torch build out generated/*/build generated/.build-cache
	find generated -name '*.so' -delete
