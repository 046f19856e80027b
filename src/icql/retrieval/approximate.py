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
from numpy.typing import NDArray

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


def calibrate(
    index: Index,
    seed: int,
    sample: Points,
    k: int,
    recall_floor: float,
    progress: Progress,
) -> tuple[Codes | Cells, Calibration]:
    """Prepare the states so that recall reaches the floor, with two standard errors to spare.

    A neighbour counts as found if the state returned in its place is no farther than the true
    k-th neighbour.
    """
    _, truth = search_exact(index, from_faiss(index, None), sample, k, progress)
    farthest = truth[:, -1:]
    for prepare in (Codes, Cells):
        cells = prepare(index, seed)
        found, enough, spare = _fewest(index, cells, sample, farthest, k, recall_floor, progress)
        if enough:
            return cells, found
        del cells  # there may not be memory for both
    raise UserError(
        f"approximate search reaches a recall of {found.recall:.5f} (± {spare:.5f}), "
        f"not {recall_floor}, even with every cell probed.",
        where="context.recall_floor",
        fix="Lower the floor or set context.engine to exact.",
    )


def _fewest(
    index: Index,
    cells: Codes | Cells,
    sample: Points,
    farthest: Rows,
    k: int,
    recall_floor: float,
    progress: Progress,
) -> tuple[Calibration, bool, float]:
    """The fewest cells that suffice, if all of them do, and two standard errors of the recall.

    The cells probed are doubled until they suffice, then halved in between.
    """

    def measured(probes: int) -> tuple[Calibration, bool, float]:
        found = _probe(index, cells, sample, k, probes, progress)[1]
        hits: NDArray[np.float64] = (found <= farthest).mean(axis=1)
        recall, spare = float(hits.mean()), float(2 * hits.std() / len(hits) ** 0.5)
        progress(f"recall {recall:.4f} with {probes} of {cells.count} cells", 1.0)
        return Calibration(probes, recall, len(sample)), recall - spare >= recall_floor, spare

    too_few, probes = 0, min(FIRST_PROBES, cells.count)
    while not (result := measured(probes))[1] and probes < cells.count:
        too_few, probes = probes, min(2 * probes, cells.count)
    while result[1] and probes - too_few > max(1, probes // CLOSE):
        middle = (too_few + probes) // 2
        if (fewer := measured(middle))[1]:
            probes, result = middle, fewer
        else:
            too_few = middle
    return result


def search_approximate(
    index: Index, cells: Codes | Cells, queries: Points, k: int, probes: int, progress: Progress
) -> tuple[Ids, Rows]:
    """About the k nearest states in the nearest `probes` cells: ids, |x - y|² (Q, k)."""
    ids, squared = _probe(index, cells, queries, k, probes, progress)
    short = np.flatnonzero(ids[:, -1] < 0)  # the probed cells hold fewer than k states
    if len(short):
        everything = from_faiss(index, None)
        ids[short], squared[short] = search_exact(index, everything, queries[short], k, progress)
    return ids, squared


def _probe(
    index: Index, cells: Codes | Cells, queries: Points, k: int, probes: int, progress: Progress
) -> tuple[Ids, Rows]:
    """The same; -1 and an infinite distance where the cells hold fewer."""
    ids = np.empty((len(queries), k), np.int64)
    squared = np.empty(ids.shape)
    m = min(k + MARGIN, len(index))
    for done, block in index.blocks(np.arange(len(ids)), cells.width(m, probes)):
        asked = queries[block]
        proposed = cells.probe(index.centred(asked), m, probes)
        ids[block], squared[block] = index.rank(asked, proposed, k)
        progress("approximate search", done)
    return ids, squared
