"""Logs whose rows can be told apart, shared by the tests of data."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

from icql.data import DataInfo, Steps, Task, Transitions
from icql.data.transitions import Source

LIMIT = 5
SHORT = Task("short", "Hopper-v4", min_score=0.0, max_score=10.0, max_episode_steps=LIMIT)


def log(length: int, *, terminals: Any = (), timeouts: Any = (), **more: Any) -> Steps:
    """Row i observes (i, -i), acts i/100 and is paid i, so that a mixed-up row shows."""
    row = np.arange(length, dtype=np.float32)
    flags = np.zeros((2, length), np.bool_)
    flags[0, list(terminals)] = True
    flags[1, list(timeouts)] = True
    return Steps(np.stack([row, -row], 1), row[:, None] / 100, row, flags[0], flags[1], **more)


def successors(steps: Steps) -> np.ndarray:
    """Next observations as a simulator records them: a row of its own after an episode's end."""
    following = np.roll(steps.observations, -1, axis=0)
    following[steps.terminals | steps.timeouts] = 1000
    return following


def write_hdf5(path: pathlib.Path, steps: Steps, *, leave_out: Any = (), **more: Any) -> None:
    arrays = {
        "observations": steps.observations,
        "actions": steps.actions,
        "rewards": steps.rewards,
        "terminals": steps.terminals,
        "timeouts": steps.timeouts,
        "next_observations": steps.next_observations,
        "valid": steps.valid,
        "infos/qpos": np.zeros(3),
    } | more
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None and name not in leave_out:
                file[name] = array


def rows_of(data: Transitions) -> list[int]:
    return [int(s[0]) for s in data.states]


@st.composite
def flagged_logs(draw: st.DrawFn) -> Steps:
    length = draw(st.integers(2, 30))
    rows = st.sets(st.integers(0, length - 1))
    steps = log(length, terminals=draw(rows), timeouts=draw(rows))
    if draw(st.booleans()):
        steps = replace(steps, next_observations=successors(steps))
    if draw(st.booleans()):
        valid = np.ones(length, np.bool_)
        valid[list(draw(rows))] = False
        steps = replace(steps, valid=valid)
    return replace(steps, drop_last=draw(st.booleans()))


def random_log(rows: int, seed: int = 0, *, recorded: bool = False) -> Steps:
    """Episodes of random lengths that end in each possible way."""
    rng = np.random.default_rng(seed)
    terminals, timeouts = rng.random((2, rows)) < 0.1
    timeouts[-1] = True
    steps = Steps(
        rng.normal(size=(rows, 3)).astype(np.float32),
        rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rng.normal(size=rows).astype(np.float32),
        terminals,
        timeouts,
    )
    if not recorded:
        return steps
    following = np.roll(steps.observations, -1, axis=0)
    following[terminals | timeouts] += 1
    return replace(steps, next_observations=following)


def source(steps: Steps, task: Task | None = None) -> Source:
    return Source(steps, DataInfo("log", source="log.npz"), task)


def clean(episodes: int = 30, *, successors: bool = True, seed: int = 0) -> Steps:
    """A runner in 4 dimensions, paid for its forward speed less the effort, ends of both kinds."""
    generator = np.random.default_rng(seed)
    observations, following, actions, rewards, ends = [], [], [], [], []
    for _ in range(episodes):
        length = int(generator.integers(20, 50))
        states = np.empty((length + 1, 4))
        states[0] = 5 + 0.05 * generator.normal(size=4)
        action = generator.uniform(-0.9, 0.9, (length, 2))
        for t in range(length):
            push = np.append(action[t], -action[t])
            states[t + 1] = 0.9 * states[t] + 0.5 * push + 0.1 * generator.normal(size=4)
        observations.append(states[:-1])
        following.append(states[1:])
        actions.append(action)
        rewards.append(states[1:, 0] - 0.1 * (action**2).sum(1))
        ends.append(np.arange(length) == length - 1)
    end = np.concatenate(ends)
    terminal = end & (np.cumsum(end) % 2 == 0)
    return Steps(
        np.concatenate(observations).astype(np.float32),
        np.concatenate(actions).astype(np.float32),
        np.concatenate(rewards).astype(np.float32),
        terminal,
        end & ~terminal,
        np.concatenate(following).astype(np.float32) if successors else None,
    )


CLEAN = clean()
PLAIN = clean(successors=False)
