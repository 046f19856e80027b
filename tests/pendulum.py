"""Real MuJoCo data that is made in a second: a noisy controller balances an inverted pendulum."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np

from icql.data.formats.npz import write_npz
from icql.data.tasks import Task, list_tasks, register_task
from icql.data.transitions import Steps

TASK = Task(
    "pendulum-test",
    "InvertedPendulum-v5",
    min_score=0.0,
    max_score=200.0,
    max_episode_steps=200,
    unit_actions=False,  # the controller below pushes within ±1 of the environment's ±3
)
GAINS = np.array([0.5, 3.0, 0.6, 0.8])  # cart position, angle, their velocities


def register() -> None:
    if TASK.name not in list_tasks():
        register_task(TASK)


def make_data(path: Path, steps: int = 3000, seed: int = 0, noise: float = 0.2) -> Path:
    rng = np.random.default_rng(seed)
    env = gymnasium.make(TASK.env_id, max_episode_steps=100)
    columns: dict[str, list] = {k: [] for k in ("s", "a", "r", "end", "cut", "s_next")}
    s, _ = env.reset(seed=seed)
    for _ in range(steps):
        a = np.clip(GAINS @ s + noise * rng.normal(), -1, 1)[None]
        s_next, r, terminated, truncated, _ = env.step(a)
        for key, value in zip(columns, (s, a, r, terminated, truncated, s_next), strict=True):
            columns[key].append(value)
        s = env.reset()[0] if terminated or truncated else s_next
    env.close()
    write_npz(
        path,
        Steps(
            observations=np.array(columns["s"], np.float32),
            actions=np.array(columns["a"], np.float32),
            rewards=np.array(columns["r"], np.float32),
            terminals=np.array(columns["end"], bool),
            timeouts=np.array(columns["cut"], bool),
            next_observations=np.array(columns["s_next"], np.float32),
        ),
    )
    return path
