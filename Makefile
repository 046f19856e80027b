# make demo   set up; cloning, IQL and our default on the embedded data, side by side
# make test   set up and run every check: format, lint, types, tests
# make attack damage every kind of stored file and kill everything that runs (docs/reliability.md)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
# one more than there are cores: some tests wait for the processes they start
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
SMALL  := --seeds 2 --steps 20000 --evaluate-every 20000 --episodes 20 --batch-size 128 --policy.hidden 128 128
STAMP  := $(VENV)/.installed

.PHONY: demo test attack format setup clean

setup: $(STAMP)

# rebuilt only when what is installed changes
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	rm -rf $(RUN)
	$(BIN)/icql train --algo bc $(SMALL) --out $(RUN)/cloning
	$(BIN)/icql train --algo iql --hidden 128 128 $(SMALL) --out $(RUN)/iql
	$(BIN)/icql train $(SMALL) --out $(RUN)/ours
	$(BIN)/icql compare $(RUN)/cloning $(RUN)/iql $(RUN)/ours --out $(RUN)/compare.png

test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses $(WORKERS) --maxprocesses 5 --dist loadfile

attack: $(STAMP)
	$(BIN)/python -m attacks

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
