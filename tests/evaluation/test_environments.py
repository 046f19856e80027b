"""Environments against D4RL's definitions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from icql.data.signals import Signals
from icql.data.tasks import Task, get_task
from icql.errors import UserError
from icql.evaluation import EnvPool, make_env, rollout
from icql.evaluation.environments import UnitActions
from icql.training.versions import versions

KITCHEN = get_task("kitchen-complete-v0")


@pytest.fixture(scope="module")
def kitchen() -> Iterator[EnvPool]:
    with EnvPool(KITCHEN, processes=0) as pool:  # a third of a second to build each
        yield pool


@pytest.fixture
def d4rl() -> Path:
    folder = os.environ.get("ICQL_D4RL_DIR")
    if not folder:
        pytest.skip("ICQL_D4RL_DIR is not set: no real D4RL files")
    return Path(folder)


# --- environments: rewards of hand-set states, from the definitions in D4RL ---------------------


def door_by_definition(gap: Any, door: Any, qvel: Any) -> Any:
    """Door reward from what a D4RL observation shows (palm − handle, hinge) and the velocities."""
    bonus = np.select([door > 1.35, door > 1.0, door > 0.2], [20.0, 10.0, 2.0], 0.0)
    reach = np.linalg.norm(gap, axis=-1)
    return bonus - 0.1 * reach - 0.1 * (door - 1.57) ** 2 - 1e-5 * np.sum(qvel**2, axis=-1)


def test_door_definition_explains_the_rewards_d4rl_recorded(d4rl: Path) -> None:
    with h5py.File(d4rl / "door-human-v1.hdf5") as file:
        after = file["observations"][1:].astype(float)
        rewards = file["rewards"][:-1]
        inside = ~file["timeouts"][:-1]
    explained = door_by_definition(after[:, 35:38], after[:, 28], np.zeros((1, 30)))
    velocity_cost = (explained - rewards)[inside]  # the one term an observation does not show
    assert velocity_cost.min() > 0
    assert velocity_cost.max() < 0.03  # the other sign of ‖palm − handle‖ misses by up to 0.14


@pytest.mark.parametrize(("angle", "bonus"), [(0.0, 0), (0.5, 2), (1.2, 10), (1.5, 20)])
def test_door_reward(angle: float, bonus: float) -> None:
    env = make_env(get_task("door-human-v1"))
    env.reset(seed=3)
    simulator: Any = env.unwrapped
    state = simulator.get_env_state()
    state["qpos"][28] = angle
    state["qvel"][:] = np.random.default_rng(0).normal(size=30)
    state["qvel"][28:] = 0
    simulator.set_env_state(state)
    observation, reward, terminated, truncated, _ = env.step(np.full(28, 0.1))
    assert reward == pytest.approx(
        float(door_by_definition(observation[35:38], observation[28], simulator.data.qvel))
    )
    assert bonus - 1.5 < float(reward) < bonus
    assert not terminated
    assert not truncated


@pytest.mark.parametrize(
    ("nail", "height", "bonus"),
    [(0.0, 0.0, 0), (0.0, 0.2, 2), (0.078, 0.0, 25), (0.09, 0.0, 100), (0.09, 0.2, 102)],
)
def test_hammer_reward(nail: float, height: float, bonus: float) -> None:
    env = make_env(get_task("hammer-human-v1"))
    env.reset(seed=3)
    simulator: Any = env.unwrapped
    state = simulator.get_env_state()
    del state["target_pos"]  # derived from the others
    state["qpos"][26] = nail
    state["qpos"][28] = height  # the joint that points up
    simulator.set_env_state(state)
    observation, reward, terminated, _, _ = env.step(np.zeros(26))
    palm, hammer, nail_at = observation[33:36], observation[36:39], observation[42:45]
    head = simulator.data.site_xpos[simulator.tool_site_id]
    goal = simulator.data.site_xpos[simulator.goal_site_id]
    expected = (
        bonus
        - 0.1 * np.linalg.norm(palm - hammer)
        - np.linalg.norm(head - nail_at)
        - 10 * np.linalg.norm(nail_at - goal)
        - 0.01 * np.linalg.norm(simulator.data.qvel)
    )
    assert reward == pytest.approx(float(expected))
    assert not terminated


@pytest.mark.parametrize(
    ("target_tilt", "drop", "bonus", "ends"),
    [(1.5, 0.0, 0, False), (0.4, 0.0, 10, False), (0.0, 0.0, 60, False), (1.5, 0.2, -5, True)],
)
def test_pen_reward_and_end(target_tilt: float, drop: float, bonus: float, ends: bool) -> None:
    env = make_env(get_task("pen-human-v1"))
    env.reset(seed=0)
    simulator: Any = env.unwrapped
    state = simulator.get_env_state()
    half = (np.pi / 2 + target_tilt) / 2  # a quarter turn lays the target down like the pen
    state["desired_orien"] = np.array([np.cos(half), 0.0, np.sin(half), 0.0])
    state["qpos"][24] = drop  # the joint that points down
    simulator.set_env_state(state)
    observation, reward, terminated, _, _ = env.step(np.zeros(24))
    distance = np.linalg.norm(observation[39:42])
    similarity = observation[33:36] @ observation[36:39]
    assert reward == pytest.approx(float(bonus - distance + similarity))
    assert terminated == ends


@pytest.mark.parametrize("name", ["door-human-v1", "hammer-human-v1"])
def test_a_random_policy_scores_zero(name: str) -> None:
    task, rng = get_task(name), np.random.default_rng(0)
    (width,) = make_env(task).action_space.shape or ()
    played = rollout(lambda s: rng.uniform(-1, 1, (len(s), width)), task, episodes=4, seed=0)
    assert abs(played.normalized(task).mean()) < 0.1


# --- Kitchen ------------------------------------------------------------------------------------

SOLVED = {"microwave": (22, -0.75), "light switch": (17, -0.69), "slide cabinet": (19, 0.37)}


def solve(env: Any, *names: str) -> None:
    """Move the elements of the named tasks to their goals by hand."""
    robot = env.unwrapped.robot_env
    qpos = robot.data.qpos.copy()
    for name in names:
        if name == "kettle":
            qpos[23:30] = [-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06]
        else:
            index, value = SOLVED[name]
            qpos[index] = value
    robot.set_state(qpos, np.zeros(29))


def test_kitchen_pays_each_task_once_and_ends_when_all_are_done(kitchen: EnvPool) -> None:
    (env,) = kitchen.take(1)
    env.reset(seed=0)
    rewards, ended = [], []
    for done in ([], ["microwave"], [], ["kettle", "slide cabinet"], ["light switch"]):
        solve(env, *done)
        _, reward, terminated, _, _ = env.step(np.zeros(9))
        rewards.append(reward)
        ended.append(terminated)
    assert rewards == [0, 1, 0, 2, 1]
    assert ended == [False, False, False, False, True]
    env.reset(seed=0)
    solve(env, "microwave")
    assert env.step(np.zeros(9))[1] == 1  # a new episode pays again


def test_kitchen_threshold_is_0_3(kitchen: EnvPool) -> None:
    (env,) = kitchen.take(1)
    for cabinet, paid in ((0.37 - 0.32, 0), (0.37 - 0.28, 1)):
        env.reset(seed=0)
        robot = env.unwrapped.robot_env  # type: ignore[attr-defined]
        qpos = robot.data.qpos.copy()
        qpos[19] = cabinet
        robot.set_state(qpos, np.zeros(29))
        assert env.step(np.zeros(9))[1] == paid


def test_kitchen_observation_is_the_d4rl_state(kitchen: EnvPool) -> None:
    (env,) = kitchen.take(1)
    first, _ = env.reset(seed=0)
    qpos = env.unwrapped.data.qpos  # type: ignore[attr-defined]
    assert first.shape == (60,)
    assert first.dtype == np.float32
    noise = first[:30] - qpos
    assert np.abs(noise).max() <= 0.1 * 0.1 + 1e-6  # ratio 0.1 of at most 0.1
    assert np.abs(noise[:9]).max() > 1e-3
    assert set(np.flatnonzero(first[30:])) == {17, 18, 19, 22, 23, 24, 25, 26, 29}
    mixed = make_env(get_task("kitchen-mixed-v0")).reset(seed=0)[0]
    assert mixed[30 + 11] == np.float32(-0.88)  # the bottom burner
    assert mixed[30 + 19] == 0.0  # no slide cabinet


def test_kitchen_state_layout_equals_the_file(kitchen: EnvPool, d4rl: Path) -> None:
    with h5py.File(d4rl / "kitchen-complete-v0.hdf5") as file:
        states, starts = file["observations"][:], file["episode_bounds"][:, 0]
    (env,) = kitchen.take(1)
    state, _ = env.reset(seed=0)
    assert state.shape == states.shape[1:]
    np.testing.assert_array_equal(np.broadcast_to(state[30:], states[:, 30:].shape), states[:, 30:])
    np.testing.assert_allclose(state[:9], states[starts, :9].mean(0), atol=0.1)
    np.testing.assert_allclose(state[9:30], states[starts, 9:30].mean(0), atol=0.02)


def test_the_kitchen_does_what_d4rl_recorded(kitchen: EnvPool, d4rl: Path) -> None:
    """A logged demonstration played here: D4RL's robot to within its noise, and all tasks done.

    A velocity is added to what the robot read, so it is driven by the logged readings.
    """
    with h5py.File(d4rl / "kitchen-complete-v0.hdf5") as file:
        end = int(np.flatnonzero(file["terminals"][:])[0]) + 1
        states, actions = file["observations"][:end], file["actions"][:end]
    (env,) = kitchen.take(1)
    env.reset(seed=0)
    robot: Any = env.unwrapped.robot_env  # type: ignore[attr-defined]
    start = np.concatenate([states[0, :9], robot.init_qpos[9:]])
    robot.set_state(start, np.zeros_like(robot.init_qvel))
    joints, paid = [], 0.0
    for state, action in zip(states, actions, strict=True):
        joints.append(robot.data.qpos.copy())
        robot._last_robot_qpos = state[:9].astype(float)
        paid += float(env.step(action)[1])
    assert paid == len(KITCHEN.kitchen_tasks)
    apart = np.abs(np.array(joints)[:, :9] - states[:, :9])
    assert apart.mean() < np.mean(KITCHEN.noise[:9])  # of the log alone: half its width on average
    assert np.quantile(apart, 0.99) < 2 * max(KITCHEN.noise[:9])


def test_kitchen_episode_ends_at_its_limit_and_repeats_from_the_seed(kitchen: EnvPool) -> None:
    seen: list[Any] = []

    def act(states: Any) -> Any:
        seen.append(states)
        return np.sin(states[:, :9] * 5)

    one, two = (rollout(act, kitchen, episodes=2, seed=5, workers=w) for w in (1, 2))
    assert one.lengths.tolist() == [280, 280]
    assert not one.terminated.any()
    np.testing.assert_array_equal(one.returns, two.returns)
    np.testing.assert_array_equal(np.stack(seen[:280]), np.stack(seen[280:]))


# --- episode limits, spaces, bad input ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "limit"),
    [("halfcheetah-medium-v2", 1000), ("door-human-v1", 200), ("hammer-cloned-v1", 200),
     ("pen-human-v1", 100)],
)  # fmt: skip
def test_episode_limit(name: str, limit: int) -> None:
    task = get_task(name)
    (width,) = make_env(task).action_space.shape or ()
    played = rollout(lambda s: np.zeros((len(s), width)), task, episodes=1, seed=1)
    assert played.lengths.tolist() == [limit]
    assert played.terminated.tolist() == [False]


@pytest.mark.parametrize("name", ["hopper-medium-v2", "walker2d-medium-v2"])
def test_mujoco_tasks_are_v4_and_end_when_the_body_falls(name: str) -> None:
    task = get_task(name)
    env = make_env(task)
    assert env.spec is not None
    assert (env.spec.id.endswith("-v4"), env.spec.max_episode_steps) == (True, 1000)
    (width,) = env.action_space.shape or ()
    played = rollout(lambda s: np.ones((len(s), width)), task, episodes=2, seed=0)
    assert played.terminated.all()
    assert played.lengths.max() < 1000


def test_custom_task_runs_with_its_own_limit() -> None:
    task = replace(
        get_task("hopper-medium-v2"), name="swing", env_id="Pendulum-v1", max_episode_steps=7
    )
    played = rollout(lambda s: np.zeros((len(s), 1)), task, episodes=3, seed=0)
    assert played.lengths.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": "Blackjack-v1"}, "the observation space of 'Blackjack-v1' is Tuple"),
        ({"env_id": "NoSuchThing-v0"}, "'NoSuchThing-v0' cannot be made"),
        ({"env_id": "no_such_module:Thing-v0"}, "No module named 'no_such_module'"),
        ({"domain": "adroit"}, "D4RL's reward of 'Hopper-v4' is not known"),
        ({"domain": "kitchen"}, "no Kitchen tasks given"),
        ({"domain": "kitchen", "kitchen_tasks": ("fridge",)}, r"unknown Kitchen tasks: \['fridge"),
    ],
)
def test_environments_that_cannot_be_used(changes: dict[str, Any], message: str) -> None:
    task = replace(get_task("hopper-medium-v2"), name="mine", **changes)
    with pytest.raises(UserError, match=message) as caught:
        make_env(task)
    assert "'mine'" in str(caught.value)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    for name in ("door-human-v1", "kitchen-mixed-v0"):
        with pytest.raises(UserError, match=r"pip install 'icql\[robotics\]'"):
            make_env(get_task(name))


def test_versions_name_the_simulator() -> None:
    found = versions()
    assert all(found[n] != "absent" for n in ("mujoco", "gymnasium", "gymnasium-robotics"))


# --- Actions in [-1, 1] and the bounds of an environment ----------------------------------------

SWING = Task("swing", "Pendulum-v1", min_score=-1700.0, max_score=0.0, max_episode_steps=50)


def pushed(task: Task, action: float, signals: Signals | None = None) -> float:
    """What an environment is driven by, when a policy's action is this."""
    env, seen = make_env(task, signals), list[Any]()
    inner: Any = env.unwrapped
    step = inner.step
    inner.step = lambda a: (seen.append(np.asarray(a).tolist()), step(a))[1]
    env.reset(seed=0)
    env.step(np.array([action], np.float32))
    env.close()
    (found,) = seen[0]
    return float(found)


@pytest.mark.parametrize(("action", "torque"), [(-1, -2), (0, 0), (0.5, 1), (1, 2)])
def test_actions_reach_the_environments_own_bounds(action: float, torque: float) -> None:
    assert pushed(SWING, action) == torque


def test_the_logs_bounds_are_what_minus_one_and_one_mean() -> None:
    """A log in torques from -1 to 0.5, played in an environment that takes ±2."""
    log = Signals(action=("torque",), action_low=(-1.0,), action_high=(0.5,))
    assert [pushed(SWING, a, log) for a in (-1, 0, 1)] == [-1, -0.25, 0.5]


def test_a_policy_is_worth_the_same_in_its_logs_units() -> None:
    """The same controller, once of torques in an environment of torques, once of percent."""

    def controller(s: np.ndarray) -> np.ndarray:
        return np.clip(0.4 * s[:, 1:2] - 0.1 * s[:, 2:3], -1, 1)

    as_is = replace(SWING, unit_actions=False)
    direct = rollout(lambda s: 2 * controller(s), as_is, episodes=3, seed=0)
    mapped = rollout(controller, SWING, episodes=3, seed=0)
    np.testing.assert_allclose(mapped.returns, direct.returns, rtol=1e-4)


def test_a_normalised_environment_of_a_log_in_percent_takes_actions_as_they_are() -> None:
    percent = Signals(action_low=(0.0,) * 3, action_high=(100.0,) * 3)
    env = make_env(get_task("hopper"), percent)
    assert not isinstance(env, UnitActions)
    env.close()


def test_bounds_that_do_not_fit_are_named() -> None:
    percent = Signals(action_low=(0.0,), action_high=(100.0,))
    with pytest.raises(UserError, match=r"between \[0\] and \[100\], those of 'Pendulum-v1'"):
        make_env(SWING, percent)
    gymnasium.register("Endless-v0", entry_point=Endless)
    endless = replace(SWING, env_id="Endless-v0")
    with pytest.raises(UserError, match="nothing says what a policy's -1 and 1 stand for"):
        make_env(endless)
    assert pushed(endless, 0.5, percent) == 75
    assert pushed(replace(endless, unit_actions=False), 0.5) == 0.5


class Endless(gymnasium.Env[Any, Any]):
    """Takes any number."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_notice_about_rewards_that_are_not_ours_is_not_shown() -> None:
    code = (
        "from icql.data.tasks import get_task; from icql.evaluation import make_env; "
        "make_env(get_task('door-human-v1'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
