"""The k nearest states of every query by either engine, each distinct row searched once."""

from __future__ import annotations

import time

import numpy as np

from icql.retrieval.approximate import calibrate, search_approximate
from icql.retrieval.exact import search_exact
from icql.retrieval.index import Cells, Index, Progress, blocks
from icql.retrieval.metric import SPACES, Ids, Rows
from icql.retrieval.report import SearchReport

EXACT_UP_TO = 200_000  # distinct states; beyond, exact search without structure takes minutes
CELLS_FROM = 4096  # distinct states below which clustering costs more than it saves


def nearest_states(
    states: Rows,
    queries: Rows,
    k: int,
    *,
    metric: str,
    engine: str,
    recall_floor: float,
    seed: int,
    progress: Progress,
) -> tuple[Ids, Rows, SearchReport]:
    """Ids (Q, k) and distances (Q, k), nearest first, ties by row id, and how they were found.

    Takes valid input: finite float64, k ≤ N. Equal rows are searched once and put back afterwards:
    the s' of one row is mostly the s of the next, and any number of equal states costs nothing.
    """
    if len(queries) == 0:
        return np.empty((0, k), np.int64), np.empty((0, k)), SearchReport("exact", len(states), 0)
    start = time.monotonic()
    space = SPACES[metric]
    states, queries = space.embed_states(states), space.embed_queries(queries)
    first, group = _distinct(states)
    asked, back = _distinct(queries)
    index = Index(states[first], queries[asked], space.distance)
    if engine == "auto":
        engine = "exact" if len(first) <= EXACT_UP_TO else "approximate"

    groups = min(k, len(first))
    recall, sample, probes = 1.0, 0, 0
    if engine == "approximate":
        cells = Cells(index, seed)
        found = calibrate(index, cells, groups, recall_floor, seed, progress)
        recall, sample, probes = found.recall, found.sample, found.probes
        ids, squared = search_approximate(index, cells, groups, probes, progress)
    else:
        many = min(len(first), 4 * len(asked)) >= CELLS_FROM
        balls = Cells(index, seed) if many else None
        ids, squared = search_exact(index, balls, np.arange(len(asked)), groups, progress)
    ids, distances = _members(ids, space.distance(squared), group, k)
    report = SearchReport(
        engine=engine,
        states=len(states),
        queries=len(queries),
        recall=recall,
        sample=sample,
        probes=probes,
        seconds=time.monotonic() - start,
    )
    return ids[back], distances[back], report


def _distinct(rows: Rows) -> tuple[Ids, Ids]:
    """First row of each group of equal rows, in row order, and the group of each row."""
    rows = np.ascontiguousarray(rows)
    keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return first[order], number[group]


def _members(groups: Ids, distances: Rows, group: Ids, k: int) -> tuple[Ids, Rows]:
    """Replace groups of equal states (Q, g) by their rows: the first k by (distance, id)."""
    sizes = np.bincount(group)
    rows = np.argsort(group, kind="stable")  # by group, then by id
    start = np.cumsum(sizes) - sizes
    ids, away = np.empty((len(groups), k), np.int64), np.empty((len(groups), k))
    found = groups.shape[1]
    ids[:, :found], away[:, :found] = rows[start[groups]], distances
    several = (sizes[groups] > 1).any(axis=1) | (found < k)
    for _, block in blocks(np.flatnonzero(several), found * k):
        chosen = groups[block][:, :, None]
        slot = np.arange(min(k, sizes[chosen].max()))
        filled = slot < sizes[chosen]
        member = rows[np.where(filled, start[chosen] + slot, 0)].reshape(len(block), -1)
        far = np.where(filled, distances[block][:, :, None], np.inf).reshape(len(block), -1)
        order = np.lexsort((member, far))[:, :k]
        ids[block] = np.take_along_axis(member, order, 1)
        away[block] = np.take_along_axis(far, order, 1)
    return ids, away
