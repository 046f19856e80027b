"""Exact search: the result equals float64 brute force, ties broken by row id.

A proposer finds k + margin candidates in float32, float64 ranks them, and a certificate follows
from a bound on float32's error: no row that was not proposed can be as near as the k-th one.
Queries without a certificate get a wider margin and at last a search in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from icql.retrieval.index import FLOAT32, FLOAT64, Cells, Index, Progress
from icql.retrieval.metric import Ids, Points, Rows, pieces

MARGINS = (16, 240)  # candidates beyond k, tried in turn
PROBES = 4  # cells looked at first, to learn how far the k-th neighbour can be
FLAT_FROM = 0.25  # share of rows in touched cells from which scanning all rows is as fast
MOST = 4096  # queries at once
LABELS = ("exact search", "exact search, ties", "exact search, float64")

T = TypeVar("T")
Proposal = tuple[Any, Any]
"""m candidates of each query (Q, m), -1 for none, and the least squared distance in float32 (Q,)
of the states that are not among them. Arrays of the host, or of a device that is still at work."""

Proposer = Callable[[Points, Rows, int, int], Proposal]
"""(queries, the same centred, k, m) → m candidates."""


def search_exact(
    index: Index,
    propose: Proposer,
    queries: Points,
    k: int,
    progress: Progress,
    *,
    width: int = 0,
    most: int = MOST,
) -> tuple[Ids, Rows]:
    """The k nearest states of embedded queries: ids (Q, k) and |x - y|² (Q, k), nearest first.

    `width` is how many float64 numbers the proposer needs per query, `most` how many queries it
    takes at once.
    """
    ids = np.empty((len(queries), k), np.int64)
    squared = np.empty((len(queries), k))
    pending = np.arange(len(queries))
    for margin, label in zip(MARGINS, LABELS, strict=False):
        m = min(k + margin, len(index))
        most = min(most, MOST) if margin > MARGINS[0] else most  # few are left, with wide margins
        proposals = (
            (done, block, propose(queries[block], index.centred(queries[block]), k, m))
            for done, block in index.blocks(pending, max(width, 2 * m), most)
        )
        left = [pending[:0]]
        for done, block, proposal in _one_ahead(proposals):
            ids[block], squared[block], certain = _certify(index, queries[block], k, proposal)
            left.append(block[~certain])
            progress(label, done)
        pending = np.concatenate(left)
    for done, block in index.blocks(pending, 2 * len(index)):
        ids[block], squared[block] = _search_in_float64(index, queries[block], k)
        progress(LABELS[-1], done)
    return ids, squared


def _one_ahead(items: Iterable[T]) -> Iterator[T]:
    """The items, each given out once the next is begun: the host ranks while a device proposes."""
    source = iter(items)
    for item in source:
        for following in source:
            yield item
            item = following
        yield item


def from_faiss(index: Index, cells: Cells | None) -> Proposer:
    """Propose by faiss: the cells that may hold one of the k nearest, or else all states."""

    def propose(queries: Points, asked: Rows, k: int, m: int) -> Proposal:
        proposed = np.full((len(asked), m), -1, np.int64)
        unseen = np.full(len(asked), np.inf)
        everywhere = np.ones(len(asked), bool)
        if cells is not None:
            # States within the distance of any k states include the k nearest.
            guess = cells.probe(asked, k, PROBES)
            touched = cells.touched(asked, index.measure(queries, guess).max(axis=1))
            everywhere = touched @ cells.sizes > FLAT_FROM * len(index)
            few = np.flatnonzero(~everywhere)
            if len(few):
                found, proposed[few] = cells.visit(asked[few], m, touched[few])
                unseen[few] = np.where(proposed[few, -1] < 0, np.inf, found[:, -1])
        many = np.flatnonzero(everywhere)
        if len(many):
            found, proposed[many] = faiss.knn(asked[many].astype(np.float32), index.near, m)
            unseen[many] = np.inf if m == len(index) else found[:, -1]
        return proposed, unseen

    return propose


def _certify(
    index: Index, queries: Points, k: int, proposal: Proposal
) -> tuple[Ids, Rows, NDArray[np.bool_]]:
    """Rank, certify: k ids, their |x - y|², and whether they are certainly the nearest."""
    proposed, unseen = (np.asarray(part) for part in proposal)
    ids, squared = index.rank(queries, proposed[: len(queries)].astype(np.int64), k)
    sure = certain(index, index.centred(queries), squared[:, -1], unseen[: len(queries)])
    return ids, squared, sure


def certain(index: Index, asked: Rows, farthest: Rows, unseen: Rows) -> NDArray[np.bool_]:
    """Whether no state beyond `unseen`, |x - y|² in float32, can be as near as `farthest` (Q,).

    `asked` are the centred queries, `farthest` is the |x - y|² of the last one found.
    """
    reach = farthest * index.scale**2
    none_left = np.isinf(unseen)
    return none_left | (unseen > reach + _error(asked, reach, FLOAT32))


def _error(asked: Rows, reach: Rows, precision: tuple[float, float]) -> Rows:
    """How far the computed |x - q|² can be off for any state x within `reach` (squared) of q.

    Bounds |x|² + |q|² - 2x·q and Σ(x - q)², summed in any order, coordinates rounded first, with a
    factor of 2 to spare. The triangle inequality gives |x| ≤ |q| + √reach: far outliers do not
    spoil the bound.
    """
    unit, underflow = precision
    longest = 2 * np.sqrt((asked**2).sum(axis=1)) + np.sqrt(reach)
    error: Rows = (2 * asked.shape[1] + 16) * unit * longest**2 + underflow
    return error


def _search_in_float64(index: Index, queries: Points, k: int) -> tuple[Ids, Rows]:
    """Rank every state that could be among the k nearest, however many they are."""
    asked = index.centred(queries)
    computed = np.empty((len(asked), len(index)))
    for piece in pieces(index.near):
        near = index.centred(index.states[index.first[piece]])
        computed[:, piece] = (near**2).sum(axis=1) - 2 * (asked @ near.T)
    computed += (asked**2).sum(axis=1)[:, None]
    guess = np.argpartition(computed, k - 1, axis=1)[:, :k].astype(np.int64)
    reach = index.measure(queries, guess).max(axis=1) * index.scale**2
    limit = reach + _error(asked, reach, FLOAT64)
    ids, squared = np.empty_like(guess), np.empty(guess.shape)
    for i in range(len(asked)):
        possible = np.flatnonzero(computed[i] <= limit[i])[None]
        ids[i], squared[i] = (best[0] for best in index.rank(queries[i : i + 1], possible, k))
    return ids, squared
