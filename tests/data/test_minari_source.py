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
from numpy.testing import assert_array_equal

from data.log_cases import random_log, source
from icql.data import load_dataset
from icql.data.formats.minari_source import fetch_minari, read_minari, write_minari
from icql.errors import UserError


@pytest.fixture
def minari_dataset(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Four real episodes: terminal, cut and marked so, terminal, cut without a mark."""
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
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
    assert_array_equal(data.next_actions[lengths[0]], cut.actions[1])
    assert data.info.episode_returns == tuple(float(sum(b.rewards)) for b in minari_dataset)
    # The pendulum's actions reach ±3 and no task says otherwise: they stay as they are.
    assert np.abs(data.actions).max() > 1
    assert "lie beyond ±1: policies act in [-1, 1]" in data.info.warnings[0]


@pytest.mark.usefixtures("minari_dataset")
def test_minari_problems_are_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="test/other-v0: there is no such Minari dataset"):
        load_dataset("minari:test/other-v0")
    file = tmp_path / "test/pendulum-v0/data/main_data.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be read as a Minari dataset"):
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
    with pytest.raises(UserError, match=r"minari:a/b-v0: it cannot be fetched \(no a/b-v0\)"):
        fetch_minari("a/b-v0")
    assert capsys.readouterr().out == ""
