"""What both engines search: distinct rows in float64, and faiss indexes that propose candidates.

faiss works in float32, so it only proposes; the ranking is always the float64 one of `metric.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from icql.retrieval.metric import Ids, Rows, squared_distances

Floats = NDArray[np.float32]
Progress = Callable[[str, float], None]

FLOAT32 = (2.0**-24, 1e-34)  # unit roundoff, and what underflow can add to a scaled |x - y|²
FLOAT64 = (2.0**-53, 1e-60)
SLACK = 1e-9  # far more than float64 rounds, far less than a distance that matters
BLOCK = 2**21  # float64 numbers worked on at once: 16 MB


class Index:
    """Distinct states (N, D), embedded, prepared for the given distinct queries (Q, D).

    `states` and `queries` keep the embedded float64 rows. `near` and `asked` are the same rows
    centred, scaled by a power of two to at most 1 and without the columns in which nothing
    varies: distances only change by the factor `scale`, and float32 loses the least.
    """

    def __init__(self, states: Rows, queries: Rows, distance: Callable[[Rows], Rows]) -> None:
        self.states, self.queries, self.distance = states, queries, distance
        low = np.minimum(states.min(axis=0), queries.min(axis=0))
        high = np.maximum(states.max(axis=0), queries.max(axis=0))
        varies = low < high
        varies[0] |= not varies.any()  # faiss needs a column
        centre = np.median(states[:, varies], axis=0)  # outliers do not move it
        near, asked = states[:, varies] - centre, queries[:, varies] - centre
        exponent = int(np.frexp(max(np.abs(near).max(), np.abs(asked).max()))[1])
        self.scale = 2.0 ** -max(exponent, -400)  # so that its square is finite
        self.near, self.asked = near * self.scale, asked * self.scale
        self._flat: Any = faiss.IndexFlatL2(self.near.shape[1])
        self._flat.add(self.near.astype(np.float32))

    def flat(self, rows: Ids, m: int) -> tuple[Floats, Ids]:
        """The m nearest of all states in float32: squared distances and ids, for these queries."""
        squared, ids = self._flat.search(self.asked[rows].astype(np.float32), m)
        return squared, ids

    def measure(self, rows: Ids, ids: Ids) -> Rows:
        """|x - y|² of these queries and their proposed ids (Q, m); infinite where an id is -1."""
        squared = squared_distances(self.states, self.queries[rows], ids)
        squared[ids < 0] = np.inf
        return squared

    def rank(self, rows: Ids, ids: Ids, k: int) -> tuple[Ids, Rows]:
        """The k best of the proposed ids (Q, m) by (distance, id), and |x - y|² of each."""
        squared = self.measure(rows, ids)
        order = np.lexsort((ids, self.distance(squared)))[:, :k]
        return np.take_along_axis(ids, order, 1), np.take_along_axis(squared, order, 1)


def blocks(rows: Ids, width: int) -> Iterator[tuple[float, Ids]]:
    """Cut queries into blocks with room for `width` float64 numbers each.

    Yields the share of the queries done after the block, and the block.
    """
    size = int(np.clip(BLOCK // width, 1, 4096))
    for start in range(0, len(rows), size):
        yield min(1.0, (start + size) / len(rows)), rows[start : start + size]


class Cells:
    """States clustered into cells (faiss IVF), each a ball around its centre.

    The clustering is seeded; its result is the same for the same seed and number of threads.
    """

    def __init__(self, index: Index, seed: int) -> None:
        self.index = index
        near = index.near.astype(np.float32)
        rows, columns = near.shape
        self.count = max(1, min(int(4 * rows**0.5), rows // 8))
        self._quantizer: Any = faiss.IndexFlatL2(columns)
        self._ivf: Any = faiss.IndexIVFFlat(self._quantizer, columns, self.count)
        self._ivf.cp.seed = seed % 2**31
        self._ivf.cp.min_points_per_centroid = 1  # no warning on standard error
        self._ivf.train(near)
        self._ivf.add(near)

        self.sizes: Ids = np.zeros(self.count, np.int64)
        self._balls = self._enclose(self._quantizer.reconstruct_n(0, self.count))

    def _enclose(self, centres: Floats) -> Rows:
        """The balls around all states of each cell, as the right factor of `touched`."""
        centre = centres.astype(np.float64)
        radius = np.zeros(self.count)
        lists = self._ivf.invlists
        for cell in range(self.count):
            self.sizes[cell] = size = lists.list_size(cell)
            if size:
                members = faiss.rev_swig_ptr(lists.get_ids(cell), size)
                away = ((self.index.near[members] - centre[cell]) ** 2).sum(axis=1)
                radius[cell] = np.sqrt(away.max()) * (1 + SLACK)
        rest = (centre**2).sum(axis=1) * (1 - SLACK) - radius**2
        return np.vstack((-2 * centre.T, -2 * radius, np.ones(self.count), rest))

    def probe(self, rows: Ids, m: int, probes: int) -> tuple[Floats, Ids]:
        """Up to m nearest states (-1: no more) within the `probes` nearest cells."""
        asked = self.index.asked[rows].astype(np.float32)
        self._ivf.nprobe = probes
        squared, ids = self._ivf.search(asked, m)
        return squared, ids

    def touched(self, rows: Ids, reach: Rows) -> NDArray[np.bool_]:
        """Which cells (Q, cells) may hold a state whose |x - y|² is at most `reach` (Q,).

        |x - y| ≤ r and |x - c| ≤ R give |y - c| ≤ r + R, here with everything on one side as one
        matrix product: |y|² - r² + |c|² - R² - 2y·c - 2rR ≤ 0.
        """
        asked = self.index.asked[rows]
        farthest = 2 * asked.shape[1] ** 0.5  # no coordinate exceeds 1
        radius = np.minimum(np.sqrt(reach) * self.index.scale, farthest) * (1 + SLACK)
        rest = (asked**2).sum(axis=1) * (1 - SLACK) - radius**2
        left = np.column_stack((asked, radius, rest, np.ones(len(rows))))
        return np.asarray(left @ self._balls <= FLOAT64[1])

    def visit(self, rows: Ids, m: int, cells: NDArray[np.bool_]) -> tuple[Floats, Ids]:
        """Up to m nearest states (-1: no more) within the marked cells (Q, cells)."""
        asked = self.index.asked[rows].astype(np.float32)
        most = int(cells.sum(axis=1).max())
        lists = np.full((len(rows), most), -1, np.int64)
        query, cell = np.nonzero(cells)
        first = np.searchsorted(query, np.arange(len(rows)))
        lists[query, np.arange(len(query)) - first[query]] = cell
        self._ivf.nprobe = most
        squared, ids = self._ivf.search_preassigned(asked, m, lists, None)
        return squared, ids
