"""The task table: the paper's tasks, scores, names, and tasks of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from data.log_cases import SHORT, log
from icql import plugins
from icql.data import DataInfo, Transitions, get_task, list_tasks, register_task, tasks
from icql.data.tasks import GROUP, find_task
from icql.errors import UserError
from icql.evaluation.environments import make_env
from pendulum import make_data


def test_the_papers_18_tasks() -> None:
    paper = [get_task(name) for name in list_tasks() if get_task(name).transitions is not None]
    assert len(paper) == 18
    assert sum(task.transitions or 0 for task in paper) == 12_687_515
    assert get_task("halfcheetah-medium-v2").transitions == 999_000
    assert {task.max_episode_steps for task in paper if task.domain == "gymnasium"} == {1000}
    mixed = get_task("kitchen-mixed-v0")
    assert mixed.kitchen_tasks == ("microwave", "kettle", "bottom burner", "light switch")
    assert get_task("hopper-mini").env_id == "Hopper-v4"


def test_normalized_score() -> None:
    door = get_task("door-human-v1")
    assert door.normalized_score(-56.512833) == 0
    assert door.normalized_score(2880.5693087298737) == 100
    assert_array_equal(
        get_task("kitchen-mixed-v0").normalized_score(np.array([0.0, 1.0, 4.0])), [0, 25, 100]
    )


def test_kitchen_scores_the_most_tasks_done_others_the_sum() -> None:
    steps = replace(log(6, terminals=[2, 5]), rewards=np.float32([0, 1, 1, 2, 4, 3]))
    kitchen, hopper = get_task("kitchen-complete-v0"), get_task("hopper-mini")
    info = Transitions.from_steps(steps, task=kitchen).info
    assert (info.task, info.episode_scores) == ("kitchen-complete-v0", (1.0, 4.0))
    assert kitchen.behaviour_score(info) == 62.5
    assert info.episode_returns == (2.0, 9.0)
    info = Transitions.from_steps(steps, task=hopper).info
    assert info.episode_scores == (2.0, 9.0)
    assert hopper.behaviour_score(DataInfo("empty")) is None


def test_unknown_task_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'hopper-medium-v2'"):
        get_task("hoper-medium-v2")


def test_register_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_TASKS", dict(tasks._TASKS))
    register_task(SHORT)
    assert get_task("short") is SHORT
    with pytest.raises(UserError, match="'short' is registered already"):
        register_task(SHORT)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("kitchen-complete-v0.hdf5", "kitchen-complete-v0"),
        ("some/folder/hopper_medium_replay-v2.hdf5", "hopper-medium-replay-v2"),
        ("hopper-medium-v2-first-half.npz", "hopper-medium-v2"),
        ("mini_kitchen_microwave_kettle_light_slider-v0.hdf5", "kitchen-complete-v0"),
        ("hopper-mini", "hopper-mini"),
        ("D4RL/door/human-v2", None),
        ("hopper-medium-v20.hdf5", None),
        ("hopper.npz", "hopper"),
        ("hopper-medium-replay.npz", None),
        ("my-log.hdf5", None),
    ],
)
def test_task_from_a_file_name(name: str, task: str | None) -> None:
    found = find_task(name)
    assert (found and found.name) == task


# --- What the kitchen adds to what it shows ---------------------------------------------------


def test_noise_of_the_kitchen() -> None:
    """D4RL's: amplitudes of qpos 0 to 29 in its franka_config.xml, a tenth of each; no goal."""
    noise = np.asarray(get_task("kitchen-mixed-v0").noise)
    assert noise.shape == (60,)
    coarse = [*range(9), 20, 21, 22, 26, 27, 28]
    fine = [9, 10, 17, 18, 19, 23, 24, 25, 29]
    assert_array_equal(np.flatnonzero(noise == 0.01), coarse)
    assert_array_equal(np.flatnonzero(noise == 0.0005), fine)
    assert_array_equal(np.flatnonzero(noise == 0.00005), range(11, 17))
    assert (noise[30:] == 0).all()
    assert {name for name in list_tasks() if get_task(name).noise} == {
        name for name in list_tasks() if name.startswith("kitchen")
    }


def test_noise_of_the_kitchen_is_what_the_simulator_shows() -> None:
    pytest.importorskip("gymnasium_robotics")
    task = get_task("kitchen-complete-v0")
    env = make_env(task)
    shown = np.stack([env.reset(seed=seed)[0] for seed in range(60)]).astype(np.float64)
    env.close()
    half = (shown.max(0) - shown.min(0)) / 2
    noise = np.asarray(task.noise)
    # of 60 uniform numbers the range is nearly the whole; observations are float32
    assert (half <= 1.01 * noise + 2e-7).all()
    assert (half >= 0.8 * noise - 2e-7).all()


# --- Tasks of installed packages ------------------------------------------------------------


OTHERS = (replace(SHORT, name="other-a-v0"), replace(SHORT, name="other-b-v0"))


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module whose `what` an entry point names; nothing of it stays."""
    module = ModuleType("offers_tasks")
    point = EntryPoint("any", "offers_tasks:what", GROUP)
    monkeypatch.setitem(sys.modules, "offers_tasks", module)
    monkeypatch.setattr(tasks, "_TASKS", dict(tasks._TASKS))
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point] if group == point.group else []
    )
    tasks._load_entry_points.cache_clear()
    yield module
    tasks._load_entry_points.cache_clear()


@pytest.mark.parametrize("what", [SHORT, [SHORT], (SHORT, *OTHERS)], ids=["one", "list", "tuple"])
def test_tasks_of_packages_are_known(offered: ModuleType, what: Any) -> None:
    offered.what = what
    assert get_task("hopper-mini").env_id == "Hopper-v4"
    assert "short" not in tasks._TASKS  # nothing is imported for a name that is known
    assert get_task("short") is SHORT
    assert list_tasks()[-1] == (what[-1] if isinstance(what, tuple) else SHORT).name


def test_files_speak_of_tasks_of_packages(offered: ModuleType) -> None:
    offered.what = [*OTHERS]
    assert find_task("other_b-v0-night.npz") == OTHERS[1]


def test_a_package_may_register_its_task_itself(offered: ModuleType) -> None:
    offered.what = SHORT
    register_task(SHORT)
    assert list_tasks().count("short") == 1


@pytest.mark.parametrize("what", [None, "short", [SHORT, 3]], ids=["missing", "text", "mixed"])
def test_entry_points_that_name_no_task(offered: ModuleType, what: Any) -> None:
    if what is not None:
        offered.what = what
    with pytest.raises(UserError, match=r"icql.tasks: the entry point 'offers_tasks:what' .*Mend"):
        get_task("short")
    with pytest.raises(UserError, match="Mend or uninstall"):
        list_tasks()


def test_the_command_line_knows_tasks_of_packages(tmp_path: Path) -> None:
    """An installed package, as `pip` leaves it: a module and its dist-info."""
    (tmp_path / "balance.py").write_text(
        "from icql.data import Task\n"
        "tasks = [Task('balance-v0', 'InvertedPendulum-v5', min_score=0.0, max_score=200.0,\n"
        "              max_episode_steps=200)]\n"
    )
    info = tmp_path / "balance-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: balance\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[icql.tasks]\nmine = balance:tasks\n")
    make_data(tmp_path / "balance-v0.npz", steps=300)
    paths = os.pathsep.join([str(tmp_path), *sys.path])

    def ask(*argv: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "icql", *argv, "--json"]
        environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    (listed,) = (task for task in ask("data", "list")["tasks"] if task["name"] == "balance-v0")
    assert (listed["domain"], listed["can_be_fetched"]) == ("gymnasium", False)
    small = ("--policy.hidden", "8", "8", "--batch-size", "8")
    run = ("--dataset", "balance-v0.npz", "--steps", "2", "--episodes", "1", "--out", "run")
    assert len(ask("train", "--algo", "bc", *run, *small)["score"]["per_seed"]) == 1
