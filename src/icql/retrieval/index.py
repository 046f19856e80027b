"""What every engine searches: distinct rows, proposed in float32 and ranked in float64.

faiss and accelerators work in float32, so they only propose; the ranking is always the float64 one
of `metric.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from icql.retrieval.metric import (
    PASS,
    Ids,
    Points,
    Rows,
    Space,
    distinct,
    nearest_first,
    pieces,
    squared_distances,
)

Floats = NDArray[np.float32]
Progress = Callable[[str, float], None]

FLOAT32 = (2.0**-24, 1e-34)  # unit roundoff, and what underflow can add to a scaled |x - y|²
FLOAT64 = (2.0**-53, 1e-60)
SLACK = 1e-9  # far more than float64 rounds, far less than a distance that matters
ROOM = 2**21  # float64 numbers worked on at once: 16 MB
MOST_THREADS = 16
PER_CELL = 64  # rows per cell that the clustering learns from


class Index:
    """The distinct ones of embedded states (N, D), prepared for queries within `extent`.

    `first` are their rows, `group` is the distinct state of every row. `near` are the distinct
    states centred, scaled by a power of two to at most 1 and without the columns in which nothing
    varies: distances only change by the factor `scale`, and float32 loses the least. `room` is how
    many float64 numbers may be worked on at once.
    """

    def __init__(self, states: Points, extent: tuple[Rows, Rows], space: Space, room: int) -> None:
        self.states, self.distance, self.room = states, space.distance, room
        self.first, self.group = distinct(states)
        low, high = extent
        self._varies = low < high
        self._varies[0] |= not self._varies.any()  # faiss needs a column
        low, high = low[self._varies], high[self._varies]
        sample = self.first[:: max(1, len(self.first) * states.shape[1] // PASS)]
        # Outliers do not move the median.
        self._centre = np.median(states[sample][:, self._varies].astype(np.float64), axis=0)
        farthest = max(np.abs(low - self._centre).max(), np.abs(high - self._centre).max())
        self.scale = 2.0 ** -max(int(np.frexp(farthest)[1]), -400)  # so that its square is finite
        self.near = np.empty((len(self.first), len(low)), np.float32)
        for piece in pieces(self.near):
            self.near[piece] = self.centred(states[self.first[piece]])

    def __len__(self) -> int:
        return len(self.first)

    def centred(self, rows: Points) -> Rows:
        """Embedded rows, centred and scaled as `near`, in float64."""
        moved: Rows = np.subtract(rows[:, self._varies], self._centre, dtype=np.float64)
        moved *= self.scale
        return moved

    def measure(self, queries: Points, ids: Ids) -> Rows:
        """|x - y|² of these queries and their proposed ids (Q, m); infinite where an id is -1."""
        squared = squared_distances(self.states, queries, self.first[ids])
        squared[ids < 0] = np.inf
        return squared

    def rank(self, queries: Points, ids: Ids, k: int) -> tuple[Ids, Rows]:
        """The k best of the proposed ids (Q, m) by (distance, id), and |x - y|² of each."""
        best, least = np.empty((len(ids), k), np.int64), np.empty((len(ids), k))

        def work(part: slice) -> None:
            squared = self.measure(queries[part], ids[part])
            order = np.lexsort((ids[part], self.distance(squared)))[:, :k]
            best[part] = np.take_along_axis(ids[part], order, 1)
            least[part] = np.take_along_axis(squared, order, 1)

        threads = min(MOST_THREADS, os.cpu_count() or 1)
        room = min(self.room, ROOM) // threads  # more would not stay in a core's cache
        size = max(1, room // (ids.shape[1] * self.states.shape[1]))
        parts = [slice(i, i + size) for i in range(0, len(ids), size)]
        if len(parts) == 1:
            work(parts[0])  # threads would only wait for each other
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, parts))
        return best, least

    def members(self, groups: Ids, distances: Rows, k: int) -> tuple[Ids, Rows]:
        """Replace distinct states (Q, g) by their rows: the first k by (distance, id)."""
        if len(self) == len(self.group):
            return groups, distances
        sizes, start, rows = self._equal
        ids, away = np.empty((len(groups), k), np.int64), np.empty((len(groups), k))
        found = groups.shape[1]
        ids[:, :found], away[:, :found] = rows[start[groups]], distances
        several = (sizes[groups] > 1).any(axis=1) | (found < k)
        deepest = min(k, int(sizes.max()))
        for _, block in self.blocks(np.flatnonzero(several), found * deepest):
            chosen = groups[block][:, :, None]
            slot = np.arange(min(k, sizes[chosen].max()))
            filled = slot < sizes[chosen]
            member = rows[np.where(filled, start[chosen] + slot, 0)].reshape(len(block), -1)
            far = np.where(filled, distances[block][:, :, None], np.inf).reshape(len(block), -1)
            ids[block], away[block] = nearest_first(member, far, k)
        return ids, away

    @cached_property
    def _equal(self) -> tuple[Ids, Ids, Ids]:
        """How many rows each distinct state has, where they start, and the rows in that order."""
        sizes = np.bincount(self.group)
        return sizes, np.cumsum(sizes) - sizes, np.argsort(self.group, kind="stable")

    def blocks(self, rows: Ids, width: int, most: int = 4096) -> Iterator[tuple[float, Ids]]:
        """Cut queries into blocks of about one size with room for `width` float64 numbers each.

        Yields the share of the queries done after the block, and the block.
        """
        size = int(np.clip(self.room // width, 1, most))
        size = max(1, -(-len(rows) // -(-len(rows) // size))) if len(rows) else 1
        for start in range(0, len(rows), size):
            yield min(1.0, (start + size) / len(rows)), rows[start : start + size]


class Cells:
    """States clustered into cells (faiss IVF), each a ball around its centre.

    The clustering is seeded; its result is the same for the same seed and number of threads.
    """

    def __init__(self, index: Index, seed: int) -> None:
        self.index = index
        rows, columns = index.near.shape
        self.count = max(1, min(int(4 * rows**0.5), rows // 8))
        self._quantizer: Any = faiss.IndexFlatL2(columns)
        self._ivf: Any = faiss.IndexIVFFlat(self._quantizer, columns, self.count)
        self._ivf.cp.seed = seed % 2**31
        self._ivf.cp.min_points_per_centroid = 1  # no warning on standard error
        self._ivf.cp.max_points_per_centroid = PER_CELL
        self._ivf.train(index.near)
        self._ivf.add(index.near)

        self.sizes: Ids = np.zeros(self.count, np.int64)
        self._balls = self._enclose(self._quantizer.reconstruct_n(0, self.count))

    def _enclose(self, centres: Floats) -> Rows:
        """The balls around all states of each cell, as the right factor of `touched`."""
        index = self.index
        centre = centres.astype(np.float64)
        radius = np.zeros(self.count)
        lists = self._ivf.invlists
        for cell in range(self.count):
            self.sizes[cell] = size = lists.list_size(cell)
            if size:
                members = faiss.rev_swig_ptr(lists.get_ids(cell), size)
                inside = index.centred(index.states[index.first[members]])
                radius[cell] = np.sqrt(((inside - centre[cell]) ** 2).sum(axis=1).max())
        radius *= 1 + SLACK
        rest = (centre**2).sum(axis=1) * (1 - SLACK) - radius**2
        return np.vstack((-2 * centre.T, -2 * radius, np.ones(self.count), rest))

    def probe(self, asked: Rows, m: int, probes: int) -> Ids:
        """Up to m nearest states (-1: no more) within the `probes` nearest cells."""
        self._ivf.nprobe = probes
        ids: Ids = self._ivf.search(asked.astype(np.float32), m)[1]
        return ids

    def width(self, m: int, probes: int) -> int:
        """How many float64 numbers a query takes."""
        return 2 * (m + probes)

    def touched(self, asked: Rows, reach: Rows) -> NDArray[np.bool_]:
        """Which cells (Q, cells) may hold a state whose |x - y|² is at most `reach` (Q,).

        |x - y| ≤ r and |x - c| ≤ R give |y - c| ≤ r + R, here with everything on one side as one
        matrix product: |y|² - r² + |c|² - R² - 2y·c - 2rR ≤ 0.
        """
        farthest = 2 * asked.shape[1] ** 0.5  # no coordinate exceeds 1
        radius = np.minimum(np.sqrt(reach) * self.index.scale, farthest) * (1 + SLACK)
        rest = (asked**2).sum(axis=1) * (1 - SLACK) - radius**2
        left = np.column_stack((asked, radius, rest, np.ones(len(asked))))
        return np.asarray(left @ self._balls <= FLOAT64[1])

    def visit(self, asked: Rows, m: int, cells: NDArray[np.bool_]) -> tuple[Floats, Ids]:
        """Up to m nearest states (-1: no more) within the marked cells (Q, cells)."""
        most = int(cells.sum(axis=1).max())
        lists = np.full((len(asked), most), -1, np.int64)
        query, cell = np.nonzero(cells)
        first = np.searchsorted(query, np.arange(len(asked)))
        lists[query, np.arange(len(query)) - first[query]] = cell
        self._ivf.nprobe = most
        squared, ids = self._ivf.search_preassigned(asked.astype(np.float32), m, lists, None)
        return squared, ids
