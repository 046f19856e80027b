"""Discrete actions: from every format to one-hot rows, a policy that chooses, and back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

import icql
from icql.data import Task, list_tasks, load_dataset, register_task
from icql.data.datasets import convert
from icql.errors import UserError

TASK = Task("cart-pole-test", "CartPole-v1", min_score=0.0, max_score=500.0, max_episode_steps=500)


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    """CartPole by a controller that balances, with a tenth of its choices at random."""
    if TASK.name not in list_tasks():
        register_task(TASK)
    rng, env = np.random.default_rng(0), gymnasium.make("CartPole-v1")
    found: dict[str, list[Any]] = {name: [] for name in ("s", "a", "r", "end", "cut")}
    s, _ = env.reset(seed=0)
    for i in range(1500):
        a = int(rng.integers(2)) if rng.random() < 0.1 else int(s[2] + 0.3 * s[3] > 0)
        after, r, terminated, truncated, _ = env.step(a)
        cut = truncated or i == 1499
        for name, value in zip(found, (s, a, r, terminated, cut), strict=True):
            found[name].append(value)
        s = env.reset(seed=i)[0] if terminated or truncated else after
    env.close()
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    return dict(zip(names, map(np.asarray, found.values()), strict=True))


def npz(path: Path, log: dict[str, Any]) -> Path:
    np.savez(path, **log)
    return path


def csv(path: Path, log: dict[str, Any], words: tuple[str, str] = ("left", "right")) -> Path:
    rows = zip(*log.values(), strict=True)
    lines = ["x,v,angle,spin,push,reward,end,cut"]
    lines += [
        ",".join([*map(str, s), words[a], str(r), str(int(end)), str(int(cut))])
        for s, a, r, end, cut in rows
    ]
    path.write_text("\n".join(lines))
    path.with_suffix(".toml").write_text(
        'observation = ["x", "v", "angle", "spin"]\naction = "push"\nreward = "reward"\n'
        'terminal = "end"\ntruncated = "cut"\ncategories = ["push"]\n'
    )
    return path


def taken(log: dict[str, Any]) -> np.ndarray:
    """The choices of whole transitions: a step that was cut off has no successor here."""
    return log["actions"][log["terminals"] | ~log["timeouts"]]


def test_whole_numbers_are_choices_in_every_format(log, tmp_path):
    first = load_dataset(str(npz(tmp_path / "log.npz", log)))
    assert first.info.signals.choices == ("0", "1")
    assert "actions of 2 choices" in repr(first)
    np.testing.assert_array_equal(first.actions, np.eye(2, dtype=np.float32)[taken(log)])
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, array in log.items():
            file[name] = array
    assert load_dataset(str(tmp_path / "log.hdf5")).info.signals.choices == ("0", "1")
    for suffix in (".hdf5", ".npz", ".parquet", ".icql"):
        convert(str(tmp_path / "log.npz"), str(tmp_path / f"copy{suffix}"))
        again = load_dataset(str(tmp_path / f"copy{suffix}"))
        assert again.info.signals.choices == ("0", "1")
        np.testing.assert_array_equal(again.actions[:1000], first.actions[:1000])


def test_a_column_of_words_is_an_action_of_choices(log, tmp_path):
    data = load_dataset(str(csv(tmp_path / "log.csv", log)))
    assert data.info.signals.choices == ("left", "right")
    assert data.info.signals.action == ("push=left", "push=right")
    np.testing.assert_array_equal(data.actions.argmax(1), taken(log))
    mapping = tmp_path / "log.toml"
    mapping.write_text(mapping.read_text() + "action_bounds = {push = [0, 1]}\n")
    with pytest.raises(UserError, match="'push' is a choice, which goes with no other action"):
        load_dataset(str(tmp_path / "log.csv"))


def test_minari_choices(log, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    s = log["observations"][:4]
    episode = EpisodeBuffer(
        0, None, None, list(s), [1, 0, 1], [1.0] * 3, [False, False, True], [False] * 3
    )
    env = gymnasium.make("CartPole-v1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "test/cart-v0",
            [episode],
            env=env.spec,
            action_space=env.action_space,
            observation_space=env.observation_space,
        )
    data = load_dataset("test/cart-v0")
    assert data.info.signals.choices == ("0", "1")
    assert data.info.task == TASK.name
    np.testing.assert_array_equal(data.actions, [[0, 1], [1, 0], [0, 1]])


@pytest.mark.parametrize("actions", [np.array([0, 5000]), np.array([-1, 3])])
def test_numbers_that_are_no_choices_are_said_so(actions, tmp_path):
    log = {
        "observations": np.zeros((2, 1)),
        "actions": actions[:, None],
        "rewards": np.zeros(2),
        "terminals": np.ones(2),
        "timeouts": np.zeros(2),
    }
    path = npz(tmp_path / "log.npz", log)
    if actions.min() >= 0:
        with pytest.raises(UserError, match="from 0 to 5000, not choices among 1,000 at most"):
            load_dataset(str(path))
    else:  # real numbers that happen to be whole
        assert load_dataset(str(path)).info.signals.choices == ()


def test_a_policy_chooses_in_its_environment(log, tmp_path):
    run = icql.train(
        "bc",
        task=TASK.name,
        dataset=str(csv(tmp_path / "log.csv", log)),
        steps=300,
        out=tmp_path / "run",
        settings={"policy.hidden": [32], "policy.learning_rate": 3e-3},
        run={"episodes": 2, "evaluate_every": 300},
        quiet=True,
    )
    assert run["score"]["mean"] > 20  # of 100 at 500 steps; a random policy has 4
    policy = icql.load_policy(tmp_path / "run")
    s = log["observations"][:50]
    chosen = policy.act(s)
    assert chosen.dtype.kind == "i"
    assert policy.act(s[0]) == chosen[0]
    assert (chosen == (s[:, 2] + 0.3 * s[:, 3] > 0)).mean() > 0.8
    np.testing.assert_array_equal(policy.act(s, normalised=True), np.eye(2)[chosen])
    assert policy.signals.choices == ("left", "right")


def test_without_algo_choices_get_a_method_that_can_choose(log, tmp_path):
    rng = np.random.default_rng(0)
    wide = {**log, "actions": rng.integers(0, 2, len(log["actions"]))}
    run = icql.train(
        dataset=str(npz(tmp_path / "log.npz", wide)),
        steps=2,
        out=tmp_path / "run",
        run={"episodes": 0},
        quiet=True,
    )
    assert run["algo"] == "iql"
    with pytest.raises(UserError, match="are 2 choices"):
        icql.train(
            "td3bc", dataset=str(tmp_path / "log.npz"), steps=2, out=tmp_path / "td3", quiet=True
        )
