"""Environments whose observation, action, reward and end of episode agree with D4RL.

Gymnasium and Gymnasium-Robotics provide the simulators. A task of the domain "gymnasium" is taken
as it is, D4RL's MuJoCo tasks in their v4 among them (the rewards of v5 differ); for the other
domains this module adds what D4RL does otherwise:

* Kitchen: the state is robot qpos (9), object qpos (21) with D4RL's noise, and the goal (30);
* Adroit: door and hammer pay −0.1·‖palm − object‖, and the pen's episode ends when it drops.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from icql.data.signals import Signals
from icql.data.tasks import Task
from icql.errors import UserError

Env: TypeAlias = gymnasium.Env[Any, Any]
Step: TypeAlias = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
Judge: TypeAlias = Callable[[Any, SupportsFloat, bool], tuple[SupportsFloat, bool]]
"""The simulator, the environment's own reward and end → D4RL's."""
Bounds: TypeAlias = NDArray[np.float64]

KITCHEN_NOISE = 0.1  # D4RL's noise ratio
BOUND_SLACK = 1e-6  # of a range: what writing a bound in decimals may lose
PEN_DROPPED = 0.075  # the pen's height below which D4RL ends the episode


def make_env(task: Task, signals: Signals | None = None) -> Env:
    """Build the environment that scores `task`: 1-d Box spaces, D4RL's protocol and episode limit.

    Policies act in [-1, 1]. An environment with other bounds is wrapped in :class:`UnitActions`;
    what -1 and 1 stand for is said by the bounds of the data's log (`signals`), or else by the
    environment's own. A task with `unit_actions=False` takes a policy's actions as they are.

    Raises:
        UserError: the environment does not exist, needs an extra that is not installed, has
            spaces that a policy over real vectors cannot use, or bounds that do not fit.
    """
    env = {"kitchen": _make_kitchen, "adroit": _make_adroit}.get(task.domain, _make)(task)
    if isinstance(env.action_space, spaces.Discrete):
        env = ChoiceActions(env)
    for what, space in (("action", env.action_space), ("observation", env.observation_space)):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            env.close()
            raise UserError(
                f"the {what} space of {task.env_id!r} is {space}, not a vector of real numbers.",
                where=f"task {task.name!r}",
                fix="Flat observations, and flat actions or choices (Discrete), are supported.",
            )
    if isinstance(env, ChoiceActions):
        return env
    try:
        bounds = _bounds(task, env.action_space, signals or Signals())
    except UserError:
        env.close()
        raise
    return env if bounds is None else UnitActions(env, *bounds)


def _bounds(task: Task, space: Any, signals: Signals) -> tuple[Bounds, Bounds] | None:
    """What -1 and 1 stand for in an environment; None: themselves."""
    unit = bool((space.low == -1).all() and (space.high == 1).all())
    if signals.bounded and len(signals.action_low) == len(space.low):
        low, high = np.asarray(signals.action_low), np.asarray(signals.action_high)
        slack = BOUND_SLACK * (high - low)
        if (low >= space.low - slack).all() and (high <= space.high + slack).all():
            return None if (low == -1).all() and (high == 1).all() else (low, high)
        if not unit:
            raise UserError(
                f"the log's actions lie between {_said(low)} and {_said(high)}, those of "
                f"{task.env_id!r} between {_said(space.low)} and {_said(space.high)}.",
                where=f"task {task.name!r}",
                fix="Give `action_bounds` in the environment's units, or one that takes [-1, 1].",
            )
    if unit or not task.unit_actions:
        return None
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UserError(
            f"the action space of {task.env_id!r} is {space}: nothing says what a policy's -1 and "
            "1 stand for there.",
            where=f"task {task.name!r}",
            fix="Give the environment finite bounds, the log `action_bounds`, or, where the "
            "environment takes [-1, 1], the task unit_actions=False.",
        )
    return space.low.astype(np.float64), space.high.astype(np.float64)


def _said(bound: NDArray[Any]) -> str:
    return "[" + ", ".join(f"{x:g}" for x in bound.tolist()) + "]"


class UnitActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment that is driven by actions in [-1, 1], which stand for `low` and `high`."""

    def __init__(self, env: Env, low: Bounds, high: Bounds) -> None:
        super().__init__(env)
        self._low, self._high = low, high
        self._space: Any = env.action_space
        self.action_space = spaces.Box(-1, 1, low.shape, np.float32)

    def action(self, action: Any) -> Any:
        """The action in the environment's units, within its bounds."""
        there = self._low + (np.asarray(action, np.float64) + 1) / 2 * (self._high - self._low)
        return np.clip(there, self._space.low, self._space.high).astype(self._space.dtype)


class ChoiceActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment of discrete actions that is driven by one-hot rows."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._start = int(env.action_space.start)  # type: ignore[attr-defined]
        self.action_space = spaces.Box(0, 1, (int(env.action_space.n),), np.float32)  # type: ignore[attr-defined]

    def action(self, action: Any) -> int:
        """The number of the choice."""
        return self._start + int(np.argmax(action))


class KitchenState(gymnasium.ObservationWrapper[NDArray[np.float32], Any, Any]):
    """FrankaKitchen-v1 seen as D4RL's 60-d state: robot qpos, object qpos, goal.

    The noise on objects is added here: the environment's own is off by one joint, so that it
    shakes the kettle's x twenty times as much as D4RL does.
    """

    def __init__(self, env: Env, goal: NDArray[np.float32], shakes: Sequence[float]) -> None:
        super().__init__(env)
        self._goal, self._shakes = goal, np.asarray(shakes)
        self.observation_space = spaces.Box(-np.inf, np.inf, (60,), np.float32)

    def observation(self, observation: Any) -> NDArray[np.float32]:
        """Drop the velocities (9–17 and 39–58), which D4RL's state does not have; add the goal."""
        full = observation["observation"]
        random: np.random.Generator = self.unwrapped.robot_env.np_random  # type: ignore[attr-defined]
        objects = full[18:39] + self._shakes * random.uniform(-1, 1, len(self._shakes))
        return np.concatenate([full[:9], objects, self._goal], dtype=np.float32)


class AdroitStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pay, or end the episode, as D4RL does for where the simulator (`mujoco.MjData`) arrived."""

    def __init__(self, env: Env, judge: Judge) -> None:
        super().__init__(env)
        self._judge = judge

    def step(self, action: Any) -> Step:
        """Advance the simulator; D4RL's reward and end."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        data = self.unwrapped.data  # type: ignore[attr-defined]  # every MuJoCo environment has it
        reward, terminated = self._judge(data, reward, terminated)
        return observation, reward, terminated, truncated, info


def door_reward(data: Any) -> float:
    """D4RL's door reward of a simulator state (`mujoco.MjData`): reach, open, move calmly."""
    door = float(data.joint("door_hinge").qpos[0])
    reach = _distance(data.site("S_grasp").xpos, data.site("S_handle").xpos)
    cost = 0.1 * reach + 0.1 * (door - 1.57) ** 2 + 1e-5 * float(np.sum(data.qvel**2))
    return 2.0 * (door > 0.2) + 8.0 * (door > 1.0) + 10.0 * (door > 1.35) - cost


def hammer_reward(data: Any) -> float:
    """D4RL's hammer reward of a simulator state (`mujoco.MjData`): grasp, lift, hit, drive in."""
    hammer, head = data.body("Object").xpos, data.site("tool").xpos
    nail = data.site("S_target").xpos
    depth = _distance(nail, data.site("nail_goal").xpos)
    reach = _distance(data.site("S_grasp").xpos, hammer)
    speed = float(np.linalg.norm(data.qvel))
    cost = 0.1 * reach + _distance(head, nail) + 10.0 * depth + 0.01 * speed
    lifted = bool(hammer[2] > 0.04 and head[2] > 0.04)
    return 2.0 * lifted + 25.0 * (depth < 0.020) + 75.0 * (depth < 0.010) - cost


def pen_dropped(data: Any) -> bool:
    """Whether D4RL ends the pen's episode (its reward already agrees)."""
    return bool(data.body("Object").xpos[2] < PEN_DROPPED)


# The rewards are computed here, not corrected by −0.2·‖·‖: the sign depends on the release.
_ADROIT: dict[str, Judge] = {
    "AdroitHandDoor-v1": lambda data, reward, end: (door_reward(data), end),
    "AdroitHandHammer-v1": lambda data, reward, end: (hammer_reward(data), end),
    "AdroitHandPen-v1": lambda data, reward, end: (reward, pen_dropped(data)),
}


def _make_adroit(task: Task) -> Env:
    if task.env_id not in _ADROIT:
        raise UserError(
            f"D4RL's reward of {task.env_id!r} is not known.",
            where=f"task {task.name!r}",
            fix=f"Adroit environments: {', '.join(_ADROIT)}.",
        )
    _register_robotics(task)
    return AdroitStep(_make(task), _ADROIT[task.env_id])


def _make_kitchen(task: Task) -> Env:
    _register_robotics(task)
    from gymnasium_robotics.envs.franka_kitchen import kitchen_env

    unknown = set(task.kitchen_tasks) - set(kitchen_env.OBS_ELEMENT_GOALS)
    if unknown or not task.kitchen_tasks:
        raise UserError(
            f"unknown Kitchen tasks: {sorted(unknown)}." if unknown else "no Kitchen tasks given.",
            where=f"kitchen_tasks of task {task.name!r}",
            fix=f"Known: {', '.join(sorted(kitchen_env.OBS_ELEMENT_GOALS))}.",
        )
    env = _make(
        task,
        tasks_to_complete=list(task.kitchen_tasks),
        robot_noise_ratio=KITCHEN_NOISE,
        object_noise_ratio=0.0,  # see KitchenState
        terminate_on_tasks_completed=True,
        remove_task_when_completed=True,  # each task is paid once
    )
    goal = np.zeros(30, np.float32)
    for name in task.kitchen_tasks:
        goal[kitchen_env.OBS_ELEMENT_INDICES[name]] = kitchen_env.OBS_ELEMENT_GOALS[name]
    return KitchenState(env, goal, task.noise[9:30] or (0.0,) * 21)


def _register_robotics(task: Task) -> None:
    with contextlib.suppress(ModuleNotFoundError):
        from farama_notifications import notifications

        # printed at import: Adroit's rewards have changed. AdroitStep pays D4RL's own
        notifications.pop("gymnasium_robotics", None)
    try:
        import gymnasium_robotics
    except ModuleNotFoundError as error:
        raise UserError(
            f"{task.env_id} needs gymnasium-robotics, which is not installed.",
            where=f"task {task.name!r}",
            fix="pip install 'icql[robotics]'",
        ) from error
    gymnasium.register_envs(gymnasium_robotics)


def _make(task: Task, **settings: Any) -> Env:
    try:
        with warnings.catch_warnings():
            # D4RL's protocol is v4; Gymnasium announces v5 each time one is made.
            warnings.filterwarnings("ignore", ".*-v4 is out of date", DeprecationWarning)
            return gymnasium.make(
                task.env_id,
                max_episode_steps=task.max_episode_steps,
                disable_env_checker=True,
                **settings,
            )
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(
            f"the environment {task.env_id!r} cannot be made: {error}",
            where=f"task {task.name!r}",
            fix="Name an environment that is registered with Gymnasium.",
        ) from error


def _distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(a - b))
