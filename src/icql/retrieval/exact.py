"""Exact search: the result equals float64 brute force, ties broken by row id.

faiss proposes k + margin candidates in float32, float64 ranks them, and a certificate follows from
a bound on float32's error: no row that was not proposed can be as near as the k-th one. Queries
without a certificate get a wider margin and at last a search in float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icql.retrieval.index import FLOAT32, FLOAT64, Cells, Index, Progress, blocks
from icql.retrieval.metric import Ids, Rows

MARGINS = (16, 240)  # candidates beyond k, tried in turn
PROBES = 4  # cells looked at first, to learn how far the k-th neighbour can be
FLAT_FROM = 0.25  # share of rows in touched cells from which scanning all rows is as fast


def search_exact(
    index: Index, cells: Cells | None, rows: Ids, k: int, progress: Progress
) -> tuple[Ids, Rows]:
    """The k nearest states of the queries `rows`: ids (Q, k) and |x - y|² (Q, k), nearest first."""
    ids = np.empty((len(rows), k), np.int64)
    squared = np.empty((len(rows), k))
    pending = np.arange(len(rows))
    for margin, label in zip(MARGINS, ("exact search", "exact search, ties"), strict=True):
        m = min(k + margin, len(index.states))
        left = [pending[:0]]
        for done, block in blocks(pending, m * index.states.shape[1]):
            ids[block], squared[block], certain = _attempt(index, cells, rows[block], k, m)
            left.append(block[~certain])
            progress(label, done)
        pending = np.concatenate(left)
    for done, block in blocks(pending, len(index.states)):
        ids[block], squared[block] = _search_in_float64(index, rows[block], k)
        progress("exact search, float64", done)
    return ids, squared


def _attempt(
    index: Index, cells: Cells | None, rows: Ids, k: int, m: int
) -> tuple[Ids, Rows, NDArray[np.bool_]]:
    """Propose, rank, certify: k ids, their |x - y|², and whether they are certainly the nearest."""
    proposed = np.full((len(rows), m), -1, np.int64)
    # Every state that was not proposed has at least this squared distance in float32.
    unseen = np.full(len(rows), np.inf)
    everywhere = np.ones(len(rows), bool)
    if cells is not None:
        # States within the distance of any k states include the k nearest: visit only their cells.
        _, guess = cells.probe(rows, k, PROBES)
        touched = cells.touched(rows, index.measure(rows, guess).max(axis=1))
        everywhere = touched @ cells.sizes > FLAT_FROM * len(index.states)
        few = np.flatnonzero(~everywhere)
        if len(few):
            found, proposed[few] = cells.visit(rows[few], m, touched[few])
            unseen[few] = np.where(proposed[few, -1] < 0, np.inf, found[:, -1])
    many = np.flatnonzero(everywhere)
    if len(many):
        found, proposed[many] = index.flat(rows[many], m)
        unseen[many] = np.inf if m == len(index.states) else found[:, -1]
    ids, squared = index.rank(rows, proposed, k)
    reach = squared[:, -1] * index.scale**2
    return ids, squared, unseen > reach + _error(index, rows, reach, FLOAT32)


def _error(index: Index, rows: Ids, reach: Rows, precision: tuple[float, float]) -> Rows:
    """How far the computed |x - q|² can be off for any state x within `reach` (squared) of q.

    Bounds both |x|² + |q|² - 2x·q and Σ(x - q)² in this precision, coordinates rounded first.
    The triangle inequality gives |x| ≤ |q| + √reach: far outliers do not spoil the bound.
    """
    unit, underflow = precision
    longest = 2 * np.sqrt((index.asked[rows] ** 2).sum(axis=1)) + np.sqrt(reach)
    error: Rows = (2 * index.near.shape[1] + 32) * unit * longest**2 + underflow
    return error


def _search_in_float64(index: Index, rows: Ids, k: int) -> tuple[Ids, Rows]:
    """Rank every state that could be among the k nearest, however many they are."""
    near, asked = index.near, index.asked[rows]
    computed = (near**2).sum(axis=1) - 2 * (asked @ near.T) + (asked**2).sum(axis=1)[:, None]
    guess = np.argpartition(computed, k - 1, axis=1)[:, :k].astype(np.int64)
    reach = index.measure(rows, guess).max(axis=1) * index.scale**2
    limit = reach + _error(index, rows, reach, FLOAT64)
    ids, squared = np.empty_like(guess), np.empty(guess.shape)
    for i in range(len(rows)):
        possible = np.flatnonzero(computed[i] <= limit[i])[None]
        ids[i], squared[i] = (best[0] for best in index.rank(rows[i : i + 1], possible, k))
    return ids, squared
