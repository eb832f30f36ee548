# Two commands on a fresh machine: `make try` (venv, install, the main job on a real sample), `make test` (all tests).
PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: try test lint docs bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV) 2>/dev/null || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

try: $(VENV)/.installed
	$(BIN)/kvdoctor diagnose sample:vllm-saturated

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m kvdoctor.rulebook.lint

# generated pages, the command reference, and the output shown in the docs and the README
docs: $(VENV)/.installed
	$(BIN)/python docs/refresh.py

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dist build
