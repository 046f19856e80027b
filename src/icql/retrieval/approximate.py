"""Approximate search for large data: only the nearest cells, as many as the recall asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError
from icql.retrieval.exact import from_faiss, search_exact
from icql.retrieval.index import Cells, Index, Progress
from icql.retrieval.metric import Ids, Points, Rows

MARGIN = 8  # float32 candidates beyond k that float64 ranks
FIRST_PROBES = 8
CLOSE = 16  # the number of probes is settled to one part in this


@dataclass(frozen=True)
class Calibration:
    """How many cells to probe per query, and the recall this gave on `sample` queries."""

    probes: int
    recall: float
    sample: int


def calibrate(
    index: Index,
    cells: Cells,
    sample: Points,
    k: int,
    recall_floor: float,
    progress: Progress,
) -> Calibration:
    """Find the fewest cells whose recall reaches the floor with two standard errors to spare.

    A neighbour counts as found if the state returned in its place is no farther than the true
    k-th neighbour. The cells probed are doubled until it suffices, then halved in between.
    """
    _, truth = search_exact(index, from_faiss(index, cells), sample, k, progress, width=cells.count)

    def measured(probes: int) -> tuple[bool, float, float]:
        found = _probe(index, cells, sample, k, probes, progress)[1]
        hits: NDArray[np.float64] = (found <= truth[:, -1:]).mean(axis=1)
        recall, spare = float(hits.mean()), float(2 * hits.std() / len(hits) ** 0.5)
        progress(f"recall {recall:.4f} with {probes} of {cells.count} cells", 1.0)
        return recall - spare >= recall_floor, recall, spare

    too_few, probes = 0, min(FIRST_PROBES, cells.count)
    while not (result := measured(probes))[0]:
        if probes == cells.count:
            raise UserError(
                f"approximate search reaches a recall of {result[1]:.5f} (± {result[2]:.5f}), "
                f"not {recall_floor}, even with every cell probed.",
                where="context.recall_floor",
                fix="Lower the floor or set context.engine to exact.",
            )
        too_few, probes = probes, min(2 * probes, cells.count)
    recall = result[1]
    while probes - too_few > max(1, probes // CLOSE):
        middle = (too_few + probes) // 2
        if (result := measured(middle))[0]:
            probes, recall = middle, result[1]
        else:
            too_few = middle
    return Calibration(probes, recall, len(sample))


def search_approximate(
    index: Index, cells: Cells, queries: Points, k: int, probes: int, progress: Progress
) -> tuple[Ids, Rows]:
    """The k nearest states in the nearest `probes` cells: ids, |x - y|² (Q, k)."""
    ids, squared = _probe(index, cells, queries, k, probes, progress)
    short = np.flatnonzero(ids[:, -1] < 0)  # the probed cells hold fewer than k states
    if len(short):
        ids[short], squared[short] = search_exact(
            index, from_faiss(index, cells), queries[short], k, progress, width=cells.count
        )
    return ids, squared


def _probe(
    index: Index, cells: Cells, queries: Points, k: int, probes: int, progress: Progress
) -> tuple[Ids, Rows]:
    """The same; -1 and an infinite distance where the cells hold fewer."""
    ids = np.empty((len(queries), k), np.int64)
    squared = np.empty(ids.shape)
    m = min(k + MARGIN, len(index))
    for done, block in index.blocks(np.arange(len(ids)), 2 * (m + probes)):
        asked = queries[block]
        proposed = cells.probe(index.centred(asked), m, probes)
        ids[block], squared[block] = index.rank(asked, proposed, k)
        progress("approximate search", done)
    return ids, squared
