"""A few environments stepped side by side in one process, reproducible from one seed.

Each episode's reset seed follows from (seed, environment, episode number), and an episode is
determined by its seed and its actions. So a group can be brought back to any moment by resetting
and replaying the actions of the episodes in progress: no simulator state is ever saved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icql.data.tasks import Task
from icql.errors import UserError
from icql.evaluation.environments import make_env

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class Outcome(NamedTuple):
    """What one step of every environment returned, before any of them was reset."""

    successors: Floats  # (envs, obs): the true s', also at the end of an episode
    rewards: Floats  # (envs,)
    terminals: Bools  # (envs,) the task ended: nothing is bootstrapped from s'
    timeouts: Bools  # (envs,) the time limit cut the episode: s' is bootstrapped from as usual


class EnvGroup:
    """`count` environments of a task; `observations` is what each of them shows now."""

    def __init__(self, task: Task, count: int, seed: int) -> None:
        self._envs = [make_env(task) for _ in range(count)]
        box = self._envs[0].action_space
        if not (np.all(box.low == -1) and np.all(box.high == 1)):  # type: ignore[attr-defined]
            raise UserError(
                f"actions must lie in [-1, 1], not in {box}.",
                where=f"environment {task.env_id!r}",
                fix="Wrap it in gymnasium.wrappers.RescaleAction and register that.",
            )
        self.action_dim = len(box.low)  # type: ignore[attr-defined]
        self._seed, self._episode = seed, [0] * count
        self.observations: Floats = np.stack([self._reset(e) for e in range(count)])
        self.observation_dim = int(self.observations.shape[1])

    def step(self, actions: Floats) -> Outcome:
        """Apply one action per environment and reset those whose episode ended."""
        count = len(self._envs)
        successors, rewards = np.empty_like(self.observations), np.zeros(count, np.float32)
        terminals, timeouts = np.zeros((2, count), np.bool_)
        for e, env in enumerate(self._envs):
            s_next, reward, terminal, truncated, _ = env.step(actions[e])
            successors[e], rewards[e] = s_next, float(reward)
            terminals[e], timeouts[e] = terminal, truncated and not terminal
        self.observations = successors.copy()
        for e in np.flatnonzero(terminals | timeouts).tolist():
            self._episode[e] += 1
            self.observations[e] = self._reset(e)
        return Outcome(successors, rewards, terminals, timeouts)

    def restore(self, env: int, episode: int, actions: Floats) -> None:
        """Bring one environment to where it stood `len(actions)` steps into its `episode`."""
        self._episode[env] = episode
        self.observations[env] = self._reset(env)
        for action in actions:
            self.observations[env] = self._envs[env].step(action)[0]

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _reset(self, env: int) -> Floats:
        seed = np.random.SeedSequence([self._seed, env, self._episode[env]]).generate_state(1)[0]
        # 31 bits: some simulators take a signed integer
        return np.asarray(self._envs[env].reset(seed=int(seed >> 1))[0], np.float32)
