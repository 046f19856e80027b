"""Statistics over runs × tasks: IQM, stratified bootstrap, improvement, performance profiles.

After Agarwal et al. 2021. Scores come by task, one number per training seed; tasks may have
different numbers of seeds. Final scores only: the best seen during training is no score. The mean
of one cell and its t interval are `icql.evaluation.scores.summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
ByTask = Mapping[str, Sequence[float]]
SAMPLES = 2000  # of a bootstrap


class Interval(TypedDict):
    """An estimate with its 95 % interval, ready for JSON."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: ArrayLike, axis: int = -1) -> Floats:
    """Mean of the middle half: a quarter of the scores, rounded down, is left out at each end."""
    ordered = np.sort(np.asarray(scores, np.float64), axis)
    n = ordered.shape[axis]
    if n == 0:
        raise ValueError("no scores")
    kept = np.arange(n // 4, n - n // 4)
    return np.asarray(ordered.take(kept, axis).mean(axis))


def resampled(scores: ByTask, samples: int, rng: np.random.Generator) -> list[Floats]:
    """Draw the seeds of each task anew, with replacement: (samples, seeds) for each task."""
    drawn = []
    for values in scores.values():
        runs = np.asarray(values, np.float64)
        drawn.append(runs[rng.integers(len(runs), size=(samples, len(runs)))])
    return drawn


def aggregate(
    scores: ByTask,
    statistic: Callable[[Floats], Floats] = interquartile_mean,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic of all runs of all tasks, its interval by a bootstrap stratified by task.

    With a single seed for every task there is nothing to draw anew: the interval has no width.
    """
    every = np.concatenate([np.asarray(values, np.float64) for values in scores.values()])
    rng = np.random.default_rng(seed)
    drawn = statistic(np.concatenate(resampled(scores, samples, rng), axis=1))
    return _interval(float(statistic(every)), drawn)


def probability_of_improvement(
    ours: ByTask, theirs: ByTask, *, samples: int = SAMPLES, seed: int = 0
) -> Interval:
    """P(a run of ours scores above one of theirs), ties half, mean over the tasks of both."""
    tasks = [task for task in ours if task in theirs]
    if not tasks:
        raise ValueError("no task in common")
    rng = np.random.default_rng(seed)
    x = resampled({task: ours[task] for task in tasks}, samples, rng)
    y = resampled({task: theirs[task] for task in tasks}, samples, rng)
    drawn = np.mean([_above(a, b) for a, b in zip(x, y, strict=True)], axis=0)
    whole = [np.asarray([by[task]], np.float64) for task in tasks for by in (ours, theirs)]
    value = np.mean([_above(a, b) for a, b in zip(whole[::2], whole[1::2], strict=True)])
    return _interval(float(value), drawn)


def performance_profile(scores: ByTask, thresholds: ArrayLike) -> Floats:
    """The share of runs that score above each threshold, mean over tasks."""
    limits = np.asarray(thresholds, np.float64)
    shares = [
        (np.asarray(values, np.float64)[:, None] > limits).mean(0) for values in scores.values()
    ]
    return np.asarray(np.mean(shares, axis=0))


def fullest_block(tasks_of: Mapping[str, Iterable[str]]) -> tuple[list[str], set[str]]:
    """The methods and tasks without a gap between them that have the most entries.

    Of equals, the one with more methods. Nothing where no method has a task.
    """
    has = {method: frozenset(tasks) for method, tasks in tasks_of.items()}
    shared = set[frozenset[str]]()  # every set of tasks that some methods have in common
    for own in has.values():
        shared |= {own} | {own & other for other in shared}

    def members(tasks: frozenset[str]) -> list[str]:
        return [method for method, own in has.items() if tasks <= own]

    blocks = [(members(tasks), tasks) for tasks in shared if tasks]
    if not blocks:
        return [], set()
    methods, tasks = max(blocks, key=lambda b: (len(b[0]) * len(b[1]), len(b[0]), sorted(b[1])))
    return methods, set(tasks)


def _above(x: Floats, y: Floats) -> Floats:
    """Share of pairs in which x is above y, ties half, for each sample: (samples,)."""
    difference = x[:, :, None] - y[:, None, :]
    return np.asarray(((difference > 0) + 0.5 * (difference == 0)).mean((1, 2)))


def _interval(value: float, drawn: Floats) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(value=value, low=float(low), high=float(high))
