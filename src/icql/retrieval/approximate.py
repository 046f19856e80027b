"""Approximate search for large data: only the nearest cells, as many as the recall asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError
from icql.retrieval.exact import search_exact
from icql.retrieval.index import Cells, Index, Progress, blocks
from icql.retrieval.metric import Ids, Rows

SAMPLE = 1000  # queries whose exact neighbours the recall is measured against
MARGIN = 8  # float32 candidates beyond k that float64 ranks
FIRST_PROBES = 8


@dataclass(frozen=True)
class Calibration:
    """How many cells to probe per query, and the recall this gave on `sample` queries."""

    probes: int
    recall: float
    sample: int


def calibrate(
    index: Index, cells: Cells, k: int, recall_floor: float, seed: int, progress: Progress
) -> Calibration:
    """Double the cells probed until recall reaches the floor with two standard errors to spare.

    A neighbour counts as found if the state returned in its place is no farther than the true
    k-th neighbour.
    """
    sample = np.arange(len(index.queries))
    if len(sample) > SAMPLE:
        sample = np.random.default_rng(seed).choice(sample, SAMPLE, replace=False)
    _, truth = search_exact(index, cells, sample, k, progress)
    probes = min(FIRST_PROBES, cells.count)
    while True:
        found = _probe(index, cells, sample, k, probes)[1]
        hits: NDArray[np.float64] = (found <= truth[:, -1:]).mean(axis=1)
        recall, spare = float(hits.mean()), float(2 * hits.std() / len(hits) ** 0.5)
        progress(f"recall {recall:.4f} with {probes} of {cells.count} cells", 1.0)
        if recall - spare >= recall_floor:
            return Calibration(probes, recall, len(sample))
        if probes == cells.count:
            raise UserError(
                f"approximate search reaches a recall of {recall:.5f} (± {spare:.5f}), "
                f"not {recall_floor}, even with every cell probed.",
                where="context.recall_floor",
                fix="Lower the floor or set context.engine to exact.",
            )
        probes = min(2 * probes, cells.count)


def search_approximate(
    index: Index, cells: Cells, k: int, probes: int, progress: Progress
) -> tuple[Ids, Rows]:
    """The k nearest states of all queries in the nearest `probes` cells: ids, |x - y|² (Q, k)."""
    ids = np.empty((len(index.queries), k), np.int64)
    squared = np.empty(ids.shape)
    for done, block in blocks(np.arange(len(ids)), (k + MARGIN) * index.states.shape[1]):
        ids[block], squared[block] = _probe(index, cells, block, k, probes)
        progress("approximate search", done)
    short = np.flatnonzero(ids[:, -1] < 0)  # the probed cells hold fewer than k states
    ids[short], squared[short] = search_exact(index, cells, short, k, progress)
    return ids, squared


def _probe(index: Index, cells: Cells, rows: Ids, k: int, probes: int) -> tuple[Ids, Rows]:
    m = min(k + MARGIN, len(index.states))
    return index.rank(rows, cells.probe(rows, m, probes)[1], k)
