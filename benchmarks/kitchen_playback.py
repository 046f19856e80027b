"""Kitchen demonstrations played in the simulator: the states that D4RL recorded, noise included.

    python benchmarks/kitchen_playback.py kitchen-partial-v0 --out played/kitchen-partial-v0.hdf5

D4RL's states are what a simulator showed that played the demonstrations, with noise on every joint.
A file whose objects come from the demonstrations' own logs has none there: what never moves is then
a constant, and a network that learned nothing about it sees it shake (docs/experiments.md, E22).
The robot is driven as it was then: to where it read itself, plus the action. Its joints stay as
logged: the controls were set by these readings, so that the actions make up for the noise in them.
Printed is how far they are from the played ones (by the noise of both), and how many of the tasks
end fulfilled, in the log and here. The file has D4RL's layout, and can be trained on with
`ICQL_D4RL_DIR=played`.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tyro
from numpy.typing import NDArray

from icql.data.datasets import find_d4rl
from icql.data.tasks import get_task
from icql.evaluation.env_processes import cores
from icql.evaluation.environments import make_env
from icql.files import atomic
from icql.progress import Display

ROBOT = 9  # joints; the objects' follow
NEAR = 0.3  # D4RL: so near its goal a task is fulfilled
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Options:
    """What is played, and where it goes."""

    task: tyro.conf.Positional[str]
    """kitchen-complete-v0, kitchen-partial-v0 or kitchen-mixed-v0."""
    out: Path
    """HDF5 file to make."""
    episodes: int | None = None
    """How many are played (none given: all)."""


def main(options: Options) -> None:
    source = find_d4rl(options.task)
    if source is None:
        raise SystemExit(f"no data of {options.task}: icql data fetch {options.task}")
    with h5py.File(source) as log:
        states, actions, ends = (log[n][:] for n in ("observations", "actions", "terminals"))
    stops = np.flatnonzero(ends)[: options.episodes] + 1
    spans = list(zip([0, *stops[:-1]], stops, strict=True))
    jobs = [(options.task, states[a:b], actions[a:b], i) for i, (a, b) in enumerate(spans)]
    parts = list[tuple[Floats, Floats, float]]()
    with ProcessPoolExecutor(cores()) as pool, Display().work("playing", len(jobs)) as work:
        for part in pool.map(played, *zip(*jobs, strict=True)):
            parts.append(part)
            work.update(len(parts))
    shown, rewards = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    logged = np.nanmean([count for _, _, count in parts])
    here = np.mean([rewards[-1] for _, rewards, _ in parts])
    apart = np.abs(shown - states[: stops[-1]])[:, :ROBOT]
    print(f"episodes {len(spans)}, rows {stops[-1]:,}")
    print(f"tasks fulfilled at the end: {logged:.2f} in the log, {here:.2f} played")
    print(f"robot joints apart: {apart.mean():.4f} on average, {apart.max():.3f} at most")
    shown[:, :ROBOT] = states[: stops[-1], :ROBOT]
    with atomic(options.out) as temporary, h5py.File(temporary, "w") as file:
        file["observations"], file["rewards"] = shown, rewards
        file["actions"], file["terminals"] = actions[: stops[-1]], ends[: stops[-1]]


def played(task: str, states: Floats, actions: Floats, seed: int) -> tuple[Floats, Floats, float]:
    """What the simulator shows and pays where an episode's actions are done.

    Beside it, how many tasks are fulfilled in the last logged state (NaN where its objects are not
    known).
    """
    env: Any = make_env(get_task(task))
    env.reset(seed=seed)
    kitchen = env.unwrapped
    robot = kitchen.robot_env
    start = np.concatenate([states[0, :ROBOT], robot.init_qpos[ROBOT:]])
    robot.set_state(start, np.zeros_like(robot.init_qvel))
    shown, joints = [], []
    for state, action in zip(states, actions, strict=True):
        shown.append(env.observation(kitchen._get_obs(robot._get_obs())))
        joints.append(robot.data.qpos.copy())
        robot._last_robot_qpos = state[:ROBOT].astype(float)  # what an action is added to
        robot.step(action)
    env.close()
    known = bool(np.isfinite(states[-1]).all())
    logged = float(fulfilled(task, states[-1:])[0]) if known else float("nan")
    return np.array(shown, np.float32), fulfilled(task, np.array(joints)), logged


def fulfilled(task: str, joints: NDArray[np.floating]) -> Floats:
    """How many of the task's are, by the robot's and the objects' joints (T, 30 or more)."""
    from gymnasium_robotics.envs.franka_kitchen import kitchen_env

    goals, places = kitchen_env.OBS_ELEMENT_GOALS, kitchen_env.OBS_ELEMENT_INDICES
    near = [
        np.linalg.norm(joints[:, places[name]] - goals[name], axis=1) < NEAR
        for name in get_task(task).kitchen_tasks
    ]
    return np.sum(near, axis=0).astype(np.float32)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
