"""The paper's three retrieval strategies, on top of the nearest states.

State-similar: the k nearest. Random: k uniform rows. State-similar-with-high-rewards: of the
nearest `candidates`, the k with the highest reward. In every case nearest first.
"""

from __future__ import annotations

import numpy as np

from icql.retrieval.index import Progress, blocks
from icql.retrieval.metric import SPACES, Ids, Rows, squared_distances
from icql.retrieval.nearest import nearest_states
from icql.retrieval.report import SearchReport
from icql.retrieval.settings import ContextSettings


def contexts(
    states: Rows,
    queries: Rows,
    rewards: Rows | None,
    exclude: Ids,
    settings: ContextSettings,
    progress: Progress,
) -> tuple[Ids, Rows, SearchReport]:
    """Context rows (Q, k) and distances (Q, k) of every query, and how they were found.

    Takes valid input: finite float64 states (N, D), queries (Q, D) and, for high_reward, rewards
    (N,); `exclude` (Q, e) with -1 for none; at least k rows left for every query.
    """
    if settings.strategy == "random":
        generator = np.random.default_rng(settings.seed)
        ids = _random_rows(generator, len(states), settings.k, exclude)
        report = SearchReport("random", len(states), len(queries))
        return *_nearest_first(states, queries, ids, settings.metric), report
    wanted = settings.k if rewards is None else settings.candidates
    ids, distances, report = nearest_states(
        states,
        queries,
        min(wanted + exclude.shape[1], len(states)),
        metric=settings.metric,
        engine=settings.engine,
        recall_floor=settings.recall_floor,
        seed=settings.seed,
        progress=progress,
    )
    ids, distances = _without(ids, distances, exclude, wanted)
    if rewards is not None:
        ids, distances = _highest_reward(ids, distances, rewards, settings.k)
    return ids, distances, report


def _without(ids: Ids, distances: Rows, exclude: Ids, keep: int) -> tuple[Ids, Rows]:
    """Push the ids in `exclude` (Q, e) to the end, infinitely far; the first `keep` columns."""
    out = np.zeros(ids.shape, bool)
    for column in exclude.T:
        out |= ids == column[:, None]
    order = np.argsort(out, axis=1, kind="stable")[:, :keep]
    distances = np.where(out, np.inf, distances)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(distances, order, 1)


def _highest_reward(ids: Ids, distances: Rows, rewards: Rows, k: int) -> tuple[Ids, Rows]:
    """Of candidates (Q, m), nearest first, the k with the highest reward; ties go to the nearer."""
    worth = np.where(np.isinf(distances), -np.inf, rewards[ids])
    best = np.argsort(-worth, axis=1, kind="stable")[:, :k]
    best.sort(axis=1)  # nearest first again
    return np.take_along_axis(ids, best, 1), np.take_along_axis(distances, best, 1)


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


def _nearest_first(states: Rows, queries: Rows, ids: Ids, metric: str) -> tuple[Ids, Rows]:
    """Order the rows (Q, k) of every query by (distance, id)."""
    space = SPACES[metric]
    states, queries = space.embed_states(states), space.embed_queries(queries)
    ids, distances = ids.copy(), np.empty(ids.shape)
    for _, block in blocks(np.arange(len(ids)), ids.shape[1] * states.shape[1]):
        away = space.distance(squared_distances(states, queries[block], ids[block]))
        order = np.lexsort((ids[block], away))
        ids[block] = np.take_along_axis(ids[block], order, 1)
        distances[block] = np.take_along_axis(away, order, 1)
    return ids, distances
