# make demo   set up; cloning, IQL and our default on the embedded data, side by side
# make results  docs/results.md and its picture from the records in results/
# make test   set up and run every check: format, lint, types, tests
# make attack damage every kind of stored file and kill everything that runs (docs/reliability.md)
# make audit  compare what is installed with requirements-dev.lock and with what pip recorded
# make wheel-check  build the wheel, install it alone with requirements.lock, run it
# make lock   write the locks and docs/licences.md anew from constraints.txt
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
# one more than there are cores: some tests wait for the processes they start
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
SMALL  := --seeds 2 --steps 20000 --evaluate-every 20000 --episodes 20 --batch-size 128 --policy.hidden 128 128
STAMP  := $(VENV)/.installed

.PHONY: demo results test attack audit wheel-check lock format setup clean

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

results: $(STAMP)
	$(BIN)/icql bench report results --out docs/results.md --picture docs/results.svg

test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses $(WORKERS) --maxprocesses 5 --dist loadfile

audit: $(STAMP)
	$(BIN)/python scripts/supply_chain.py audit

wheel-check: $(STAMP)
	$(BIN)/python scripts/wheel_check.py

lock: $(STAMP)
	$(BIN)/python scripts/supply_chain.py lock
	$(BIN)/python scripts/supply_chain.py licences

attack: $(STAMP)
	$(BIN)/python -m attacks

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
