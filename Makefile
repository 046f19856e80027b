# make demo   set up, train ICQL on the embedded data, evaluate it, say where the results are
# make test   set up and run every check: format, lint, types, tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
STAMP  := $(VENV)/.installed

.PHONY: demo test format setup clean

setup: $(STAMP)

# rebuilt only when what is installed changes
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	rm -rf $(RUN)
	$(BIN)/icql train --preset quick --out $(RUN)
	$(BIN)/icql evaluate $(RUN) --episodes 20
	@echo "results:    $(RUN)/result.json"
	@echo "pictures:   $(RUN)/plots/"
	@echo "metrics:    $(RUN)/metrics.jsonl, and for TensorBoard: $(RUN)/tensorboard"

test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
