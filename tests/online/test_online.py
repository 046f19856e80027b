"""Online training and D4RL's protocol on a toy environment, and the dataset that ships."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icql.data import load_dataset
from icql.data.formats.npz import read_npz
from icql.data.tasks import Task, get_task
from icql.data.transitions import Steps
from icql.errors import UserError
from icql.online import (
    OnlineRun,
    OnlineSettings,
    Recipe,
    collect,
    sac_oracle,
    train_online,
)
from icql.online.envs import EnvGroup
from icql.online.journal import Journal, Replay
from icql.online.learning import Evaluation
from icql.online.protocol import concatenate, describe, medium_replay
from icql.settings.algorithms import SACSettings
from icql.weights import tree_hash

LIMIT = 7


class Line(gym.Env[np.ndarray, np.ndarray]):
    """Position and clock; an action moves by at most 1, and the task ends beyond 3."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return self._see(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        # hidden randomness: replaying an episode has to restore the generator too
        self.x += float(action[0]) + 0.01 * float(self.np_random.normal())
        self.t += 1
        return self._see(), self.x, self.x > 3, False, {}

    def _see(self) -> np.ndarray:
        return np.array([self.x, self.t], np.float32)


gym.register("icql/Line-v0", entry_point=Line)
TASK = Task("line", "icql/Line-v0", min_score=0.0, max_score=10.0, max_episode_steps=LIMIT)
TINY = OnlineSettings(
    steps=120,
    seed=3,
    envs=2,
    warmup=40,
    evaluate_every=20,
    evaluate_later=20,
    episodes=2,
    medium_score=1e9,
    checkpoint_every=30,
    sac=SACSettings(hidden=(8,), batch_size=4),
)


def test_the_ring_overwrites_the_oldest_and_samples_only_what_was_written() -> None:
    replay = Replay.empty(5, 1, 1)
    rows = 1 + jnp.arange(35.0).reshape(7, 5)  # no zeros: those stand in rows never written
    replay = replay.add(rows[:3])
    drawn = replay.sample(jax.random.key(0), 200)
    assert set(drawn.s[:, 0].tolist()) == {1.0, 6.0, 11.0}
    replay = replay.add(rows[3:6]).add(rows[6:])
    assert sorted(replay.rows[:, 0].tolist()) == [11.0, 16.0, 21.0, 26.0, 31.0]
    t = replay.unpack(rows[:1])
    assert [float(x.ravel()[0]) for x in (t.s, t.a, t.r, t.s_next, t.mask)] == [1, 2, 3, 4, 5]


def play(actions: np.ndarray, *, seed: int = 0) -> tuple[Journal, EnvGroup, np.ndarray]:
    """A journal of the given actions (rows, envs) and what was packed for the replay."""
    group = EnvGroup(TASK, actions.shape[1], seed)
    journal = Journal.empty(len(actions), group)
    packed = [journal.step(group, a[:, None].astype(np.float32)) for a in actions]
    return journal, group, np.concatenate(packed)


def test_only_true_ends_stop_the_bootstrap_and_successors_are_true() -> None:
    # environment 0 runs to the right and ends the task; environment 1 stands still and times out
    journal, _, packed = play(np.tile([1.0, 0.0], (LIMIT + 1, 1)))
    terminal = journal.terminals[:, 0].argmax()
    assert journal.terminals[terminal, 0]
    assert not journal.timeouts[terminal, 0]
    assert journal.successors[terminal, 0, 0] > 3  # where it ended, not where it was reset
    assert journal.observations[terminal + 1, 0, 1] == 0  # the next row begins anew
    assert journal.timeouts[:, 1].tolist() == [False] * (LIMIT - 1) + [True, False]
    assert journal.successors[LIMIT - 1, 1, 1] == LIMIT
    mask = packed.reshape(LIMIT + 1, 2, -1)[..., -1]
    np.testing.assert_array_equal(mask, 1 - journal.terminals)
    assert mask[:, 1].all()  # a time limit is not an end of the task


def test_steps_are_whole_episodes_in_order_and_a_cut_one_is_timed_out() -> None:
    journal, _, _ = play(np.tile([1.0, 0.0], (LIMIT + 2, 1)))
    steps = journal.steps(journal.episodes())
    ends = steps.terminals | steps.timeouts
    assert len(steps) == 2 * (LIMIT + 2)
    assert ends[-1]
    assert not (steps.terminals & steps.timeouts).any()
    inside = ~ends[:-1]
    assert steps.next_observations is not None
    np.testing.assert_array_equal(
        steps.observations[1:][inside], steps.next_observations[:-1][inside]
    )
    starts = np.append(True, ends[:-1])
    assert (steps.observations[starts, 1] == 0).all()
    # as many rows of the log as were asked for, no more
    assert len(journal.steps(journal.episodes(3))) == 6


def test_a_journal_comes_back_from_disk_to_the_same_moment(tmp_path: Path) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 3))
    whole, _, _ = play(actions)
    half, _, _ = play(actions[:11])
    half.save(tmp_path)
    group = EnvGroup(TASK, 3, 0)
    journal = Journal.empty(20, group)
    journal.load(tmp_path)
    journal.restore(group)
    for a in actions[11:]:
        journal.step(group, a[:, None].astype(np.float32))
    np.testing.assert_array_equal(journal.successors, whole.successors)
    np.testing.assert_array_equal(journal.observations, whole.observations)


def test_a_journal_with_a_missing_part_is_refused(tmp_path: Path) -> None:
    journal, group, _ = play(np.zeros((4, 1)))
    journal.save(tmp_path)
    (tmp_path / "rows-000000000.npz").rename(tmp_path / "rows-000000002.npz")
    with pytest.raises(UserError, match="rows-000000002"):
        Journal.empty(9, group).load(tmp_path)


def run_tiny(folder: Path, **changes: Any) -> OnlineRun:
    return train_online(TASK, replace(TINY, **changes), folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> OnlineRun:
    return run_tiny(tmp_path_factory.mktemp("whole"))


def killed_at(step: int, folder: str) -> None:
    """Train, and die without a word; called in a process of its own."""

    def die(label: str, done: int, steps: int, note: str) -> None:
        if done >= step:
            os._exit(9)

    train_online(TASK, TINY, Path(folder), progress=die)


def test_a_killed_run_goes_on_to_the_same_parameters(whole: OnlineRun, tmp_path: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *filter(None, sys.path)])
    command = f"import test_online; test_online.killed_at(80, {str(tmp_path)!r})"
    died = subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    assert died.returncode == 9
    assert not (tmp_path / "final.safetensors").exists()
    resumed = run_tiny(tmp_path)
    assert tree_hash(resumed.state) == tree_hash(whole.state)
    assert resumed.evaluations == whole.evaluations
    np.testing.assert_array_equal(resumed.journal.observations, whole.journal.observations)


def test_a_finished_run_opens_where_the_simulator_rounds_otherwise(
    whole: OnlineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(journal: Journal, group: EnvGroup) -> None:
        raise AssertionError("nothing is stepped any more, so nothing is to be replayed")

    folder = Path(shutil.copytree(whole.folder, tmp_path / "copy"))
    monkeypatch.setattr(Journal, "restore", never)
    again = run_tiny(folder)
    assert tree_hash(again.state) == tree_hash(whole.state)


def test_a_run_whose_checkpoint_is_gone_does_not_begin_anew_without_a_word(
    whole: OnlineRun, tmp_path: Path
) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(UserError, match=r"checkpoint\.safetensors: is missing.*begin anew"):
        run_tiny(tmp_path / "run")


def test_a_run_learns_evaluates_and_refuses_other_settings(whole: OnlineRun) -> None:
    assert [e.step for e in whole.evaluations] == [60, 80, 100, 120]  # none in the warm-up
    assert whole.medium is None
    with pytest.raises(UserError, match="did not reach"):
        medium_replay(whole)
    with pytest.raises(UserError, match=r"settings\.json"):
        run_tiny(whole.folder, seed=4)
    start = train_online(TASK, replace(TINY, steps=40), whole.folder.parent / "warm")
    assert tree_hash(start.state) != tree_hash(whole.state)
    assert start.evaluations == []  # warm-up alone trains nothing


def test_medium_is_the_first_evaluation_at_its_score(tmp_path: Path) -> None:
    settings = replace(TINY, medium_score=-1e9)
    run = train_online(TASK, settings, tmp_path, until="medium")
    assert run.medium is not None
    assert run.medium.step == run.step == 60
    replay = medium_replay(run)
    assert len(replay) == 60
    assert replay.terminals[-1] or replay.timeouts[-1]
    medium = sac_oracle(run.snapshot("medium"))
    s, a = jnp.ones((4, 2)), jnp.zeros((4, 1))
    np.testing.assert_array_equal(medium.policy(s), run.state.pi.model(s))
    np.testing.assert_array_equal(medium.q(s, a), run.state.q.model.at(s)(a).min(0))
    # going on to the end keeps the medium moment
    end = train_online(TASK, settings, tmp_path)
    assert end.step == 120
    assert end.medium == run.medium
    assert len(medium_replay(end)) == 60


def test_expert_is_the_policy_of_the_best_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, s, acted = iter([1.0, 3.0, 2.0, 0.0]), jnp.ones((4, 2)), []

    def judge(run: OnlineRun, _: Any) -> Evaluation:
        acted.append(np.asarray(run.state.pi.model(s)))
        return Evaluation(run.step, next(scores), (0.0,))

    monkeypatch.setattr("icql.online.learning._evaluate", judge)
    run = run_tiny(tmp_path)
    assert [e.score for e in run.evaluations] == [1.0, 3.0, 2.0, 0.0]
    best, last = (sac_oracle(run.snapshot(name)).policy(s) for name in ("expert", "final"))
    np.testing.assert_array_equal(best, acted[1])
    np.testing.assert_array_equal(last, acted[3])
    assert not np.array_equal(best, last)


def test_every_level_is_collected(tmp_path: Path) -> None:
    recipe = Recipe("line", replace(TASK, name="hopper-mini"), replace(TINY, medium_score=-1e9))
    sizes = {}
    for level in ("random", "medium-replay", "medium", "medium-expert", "expert"):
        path = collect(recipe, level, tmp_path, transitions=30)  # type: ignore[arg-type]
        steps, meta = read_npz(path)
        sizes[level] = len(steps)
        provenance = json.loads(path.with_suffix(".json").read_text())
        assert provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert provenance["steps"] == len(steps)
        assert meta["provenance"]["level"] == level
    assert sizes == {
        "random": 30,
        "medium-replay": 60,
        "medium": 30,
        "medium-expert": 60,
        "expert": 30,
    }
    both, medium, expert = (
        read_npz(tmp_path / f"line-{name}.npz")[0] for name in ("medium-expert", "medium", "expert")
    )
    np.testing.assert_array_equal(both.actions[:30], medium.actions)
    np.testing.assert_array_equal(both.actions[30:], expert.actions)
    assert (medium.actions != expert.actions).any()


@pytest.mark.parametrize(
    ("recipe", "level", "message"),
    [("hoper", "medium", "Did you mean 'hopper'"), ("hopper", "mediun", "Did you mean 'medium'")],
)
def test_unknown_names_are_explained(recipe: str, level: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        collect(recipe, level, tmp_path)


def steps_of(lengths: list[int]) -> Steps:
    total = sum(lengths)
    ends = np.zeros(total, np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    rows = np.arange(total, dtype=np.float32)
    return Steps(
        rows[:, None],
        rows[:, None],
        rows,
        ends & (rows % 2 == 0),
        ends & (rows % 2 == 1),
        rows[:, None],
    )


lengths = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(st.lists(lengths, min_size=1, max_size=4))
def test_concatenation_puts_whole_datasets_one_after_the_other(several: list[list[int]]) -> None:
    parts = [steps_of(each) for each in several]
    joined = concatenate(parts)
    assert len(joined) == sum(map(len, parts))
    np.testing.assert_array_equal(joined.rewards, np.concatenate([p.rewards for p in parts]))
    assert (joined.terminals | joined.timeouts).sum() == sum(map(len, several))


def test_concatenation_refuses_an_open_end() -> None:
    part = steps_of([3])
    with pytest.raises(ValueError, match="end an episode"):
        concatenate([replace(part, terminals=np.zeros(3, np.bool_))])


thin = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_embedded.py"))["thin"]


@given(lengths, st.integers(40, 300), st.integers(1, 3))
def test_thinning_keeps_the_last_and_spreads_over_time(
    lengths: list[int], transitions: int, last: int
) -> None:
    bounds = np.cumsum([0, *lengths])
    episodes = [(0, slice(int(a), int(b))) for a, b in pairwise(bounds)]
    last = min(last, len(episodes))
    kept = thin(episodes, transitions, last=last)
    assert kept[-last:] == episodes[-last:]
    assert [e for e in episodes if e in kept] == kept
    total = sum(e[1].stop - e[1].start for e in kept)
    assert total <= max(transitions, sum(lengths[-last:]))
    if sum(lengths) <= transitions:
        assert kept == episodes


def test_thinning_is_even() -> None:
    episodes = [(0, slice(10 * i, 10 * i + 10)) for i in range(100)]
    kept = [rows.start for _, rows in thin(episodes, 250, last=1)]
    assert len(kept) in (24, 25)
    assert set(np.diff(kept)) <= {30, 40, 50}


def test_the_embedded_dataset_is_what_its_provenance_says() -> None:
    folder = resources.files("icql.data") / "embedded"
    raw = (folder / "hopper-mini.npz").read_bytes()
    provenance = json.loads((folder / "hopper-mini.json").read_text())
    assert len(raw) <= 5_000_000
    assert provenance["sha256"] == hashlib.sha256(raw).hexdigest()
    with resources.as_file(folder / "hopper-mini.npz") as path:
        steps, _ = read_npz(path)
    task = get_task("hopper-mini")
    found = describe(steps, task)
    assert {name: provenance[name] for name in found} == found
    stopped = np.mean(provenance["stopped_policy"]["returns"])
    assert 100 / 3 <= task.normalized_score(float(stopped)) < 50
    # from bad to medium
    assert found["return"]["min"] < 100
    assert found["return"]["max"] > 900
    data = load_dataset("hopper-mini")
    assert (data.observation_dim, data.action_dim) == (11, 3)
    assert len(data) == len(steps) - int(steps.timeouts.sum())
