"""Approximate search for large data: only the nearest cells, as many as the recall asks for.

Every coordinate is kept in four bits, as its place around the centre of the state's cell. faiss
adds up such distances from tables in the processor's registers, many states at a time; those that
come out nearest are measured again from their coordinates. Where that is too rough, as with states
on very different scales, cells are searched in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from icql.errors import UserError
from icql.retrieval.exact import from_faiss, search_exact
from icql.retrieval.index import PER_CELL, Cells, Index, Progress
from icql.retrieval.metric import Ids, Points, Rows

MARGIN = 8  # float32 candidates beyond k that float64 ranks
FIRST_PROBES = 4
CLOSE = 16  # the number of probes is settled to one part in this
AGAIN = 4  # states measured again for each that is wanted
BITS = 4  # of a coordinate's code: what faiss's fast scan takes
LEAST = 1024  # rows to learn cells and codes from; fewer are repeated


@dataclass(frozen=True)
class Calibration:
    """How many cells to probe per query, and the recall this gave on `sample` queries."""

    probes: int
    recall: float
    sample: int


class Codes:
    """States in cells, each in a few bits per coordinate (faiss IVF-PQ), and their float32 rows.

    Both are learned with a seed; the result is the same for the same seed and number of threads.
    """

    def __init__(self, index: Index, seed: int) -> None:
        rows, self._columns = index.near.shape
        self.count = max(1, int(rows**0.5 / 2))
        self._quantizer: Any = faiss.IndexFlatL2(self._columns)
        self._ivf: Any = faiss.IndexIVFPQFastScan(
            self._quantizer, self._columns, self.count, self._columns, BITS, faiss.METRIC_L2
        )
        self._ivf.by_residual = True
        for learned in (self._ivf.cp, self._ivf.pq.cp):
            learned.seed = seed % 2**31
            learned.min_points_per_centroid = 1  # no warning on standard error
        self._ivf.cp.max_points_per_centroid = PER_CELL
        enough = (max(rows, LEAST), self._columns)
        self._ivf.train(index.near if rows >= LEAST else np.resize(index.near, enough))
        self._ivf.add(index.near)
        self._ranked: Any = faiss.IndexRefineFlat(self._ivf, faiss.swig_ptr(index.near))
        self._ranked.k_factor = AGAIN

    def probe(self, asked: Rows, m: int, probes: int) -> Ids:
        """About the m nearest states (-1: no more) within the `probes` nearest cells."""
        self._ivf.nprobe = probes
        ids: Ids = self._ranked.search(asked.astype(np.float32), m)[1]
        return ids

    def width(self, m: int, probes: int) -> int:
        """How many float64 numbers a query takes: faiss's tables for each cell, and candidates."""
        return probes * self._columns * 2**BITS + 2 * m * AGAIN


class Approximate:
    """Prepared states and, for each number of neighbours asked for, the cells that this needs.

    Args:
        index: the states.
        seed: of cells and codes.
        recall_floor: least recall on the sample, with two standard errors to spare. A neighbour
            counts as found if the state in its place is no farther than the true k-th neighbour.
        sample: embedded queries that the recall is measured on.
    """

    def __init__(self, index: Index, seed: int, recall_floor: float, sample: Points) -> None:
        self._index, self._seed, self._floor, self._sample = index, seed, recall_floor, sample
        self._cells: Codes | Cells = Codes(index, seed)
        self.calibrations: dict[int, Calibration] = {}

    def search(self, queries: Points, k: int, progress: Progress) -> tuple[Ids, Rows]:
        """About the k nearest states of embedded queries: ids, |x - y|² (Q, k)."""
        if k not in self.calibrations:
            self._calibrate(k, progress)
        ids, squared = self._probe(queries, k, self.calibrations[k].probes, progress)
        short = np.flatnonzero(ids[:, -1] < 0)  # the probed cells hold fewer than k states
        if len(short):
            everything = from_faiss(self._index, None)
            found = search_exact(self._index, everything, queries[short], k, progress)
            ids[short], squared[short] = found
        return ids, squared

    def _calibrate(self, k: int, progress: Progress) -> None:
        """Settle how many cells to probe for k neighbours."""
        everything = from_faiss(self._index, None)
        _, truth = search_exact(self._index, everything, self._sample, k, progress)
        found, spare = self._fewest(k, truth[:, -1:], progress)
        if found.recall - spare < self._floor and isinstance(self._cells, Codes):
            del self._cells  # there may not be memory for both
            self._cells = Cells(self._index, self._seed)
            self.calibrations.clear()
            found, spare = self._fewest(k, truth[:, -1:], progress)
        if found.recall - spare < self._floor:
            raise UserError(
                f"approximate search reaches a recall of {found.recall:.5f} (± {spare:.5f}), "
                f"not {self._floor}, even with every cell probed.",
                where="context.recall_floor",
                fix="Lower the floor or set context.engine to exact.",
            )
        self.calibrations[k] = found

    def _fewest(self, k: int, farthest: Rows, progress: Progress) -> tuple[Calibration, float]:
        """The fewest cells that suffice, or all, and two standard errors of the recall.

        The cells probed are doubled until they suffice, then halved in between.
        """
        count = self._cells.count

        def measured(probes: int) -> tuple[Calibration, float]:
            hits = (self._probe(self._sample, k, probes, progress)[1] <= farthest).mean(axis=1)
            recall, spare = float(hits.mean()), float(2 * hits.std() / len(hits) ** 0.5)
            progress(f"recall {recall:.4f} with {probes} of {count} cells", 1.0)
            return Calibration(probes, recall, len(hits)), spare

        def enough(result: tuple[Calibration, float]) -> bool:
            return result[0].recall - result[1] >= self._floor

        too_few, probes = 0, min(FIRST_PROBES, count)
        while not enough(result := measured(probes)) and probes < count:
            too_few, probes = probes, min(2 * probes, count)
        while enough(result) and probes - too_few > max(1, probes // CLOSE):
            middle = (too_few + probes) // 2
            if enough(fewer := measured(middle)):
                probes, result = middle, fewer
            else:
                too_few = middle
        return result

    def _probe(self, queries: Points, k: int, probes: int, progress: Progress) -> tuple[Ids, Rows]:
        """The k nearest in the nearest cells; -1 and an infinite distance where they hold fewer."""
        index, cells = self._index, self._cells
        ids = np.empty((len(queries), k), np.int64)
        squared = np.empty(ids.shape)
        m = min(k + MARGIN, len(index))
        for done, block in index.blocks(np.arange(len(ids)), cells.width(m, probes)):
            proposed = cells.probe(index.centred(queries[block]), m, probes)
            ids[block], squared[block] = index.rank(queries[block], proposed, k)
            progress("approximate search", done)
        return ids, squared
