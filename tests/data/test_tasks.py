"""The task table: the paper's tasks, scores, names, and tasks of one's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from data.log_cases import SHORT, log
from icql.data import DataInfo, Transitions, get_task, list_tasks, register_task, tasks
from icql.data.tasks import find_task
from icql.errors import UserError


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
