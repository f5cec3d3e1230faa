PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SAMPLE := tests/data/en-speech-jfk.wav

.PHONY: demo test coverage style types bench docs clean

# Stream a real recording through an embedded daemon and show its captions.
demo: $(STAMP)
	$(BIN)/whisper-stream $(SAMPLE)

test: $(STAMP)
	$(BIN)/python -m pytest

# The suite with the branches it takes counted; below the floor in pyproject.toml it fails.
coverage: $(STAMP)
	$(BIN)/python -m pytest --cov --cov-report=term

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy sees the package as it is installed: built into .typecheck, without installing it, the tests
# beside it. So the name of this folder does not matter.
types: $(STAMP)
	rm -rf .typecheck
	$(BIN)/python -c "from setuptools import setup; setup()" -q build_py --build-lib .typecheck
	cp -r tests .typecheck/tests
	cd .typecheck && $(abspath $(BIN))/mypy --config-file ../pyproject.toml -p whisper_stream -p tests

bench: $(STAMP)
	$(BIN)/whisper-stream bench tests/data

# The documentation as a site, in site/.
docs: $(STAMP)
	$(BIN)/python -m mkdocs build --strict --quiet

# The pinned torch is a CPU build where the index has one; see README for GPUs.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .typecheck build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
