"""Rollouts against a plain loop."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any

import gymnasium
import numpy as np
import pytest

from icql.data.signals import Signals
from icql.data.tasks import get_task
from icql.errors import UserError
from icql.evaluation import EnvPool, env_processes, rollout
from icql.evaluation.env_processes import EnvProcess
from icql.evaluation.rollout import Player, episode_seed


class Counter(gymnasium.Env[Any, Any]):
    """Episodes of a length drawn at reset; pays what the action says, within its bounds."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 12))
        return np.array([self.left, self.np_random.normal()]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.left > 0, "stepped after the end"
        assert self.action_space.contains(action)
        self.left -= 1
        state = np.array([self.left, self.np_random.normal()])
        cut = self.left == 0 and bool(state[1] > 0)
        return state, float(action[0]), self.left == 0 and not cut, cut, {}


class Recorder:
    """A policy that keeps the shapes it was called with."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: set[Any] = set()

    def __call__(self, states: Any) -> Any:
        self.shapes.append(states.shape)
        self.dtypes.add(states.dtype)
        return states[:, 1:]


def plain_loop(seed: int, episodes: int) -> list[tuple[float, int, bool]]:
    """The same rollouts, one environment and one episode at a time."""
    played = []
    for i in range(episodes):
        env, total, length = Counter(), 0.0, 0
        state, _ = env.reset(seed=episode_seed(seed, i))
        while True:
            action = np.clip(state[1:].astype(np.float32), -1, 1)
            state, reward, terminated, truncated, _ = env.step(action)
            total, length = total + reward, length + 1
            if terminated or truncated:
                played.append((total, length, terminated))
                break
    return played


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("parallel", [1, 4, 20])
def test_rollouts_equal_a_plain_loop(workers: int, parallel: int) -> None:
    act = Recorder()
    played = rollout(act, Counter, episodes=9, seed=7, workers=workers, parallel=parallel)
    returns, lengths, terminated = zip(*plain_loop(7, 9), strict=True)
    np.testing.assert_allclose(played.returns, returns, rtol=0, atol=1e-12)
    assert played.lengths.tolist() == list(lengths)
    assert played.terminated.tolist() == list(terminated)
    assert 0 < sum(terminated) < 9  # both kinds of end took place
    assert set(act.shapes) == {(min(parallel, 9), 2)}
    assert act.dtypes == {np.dtype(np.float32)}
    rows = [sum(lengths[row::parallel]) for row in range(parallel)]
    assert len(act.shapes) == max(rows)  # once per step


def test_several_policies_play_as_if_alone() -> None:
    gains = np.array([0.0, 0.5, 1.0], np.float32)

    def together(states: Any) -> Any:
        return (states.reshape(3, -1, 2)[:, :, 1:] * gains[:, None, None]).reshape(-1, 1)

    played = rollout(together, Counter, episodes=5, seed=[4, 4, 9], parallel=6).split(3)
    for part, gain, seed in zip(played, gains, (4, 4, 9), strict=True):
        alone = rollout(lambda s, g=gain: s[:, 1:] * g, Counter, episodes=5, seed=seed)
        np.testing.assert_array_equal(part.returns, alone.returns)
        np.testing.assert_array_equal(part.lengths, alone.lengths)
        np.testing.assert_array_equal(part.terminated, alone.terminated)


def test_mujoco_rollouts_repeat_from_the_seed_and_do_not_depend_on_workers() -> None:
    task = get_task("hopper-medium-v2")
    act = lambda s: np.sin(s[:, :3] * 7)  # noqa: E731
    with EnvPool(task) as pool:
        one = rollout(act, pool, episodes=6, seed=0, workers=1)
        two = rollout(act, pool, episodes=6, seed=0, workers=2, parallel=4)
        other = rollout(act, pool, episodes=6, seed=1)
    np.testing.assert_array_equal(one.returns, two.returns)
    assert len(set(one.returns)) == 6  # every episode starts elsewhere
    assert not set(one.returns) & set(other.returns)
    expected = 100 * (one.returns + 20.272305) / (3234.3 + 20.272305)
    np.testing.assert_allclose(one.normalized(task), expected)


def test_pool_builds_each_environment_once_and_progress_reaches_the_end() -> None:
    Counter.made = 0
    calls: list[tuple[int, int]] = []
    with EnvPool(Counter) as pool:
        for _ in range(3):
            rollout(lambda s: s[:, 1:], pool, episodes=4, seed=0)
        assert Counter.made == 4
        rollout(Recorder(), pool, episodes=4, seed=0, progress=lambda *c: calls.append(c))
    assert [step for step, _ in calls] == list(range(1, len(calls) + 1))
    finished = [done for _, done in calls]
    assert finished == sorted(finished)
    assert finished[-1] == 4 > finished[0]


def test_a_non_finite_action_names_episode_and_step() -> None:
    def act(states: Any) -> Any:
        return np.where(states[:, :1] == 2, np.nan, 0.0)

    lengths = [length for _, length, _ in plain_loop(3, 1)]
    with pytest.raises(UserError, match=f"episode 0, step {lengths[0] - 1}: .*is not finite"):
        rollout(act, Counter, episodes=1, seed=3)
    # The same action in a row that is over harms nobody.
    over = rollout(lambda s: np.where(s[:, :1] == 0, np.nan, 0.0), Counter, episodes=5, seed=3)
    assert (over.returns == 0).all()


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"episodes": 0}, "episodes"),
        ({"seed": -1}, "seed"),
        ({"seed": []}, "seed"),
        ({"workers": 0}, "workers"),
        ({"parallel": 0}, "parallel"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError, match=f"^{where}: "):
        rollout(Recorder(), Counter, **{"episodes": 1, "seed": 0} | settings)


def test_actions_of_the_wrong_shape() -> None:
    with pytest.raises(UserError, match=r"shape \(2, 2\), the environment takes \(2, 1\)"):
        rollout(lambda s: s, Counter, episodes=2, seed=0)


# --- processes ----------------------------------------------------------------------------------


def test_processes_change_nothing_about_the_result() -> None:
    task = get_task("hopper-medium-v2")
    seen: list[Any] = []

    def act(states: Any) -> Any:
        seen.append(states)
        return np.sin(states[:, :3] * 7)

    here = rollout(act, task, episodes=5, seed=[0, 3], parallel=6)
    steps = len(seen)
    with EnvPool(task, processes=2) as pool:
        assert (pool.processes, pool.default_workers) == (2, 1)
        spread = rollout(act, pool, episodes=5, seed=[0, 3], parallel=6)
        again = rollout(act, pool, episodes=5, seed=[0, 3], parallel=6, workers=3)
        pids = [process._process.pid for process in pool._processes]
        assert len(set(pids)) == 2
    for other in (spread, again):
        np.testing.assert_array_equal(here.returns, other.returns)
        np.testing.assert_array_equal(here.lengths, other.lengths)
        np.testing.assert_array_equal(here.terminated, other.terminated)
    np.testing.assert_array_equal(np.stack(seen[:steps]), np.stack(seen[steps : 2 * steps]))
    for pid in pids:  # both have ended, and were waited for
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_processes_take_the_bounds_of_the_log_and_tell_what_is_wrong() -> None:
    task = dataclasses.replace(get_task("hopper-medium-v2"), env_id="Pendulum-v1")
    signals = Signals(action=("torque",), action_low=(-1.5,), action_high=(1.0,))
    played = []
    for processes in (0, 1):
        with EnvPool(task, signals, processes=processes) as pool:
            played.append(rollout(lambda s: s[:, :1], pool, episodes=1, seed=0).returns)
            (env,) = pool.take(1)
            assert env.action_space == gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    np.testing.assert_array_equal(*played)
    nowhere = dataclasses.replace(task, env_id="Nowhere-v0")
    with EnvPool(nowhere, processes=1) as pool, pytest.raises(UserError, match="cannot be made"):
        pool.take(1)


def test_a_process_that_dies_is_said_and_the_pool_can_be_closed() -> None:
    with EnvPool(get_task("hopper-medium-v2"), processes=1) as pool:
        (env,) = pool.take(1)
        env.reset(seed=0)
        pool._processes[0]._process.kill()
        with pytest.raises(RuntimeError, match="died"):
            env.reset(seed=0)


def test_a_pool_can_be_used_after_an_error() -> None:
    """What others were asked at the same time is not taken for answers to the next question."""
    act = lambda s: np.sin(s[:, :3])  # noqa: E731
    with EnvPool(get_task("hopper-medium-v2"), processes=2) as pool:
        expected = rollout(act, pool, episodes=4, seed=0)

        def broken(states: Any) -> Any:
            pool._envs[1]._number = 99  # there is no such environment
            return act(states)

        with pytest.raises(RuntimeError, match="KeyError") as failed:
            rollout(broken, pool, episodes=4, seed=0)
        assert "\n" not in str(failed.value)  # reports show it; where it happened is a note
        assert "env_processes.py" in "".join(failed.value.__notes__)
        again = rollout(act, pool, episodes=4, seed=0)
    np.testing.assert_array_equal(expected.returns, again.returns)


def noting(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, int]]:
    """What is asked of processes from now on: the call, and the process."""
    told: list[tuple[str, int]] = []

    def noted(name: str) -> Any:
        own = getattr(EnvProcess, name)

        def call(self: EnvProcess, *given: Any) -> Any:
            told.append((name, id(self)))
            return own(self, *given)

        return call

    for name in names:
        monkeypatch.setattr(EnvProcess, name, noted(name))
    return told


def test_all_processes_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process has its question before anybody waits for an answer."""
    with EnvPool(get_task("hopper-medium-v2"), processes=2) as pool:
        pool.take(4)
        told = noting(monkeypatch, "ask", "send", "answer")
        rollout(lambda s: np.sin(s[:, :3]), pool, episodes=4, seed=0)
    names = [name for name, _ in told]
    assert names[:14] == ["ask"] * 4 + ["answer"] * 4 + ["send"] * 2 + ["answer"] * 4


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_while_a_policy_acts_for_half_of_the_rows_the_others_step(processes: int) -> None:
    """No process is idle then; the result is the same, though episodes differ in length."""
    task = get_task("hopper-medium-v2")
    busy: list[list[bool]] = []

    def step(carry: None, seen: Any, *_: Any) -> tuple[Any, None]:
        busy.append([process.waiting for process in pool._processes])
        return np.sin(seen[:, :3] * 7), None

    player = Player(lambda rows: None, step, rowwise=True)
    with EnvPool(task, processes=processes) as pool:
        found = rollout(player, pool, episodes=5, seed=[0, 3], parallel=8)
    assert not any(busy[0])
    shortest = int(found.lengths.min())
    assert shortest > 5
    assert np.all(busy[1 : 2 * shortest])
    with EnvPool(task, processes=0) as pool:
        expected = rollout(player, pool, episodes=5, seed=[0, 3], parallel=8)
    assert len(set(expected.lengths)) > 5
    np.testing.assert_array_equal(found.returns, expected.returns)
    np.testing.assert_array_equal(found.lengths, expected.lengths)


def test_a_policy_with_memory_acts_for_all_rows_at_once() -> None:
    task, calls = get_task("hopper-medium-v2"), list[Any]()

    def step(carry: Any, seen: Any, *_: Any) -> tuple[Any, Any]:
        calls.append(carry[0, 0])
        return np.sin(seen[:, :3] + carry), carry + 1

    played = []
    for processes in (0, 2):
        player = Player(lambda rows: np.zeros((rows, 1)), step, rowwise=True)
        with EnvPool(task, processes=processes) as pool:
            played.append(rollout(player, pool, episodes=6, seed=0, parallel=6))
    np.testing.assert_array_equal(played[0].returns, played[1].returns)
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]


def test_rows_that_step_in_turn_are_spread_over_all_processes() -> None:
    with EnvPool(get_task("hopper-medium-v2"), processes=2) as pool:
        assert pool.turns(2) == [range(2)]  # one for each: there is no second half
        assert pool.turns(9) == [[0, 1, 4, 5, 8], [2, 3, 6, 7]]
    assert EnvPool(Counter).turns(9) == [range(9)]


class Changes(Counter):
    """Works in the action that it was given, and takes no large one."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action[0] > 1:
            raise ValueError("too large")
        action *= 0.5
        return np.array([1.0, action[0]]), 2.0, False, True, {}


def test_of_environments_that_step_together_one_may_fail_and_may_change_its_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(env_processes, "make_env", lambda task, signals: Changes())
    task = dataclasses.asdict(get_task("hopper-medium-v2"))
    server = env_processes._Server({"task": task, "signals": {}})
    for number in range(3):
        ((made, behind),) = server.answer({"do": "make", "number": number}, io.BytesIO())
        assert (made["number"], behind) == (number, None)
    actions = np.float32([[0.5], [7], [-1]])
    question = {"do": "step", "numbers": [2, 0, 1], "bytes": actions.nbytes}
    failed, (said, seen) = server.answer(question, io.BytesIO(actions.tobytes()))
    assert (failed[0]["number"], failed[0]["error"]) == (0, "ValueError: too large")
    assert said == {"numbers": [2, 1]}
    np.testing.assert_array_equal(seen, [[1, 0.25, 2, 0, 1], [1, -0.5, 2, 0, 1]])


def test_how_many_processes_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(task: str, bound: int, said: str = "") -> tuple[int, int]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(bound), raising=False)
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        with EnvPool(get_task(task)) as pool:
            return pool.processes, pool.default_workers

    assert chosen("kitchen-complete-v0", 16) == (16, 1)
    assert chosen("kitchen-complete-v0", 16, "4") == (4, 1)  # what Ray gave its task
    assert chosen("kitchen-complete-v0", 2) == (0, 2)  # threads do as well there
    assert chosen("door-human-v1", 16) == (16, 1)
    assert chosen("hopper-medium-v2", 16) == (0, 1)  # handing over costs more than a step
    with pytest.raises(UserError, match="tasks alone"):
        EnvPool(Counter, processes=2)
