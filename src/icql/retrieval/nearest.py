"""The k nearest states of every query by any engine, each distinct row searched once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from icql.retrieval.approximate import Calibration, Codes, calibrate, search_approximate
from icql.retrieval.distinct import distinct
from icql.retrieval.exact import from_faiss, search_exact
from icql.retrieval.index import ROOM, Cells, Index, Progress
from icql.retrieval.metric import Ids, Points, Rows, Space
from icql.settings.data import ContextSettings

if TYPE_CHECKING:
    from icql.retrieval.accelerator import Accelerator

EXACT_UP_TO = 200_000  # rows; beyond, exact search without structure takes minutes on a CPU
ACCELERATOR_FROM = 20_000  # rows; below, compiling takes longer than searching on the CPU
CELLS_FROM = 4096  # distinct states below which clustering costs more than it saves
SAMPLE = 1000  # queries whose exact neighbours the recall is measured against


def resolve_engine(engine: str, rows: int) -> str:
    """Which engine "auto" stands for with this many rows on this machine."""
    if engine != "auto":
        return engine
    if rows >= ACCELERATOR_FROM:
        import jax  # takes a second: only where it matters

        if jax.default_backend() != "cpu":
            return "accelerator"
    return "exact" if rows <= EXACT_UP_TO else "approximate"


class Search:
    """Embedded states (N, D), prepared once; called with queries it finds their k nearest.

    Args:
        states: rows embedded in `space`, k ≤ N.
        space: the metric.
        extent: the range of states and queries in every column, embedded.
        k: how many neighbours.
        settings: recall floor and seed.
        engine: "exact", "accelerator" or "approximate".
        queries: how many there will be in all.
        sample: gives embedded queries for measuring the recall, where approximate.
        progress: told the recall measured.
        room: float64 numbers that may be worked on at once.
    """

    def __init__(
        self,
        states: Points,
        space: Space,
        extent: tuple[Rows, Rows],
        k: int,
        settings: ContextSettings,
        engine: str,
        queries: int,
        sample: Callable[[], Points],
        progress: Progress,
        *,
        room: int = ROOM,
    ) -> None:
        self._space, self._k = space, k
        self._index = index = Index(states, extent, space.distance, room)
        self._groups = min(k, len(index))
        self._equal = _equal(index.group) if len(index) < len(states) else None
        self._accelerator = _accelerator(index) if engine == "accelerator" else None
        many = engine == "exact" and min(len(index), 4 * queries) >= CELLS_FROM
        self._cells = Cells(index, settings.seed) if many else None
        self._probed: tuple[Codes | Cells, Calibration] | None = None
        if engine == "approximate" and queries > 0:
            self._probed = calibrate(
                index, settings.seed, sample(), self._groups, settings.recall_floor, progress
            )

    @property
    def calibration(self) -> Calibration | None:
        """What approximate search was found to need."""
        return None if self._probed is None else self._probed[1]

    def __call__(self, queries: Points, progress: Progress) -> tuple[Ids, Rows]:
        """Ids (Q, k) and distances (Q, k) of embedded queries, nearest first, ties by row id.

        Equal rows are searched once: the s' of one row is mostly the s of the next.
        """
        if not len(queries):
            return np.empty((0, self._k), np.int64), np.empty((0, self._k))
        first, back = distinct(queries)
        ids, squared = self._search(queries[first], progress)
        away = self._space.distance(squared)
        if self._equal is not None:
            ids, away = _members(self._index, self._equal, ids, away, self._k)
        return ids[back], away[back]

    def _search(self, queries: Points, progress: Progress) -> tuple[Ids, Rows]:
        index, k = self._index, self._groups
        if self._probed is not None:
            cells, found = self._probed
            return search_approximate(index, cells, queries, k, found.probes, progress)
        if self._accelerator is not None:
            device = self._accelerator
            return search_exact(index, device.propose, queries, k, progress, most=device.most)
        width = 0 if self._cells is None else self._cells.count
        propose = from_faiss(index, self._cells)
        return search_exact(index, propose, queries, k, progress, width=width)


def _accelerator(index: Index) -> Accelerator:
    from icql.retrieval.accelerator import Accelerator  # JAX, as above

    return Accelerator(index.near)


def merge(one: tuple[Ids, Rows], other: tuple[Ids, Rows], keep: int) -> tuple[Ids, Rows]:
    """The `keep` nearest of two tables of neighbours of the same queries, by (distance, id)."""
    ids, away = (np.concatenate(both, axis=1) for both in zip(one, other, strict=True))
    order = np.lexsort((ids, away))[:, :keep]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(away, order, 1)


def _equal(group: Ids) -> tuple[Ids, Ids, Ids]:
    """How many rows each group has, where it starts, and the rows by group, then by id."""
    sizes = np.bincount(group)
    return sizes, np.cumsum(sizes) - sizes, np.argsort(group, kind="stable")


def _members(
    index: Index, equal: tuple[Ids, Ids, Ids], groups: Ids, distances: Rows, k: int
) -> tuple[Ids, Rows]:
    """Replace groups of equal states (Q, g) by their rows: the first k by (distance, id)."""
    sizes, start, rows = equal
    ids, away = np.empty((len(groups), k), np.int64), np.empty((len(groups), k))
    found = groups.shape[1]
    ids[:, :found], away[:, :found] = rows[start[groups]], distances
    several = (sizes[groups] > 1).any(axis=1) | (found < k)
    for _, block in index.blocks(np.flatnonzero(several), found * k):
        chosen = groups[block][:, :, None]
        slot = np.arange(min(k, sizes[chosen].max()))
        filled = slot < sizes[chosen]
        member = rows[np.where(filled, start[chosen] + slot, 0)].reshape(len(block), -1)
        far = np.where(filled, distances[block][:, :, None], np.inf).reshape(len(block), -1)
        order = np.lexsort((member, far))[:, :k]
        ids[block] = np.take_along_axis(member, order, 1)
        away[block] = np.take_along_axis(far, order, 1)
    return ids, away
