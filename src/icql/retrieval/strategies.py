"""The paper's three retrieval strategies, on top of the nearest states.

State-similar: the k nearest. Random: k uniform rows. State-similar-with-high-rewards: of the
nearest `candidates`, the k with the highest reward. In every case nearest first.
"""

from __future__ import annotations

import numpy as np

from icql.retrieval.metric import Ids, Points, Rows, distances
from icql.settings.data import ContextSettings


def wanted(settings: ContextSettings, excluded: int, states: int) -> int:
    """How many of the nearest states `choose` needs, where `excluded` of them may be left out."""
    by_reward = settings.strategy == "high_reward"
    return min((settings.candidates if by_reward else settings.k) + excluded, states)


def choose(
    ids: Ids, away: Rows, exclude: Ids, rewards: Points | None, settings: ContextSettings
) -> tuple[Ids, Rows]:
    """The context (Q, k) out of the nearest states (Q, `wanted`), nearest first.

    `exclude` (Q, e) are the ids to leave out, -1 for none; `rewards` (N,) of high_reward.
    """
    if rewards is None:
        return _without(ids, away, exclude, settings.k)
    candidates = _without(ids, away, exclude, settings.candidates)
    return _highest_reward(*candidates, rewards, settings.k)


def random_rows(
    generator: np.random.Generator,
    states: Points,
    queries: Points,
    exclude: Ids,
    settings: ContextSettings,
) -> tuple[Ids, Rows]:
    """k uniform rows (Q, k) of every query and their distances (Q, k), nearest first."""
    ids = _random_rows(generator, len(states), settings.k, exclude)
    away = distances(states, queries, ids, settings.metric)
    order = np.lexsort((ids, away))
    return np.take_along_axis(ids, order, 1), np.take_along_axis(away, order, 1)


def _without(ids: Ids, away: Rows, exclude: Ids, keep: int) -> tuple[Ids, Rows]:
    """Push the ids in `exclude` (Q, e) to the end, infinitely far; the first `keep` columns."""
    if not exclude.shape[1]:
        return ids[:, :keep], away[:, :keep]
    out = np.zeros(ids.shape, bool)
    for column in exclude.T:
        out |= ids == column[:, None]
    order = np.argsort(out, axis=1, kind="stable")[:, :keep]
    away = np.where(out, np.inf, away)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(away, order, 1)


def _highest_reward(ids: Ids, away: Rows, rewards: Points, k: int) -> tuple[Ids, Rows]:
    """Of candidates (Q, m), nearest first, the k with the highest reward; ties go to the nearer."""
    worth = np.where(np.isinf(away), -np.inf, rewards[ids])
    best = np.argsort(-worth, axis=1, kind="stable")[:, :k]
    best.sort(axis=1)  # nearest first again
    return np.take_along_axis(ids, best, 1), np.take_along_axis(away, best, 1)


def _random_rows(generator: np.random.Generator, states: int, k: int, exclude: Ids) -> Ids:
    """k distinct rows (Q, k), uniform among those not in `exclude` (Q, e), where -1 is none.

    Floyd's sampling for all queries at once: exactly uniform, k draws per query.
    """
    taken = np.sort(exclude, axis=1)
    left_out = taken >= 0
    left_out[:, 1:] &= taken[:, 1:] != taken[:, :-1]
    available = states - left_out.sum(axis=1)
    rows = np.full((len(exclude), k), -1, np.int64)
    for i in range(k):
        last = available - k + i
        drawn = generator.integers(0, last + 1)
        again = (rows[:, :i] == drawn[:, None]).any(axis=1)
        rows[:, i] = np.where(again, last, drawn)
    # The draws number the rows without the excluded ones: step over these in ascending order.
    for j in range(taken.shape[1]):
        rows += left_out[:, j : j + 1] & (rows >= taken[:, j : j + 1])
    return rows
