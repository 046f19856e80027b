"""A log of one's own from end to end: units in, units out, whatever the units are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import icql
from data.plant import MAPPING, plant_rows, write_plant
from icql.data.signals import Signals
from icql.training.run_folder import RunFolder

TINY: Any = {"batch_size": 8, "policy.hidden": [8]}
RUN = {"log_every": 10, "checkpoint_every": 10}


def train(dataset: Path | str, out: Path, algo: str = "bc", **more: Any) -> dict[str, Any]:
    given: Any = {"steps": 20, "settings": TINY, "run": RUN, "episodes": 0, **more}
    return icql.train(algo, dataset=str(dataset), out=out, quiet=True, **given)


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plant") / "plant.csv"
    path.with_name("plant.csv.toml").write_text(MAPPING)
    return write_plant(path, plant_rows(4, 30))


@pytest.fixture(scope="module")
def run(plant: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    train(plant, out)
    return out


# --- actions ------------------------------------------------------------------------------------


def test_actions_come_back_in_the_units_of_the_log(plant: Path, run: Path) -> None:
    policy, states = icql.load_policy(run), icql.load_dataset(plant).states
    raw = policy.act(states, normalised=True)
    assert (np.abs(raw) <= 1).all()
    acted = policy.act(states)
    assert_allclose(acted, np.array([0, 0]) + (raw + 1) / 2 * np.array([100, 5]), rtol=1e-5)
    assert acted[:, 0].max() > 5  # a valve in percent, not in [-1, 1]
    assert_array_equal(policy.act(states[3]), policy.act(states[3:4])[0])


def test_a_run_records_what_its_numbers_are(plant: Path, run: Path) -> None:
    recorded = json.loads((run / "run.json").read_text())["signals"]
    assert recorded["action"] == ["valve", "heater"]
    assert (recorded["action_low"], recorded["action_high"]) == ([0, 0], [100, 5])
    assert recorded["units"] == {"pressure": "Pa", "price": "EUR", "valve": "%"}
    assert recorded["categories"] == {"mode": ["auto", "manual", "off"]}
    signals = icql.load_dataset(plant).info.signals
    assert icql.load_policy(run).signals == RunFolder(run).signals == signals


def test_a_run_without_bounds_acts_as_it_always_did(tmp_path: Path) -> None:
    train("hopper-mini", tmp_path / "run")
    policy = icql.load_policy(tmp_path / "run")
    states = icql.load_dataset("hopper-mini").states[:5]
    assert not policy.signals
    assert_array_equal(policy.act(states), policy.act(states, normalised=True))
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    del manifest["signals"]  # as runs were written before
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest))
    assert icql.load_policy(tmp_path / "run").signals == Signals()
