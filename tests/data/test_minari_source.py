"""Minari datasets: read and written as Minari's own, and problems are named."""

from __future__ import annotations

import pathlib
import sys
import warnings
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import icql
from data.log_cases import random_log, source
from data.plant import MAPPING, plant_rows, write_plant
from icql.data import get_task, load_dataset, tasks
from icql.data.datasets import convert, load_steps
from icql.data.formats.minari_source import fetch_minari, read_minari, write_minari
from icql.errors import UserError


@pytest.fixture
def minari_dataset(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Four real episodes: terminal, cut and marked so, terminal, cut without a mark."""
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.delitem(tasks._TASKS, "pendulum-test", raising=False)  # other tests register it
    env = gymnasium.make("InvertedPendulum-v5")
    env.action_space.seed(0)
    buffers = []
    for episode, limit in enumerate([1000, 2, 1000, 2]):
        observation, _ = env.reset(seed=episode)
        buffer = EpisodeBuffer(episode, None, None, [observation], [], [], [], [])
        ended = False
        while not ended and len(buffer.rewards) < limit:
            action = env.action_space.sample()
            observation, reward, ended, _, _ = env.step(action)
            buffer.observations.append(observation)
            buffer.actions.append(action)
            buffer.rewards.append(reward)
            buffer.terminations.append(ended)
            buffer.truncations.append(episode == 1 and len(buffer.rewards) == limit)
        buffers.append(buffer)
    env.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for an author and a code link
        minari.create_dataset_from_buffers(
            "test/pendulum-v0", buffers, env=env.spec, eval_env=env.spec
        )
    return buffers


@pytest.mark.parametrize("name", ["minari:test/pendulum-v0", "test/pendulum-v0", "folder"])
def test_minari_round_trip(minari_dataset: list[Any], tmp_path: pathlib.Path, name: str) -> None:
    data = load_dataset(str(tmp_path / "test/pendulum-v0") if name == "folder" else name)
    first, cut, last, _ = minari_dataset
    lengths = [len(first.rewards), 1, len(last.rewards), 1]
    assert np.bincount(data.episode).tolist() == lengths
    terminal = np.flatnonzero(data.mask == 0)
    assert terminal.tolist() == [lengths[0] - 1, sum(lengths[:3]) - 1]
    for row, buffer in zip(terminal, (first, last), strict=True):
        assert_array_equal(data.next_states[row], np.float32(buffer.observations[-1]))
    assert_array_equal(data.states[lengths[0]], np.float32(cut.observations[0]))
    assert_array_equal(data.next_actions[lengths[0]], np.float32(cut.actions[1] / 3))
    assert data.info.episode_returns == tuple(float(sum(b.rewards)) for b in minari_dataset)
    # The pendulum's action space reaches ±3: that is what -1 and 1 stand for.
    assert np.abs(data.actions).max() <= 1
    assert_allclose(data.info.signals.in_units(data.actions[:1]), first.actions[:1], rtol=1e-6)
    assert "mapped linearly to [-1, 1] from -3 … 3" in data.info.warnings[0]


@pytest.mark.usefixtures("minari_dataset")
@pytest.mark.parametrize("as_is", [False, True])
def test_a_dataset_that_names_its_environment_has_its_task(
    monkeypatch: pytest.MonkeyPatch, as_is: bool
) -> None:
    task = tasks.Task(
        "balance",
        "InvertedPendulum-v5",
        min_score=0,
        max_score=9,
        max_episode_steps=9,
        unit_actions=not as_is,
    )
    monkeypatch.setitem(tasks._TASKS, task.name, task)
    data = load_dataset("test/pendulum-v0")
    assert data.info.task == "balance"
    assert bool(np.abs(data.actions).max() > 1) == as_is  # else mapped from ±3


@pytest.mark.usefixtures("minari_dataset")
def test_a_run_on_it_is_scored_in_that_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    scores: Any = {"min_score": 0, "max_score": 9, "max_episode_steps": 9}
    task = tasks.Task("balance", "InvertedPendulum-v5", **scores)
    monkeypatch.setitem(tasks._TASKS, task.name, task)
    result = icql.train(
        "bc",
        dataset="test/pendulum-v0",
        steps=2,
        episodes=1,
        out=tmp_path / "run",
        settings={"batch_size": 4, "policy.hidden": [4]},
        quiet=True,
    )
    assert result["task"] == "balance"
    assert np.isfinite(result["score"]["mean"])
    policy = icql.load_policy(tmp_path / "run")
    assert (policy.signals.action_low, policy.signals.action_high) == ((-3,), (3,))


@pytest.mark.parametrize(
    ("env_id", "name", "task"),
    [
        ("AdroitHandDoor-v1", "D4RL/door/human-v2", "door-human-v1"),
        ("AdroitHandDoor-v1", "D4RL/door/cloned-v2", "door-cloned-v1"),
        ("Hopper-v4", "mine/hopper/first-v0", "hopper"),
        ("Hopper-v5", "mujoco/hopper/medium-v0", None),  # whose rewards differ
        ("FrankaKitchen-v1", "mine/log-v0", None),  # which of them would be a guess
    ],
)
def test_task_of_an_environment(env_id: str, name: str, task: str | None) -> None:
    found = tasks.find_env_task(env_id, name)
    assert (found and found.name) == task


@pytest.mark.usefixtures("minari_dataset")
def test_minari_problems_are_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="test/other-v0: there is no such Minari dataset"):
        load_dataset("minari:test/other-v0")
    file = tmp_path / "test/pendulum-v0/data/main_data.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be read as HDF5"):
        read_minari("test/pendulum-v0")
    (file.parent / "metadata.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a Minari dataset"):
        read_minari("test/pendulum-v0")
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UserError, match=r"not installed. pip install 'icql\[minari\]'"):
        read_minari("test/pendulum-v0")


@pytest.fixture
def minari_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def test_minari_dataset_is_minaris_own(minari_folder: pathlib.Path) -> None:
    import minari

    steps = random_log(60, recorded=True)
    write_minari("test/log-v0", source(steps))
    episodes = list(minari.load_dataset("test/log-v0").iterate_episodes())
    ends = np.flatnonzero(steps.terminals | steps.timeouts)
    assert len(episodes) == len(ends)
    assert steps.next_observations is not None
    for end, episode in zip(ends, episodes, strict=True):
        assert len(episode.observations) == len(episode.rewards) + 1
        assert_array_equal(episode.observations[-1], steps.next_observations[end])
        assert bool(episode.terminations[-1]) == steps.terminals[end]
        assert bool(episode.truncations[-1]) != steps.terminals[end]
    assert (minari_folder / "test" / "log-v0").is_dir()


@pytest.mark.usefixtures("minari_folder")
def test_minari_keeps_task_space_and_units(tmp_path: pathlib.Path) -> None:
    import minari

    log = write_plant(tmp_path / "plant.csv", plant_rows(3, 10))
    (tmp_path / "plant.csv.toml").write_text(MAPPING)
    done = convert(log, "minari:test/plant-v0")
    assert done["identical"]
    again = load_dataset("minari:test/plant-v0")
    assert again.info.signals == load_steps(log).info.signals
    assert again.info.task is None
    box = minari.load_dataset("test/plant-v0").action_space
    assert (box.low.tolist(), box.high.tolist()) == ([-1, -1], [1, 1])

    jumps = replace(source(random_log(60)), task=get_task("hopper-medium-v2"))
    write_minari("test/jump-v0", jumps)
    dataset = minari.load_dataset("test/jump-v0")
    assert load_dataset("minari:test/jump-v0").info.task == "hopper-medium-v2"
    assert dataset.spec.env_spec.id == "Hopper-v4"
    steps = replace(jumps.steps, actions=3 * jumps.steps.actions)
    write_minari("test/wide-v0", replace(jumps, steps=steps, task=None))
    assert np.isinf(minari.load_dataset("test/wide-v0").action_space.high).all()


@pytest.mark.usefixtures("minari_folder")
def test_minari_problems_of_writing_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import minari

    steps = random_log(30)
    for name in ("no id!", "../escape-v0"):
        with pytest.raises(UserError, match=f"minari:{name}: this is no Minari id"):
            write_minari(name, source(steps))
    jump = replace(steps, next_observations=np.full_like(steps.observations, 7))
    with pytest.raises(UserError, match=r"the next observation of row .* yet no episode ends"):
        write_minari("test/log-v0", source(jump))

    write_minari("test/log-v0", source(steps))
    before = load_dataset("minari:test/log-v0").content_hash()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(minari, "create_dataset_from_buffers", full)
        with pytest.raises(UserError, match=r"it cannot be written \(No space left\)"):
            write_minari("test/log-v0", source(random_log(30, 1)), force=True)
    assert load_dataset("minari:test/log-v0").content_hash() == before

    def offline(name: str) -> None:
        print("fetching")
        raise ValueError(f"no {name}")

    monkeypatch.setattr(minari, "download_dataset", offline)
    with pytest.raises(
        UserError, match=r"minari:test/none-v0: it cannot be fetched \(no test/none-v0\)"
    ):
        fetch_minari("test/none-v0")
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("minari_dataset")
def test_no_other_file_is_read(tmp_path: pathlib.Path) -> None:
    import h5py

    path, other = tmp_path / "test/pendulum-v0/data/main_data.hdf5", tmp_path / "other.hdf5"
    with h5py.File(path, "a") as file, h5py.File(other, "w") as elsewhere:
        elsewhere["rewards"] = file["episode_0/rewards"][()]
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink(other, "/rewards")
    with pytest.raises(UserError, match="`rewards` is a link to somewhere else"):
        load_dataset("minari:test/pendulum-v0")
