# Two commands are enough: `make demo` and `make test`. Each sets up all it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check format docs conformance benchmarks clean

demo: $(STAMP)
	$(BIN)/skillserver index
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/pytest

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m skillserver.generated --check
	$(BIN)/pytest -m "not torch and not slow"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m skillserver.generated

docs: $(STAMP)
	$(BIN)/python -m skillserver.generated

benchmarks: $(STAMP)
	$(BIN)/python benchmarks/run.py

# pip is upgraded first: dependency groups need 25.1.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable . --group test --group check
	touch $(STAMP)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
