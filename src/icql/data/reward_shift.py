"""Are the rewards one row off? Told from the data alone, where it can be.

Kitchen: the logged reward is the number of tasks whose element is within 0.3 of its goal in the
same row's observation, so it is computed anew and compared.

Elsewhere: a reward that belongs to (s, a, s') is explained best by them. A linear model of s, a, a²
and s' is fitted to the reward of the same row, of the row before and of the row after. Only if a
neighbouring row's reward leaves less than a quarter unexplained of what its own leaves, and less
than a tenth of the variance, the rewards count as shifted. MuJoCo's forward rewards are told apart
this way; rewards that vary slowly or depend on s alone (r = f(s) one row early is r = f(s') of the
row before), sparse rewards and small logs are not, and nothing is said about them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.data.blocks import Test, blocks, pick
from icql.data.tasks import Task
from icql.data.transitions import Bools, Steps

# Columns of D4RL's 60-d state and their goals, for the tasks of the kitchen datasets.
KITCHEN: dict[str, tuple[slice, tuple[float, ...]]] = {
    "bottom burner": (slice(11, 13), (-0.88, -0.01)),
    "top burner": (slice(15, 17), (-0.92, -0.01)),
    "light switch": (slice(17, 19), (-0.69, -0.05)),
    "slide cabinet": (slice(19, 20), (0.37,)),
    "hinge cabinet": (slice(20, 22), (0.0, 1.45)),
    "microwave": (slice(22, 23), (-0.75,)),
    "kettle": (slice(23, 30), (-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06)),
}
KITCHEN_WIDTH = 60
DONE = 0.3  # an element this near to its goal counts as done
FITTED = 20_000  # rows at most that the linear model is fitted to
PER_FEATURE = 5  # rows that it needs for each of its features
UNEXPLAINED = 0.1
TIMES_BETTER = 4.0
LAGS = (0, 1, -1)


@dataclass(frozen=True)
class Shift:
    """Rewards that stand `lag` rows after (+1) or before (-1) the step that earned them."""

    lag: int
    evidence: str
    certain: bool  # computed from the task's own reward, not inferred


def reward_shift(steps: Steps, ends: Bools, good: Bools, task: Task | None) -> Shift | None:
    """Whether the rewards are shifted by one row; None if they are not, or it cannot be told.

    Args:
        steps: the log.
        ends: (T,) rows after which an episode ends.
        good: (T,) rows that are valid and finite.
        task: its task, where known.
    """

    def middle(rows: slice) -> Bools:
        """Rows t + 1 with t, t + 1 and t + 2 good and in one episode, for t in `rows`."""
        joined = good[rows.start : rows.stop + 2]
        joined = joined[:-1] & joined[1:] & ~ends[rows.start : rows.stop + 1]
        return joined[:-1] & joined[1:]

    if task is not None and task.domain == "kitchen":
        return _kitchen(steps, middle, task)
    rows = pick(len(steps) - 2, middle, FITTED) + 1
    return _linear(steps, rows) if rows.size else None


def _kitchen(steps: Steps, middle: Test, task: Task) -> Shift | None:
    known = [name for name in task.kitchen_tasks if name in KITCHEN]
    if steps.observations.shape[1] != KITCHEN_WIDTH or len(known) < len(task.kitchen_tasks):
        return None
    count, hits = 0, dict.fromkeys(LAGS, 0)
    for block in blocks(len(steps) - 2, KITCHEN_WIDTH):
        rows = block.start + 1 + np.flatnonzero(middle(block))
        observations, done = steps.observations[rows], np.zeros(len(rows), np.int64)
        for columns, goal in (KITCHEN[name] for name in known):
            done += np.linalg.norm(observations[:, columns] - np.asarray(goal), axis=1) < DONE
        count += len(rows)
        for lag in hits:
            hits[lag] += int((steps.rewards[rows + lag] == done).sum())
    if not count:
        return None
    agree = {lag: hit / count for lag, hit in hits.items()}
    lag = max(agree, key=lambda k: agree[k])
    if lag == 0 or agree[lag] < 0.99:
        return None
    return Shift(
        lag,
        f"the tasks done, computed from the observations, agree with the reward of the row "
        f"{_beside(lag)} in {agree[lag]:.1%} of rows and with that of the same row in "
        f"{agree[0]:.1%}",
        certain=True,
    )


def _linear(steps: Steps, rows: NDArray[np.int64]) -> Shift | None:
    width = 2 * (steps.observations.shape[1] + steps.actions.shape[1])
    if len(rows) < PER_FEATURE * width:
        return None
    rewards = np.stack([steps.rewards[rows + lag].astype(np.float64) for lag in LAGS], axis=1)
    rewards -= rewards.mean(0)
    totals = (rewards**2).sum(0)
    if not totals.all():
        return None

    def features(part: slice) -> NDArray[np.float64]:
        at = rows[part]
        actions = steps.actions[at].astype(np.float64)
        s, following = steps.observations[at], steps.observations[at + 1]
        return np.concatenate([s, actions, actions**2, following], axis=1)

    parts = list(blocks(len(rows), width))
    mean = np.sum([features(part).sum(0) for part in parts], axis=0) / len(rows)
    spread = np.sum([((features(part) - mean) ** 2).sum(0) for part in parts], axis=0)
    scale = np.where(spread > 0, np.sqrt(spread / len(rows)), 1)
    gram, cross = np.zeros((width, width)), np.zeros((width, len(LAGS)))
    for part in parts:
        x = (features(part) - mean) / scale
        gram += x.T @ x
        cross += x.T @ rewards[part]
    power, axes = np.linalg.eigh(gram)
    used = power > 1e-10 * max(power[-1], 1.0)
    onto = (axes[:, used] / np.sqrt(power[used])).T @ cross  # along orthonormal directions
    explained = (onto**2).sum(0) / totals
    left = {lag: max(1 - float(e), 1e-12) for lag, e in zip(LAGS, explained, strict=True)}
    lag = min(left, key=lambda k: left[k])
    if lag == 0 or left[lag] > UNEXPLAINED or left[0] < TIMES_BETTER * left[lag]:
        return None
    return Shift(
        lag,
        f"state, action and next state leave {left[lag]:.2%} of the reward of the row "
        f"{_beside(lag)} unexplained, and {left[0]:.2%} of that of the same row",
        certain=False,
    )


def _beside(lag: int) -> str:
    return "after" if lag > 0 else "before"
