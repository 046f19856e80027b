"""States in tiles: boxes of about equally many near ones, most of which a search need not look at.

The states are turned to their principal directions, which leaves all distances as they are, and
halved again and again across the column in which they spread most. A box tells how far every state
in its tile must at least be from a query.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from icql.retrieval.index import MOST_THREADS, Floats
from icql.retrieval.metric import PASS, Ids, Points, Rows, pieces

UNTHREADED = 2**17  # multiplications for which BLAS starts no threads: they would wait for ours
SPREAD = 1024  # states from which the spread of a part is told
T = TypeVar("T")
R = TypeVar("R")


class Tiles(NamedTuple):
    """States in tiles of at most C rows; one more tile, the last, is empty.

    Rows that only fill up a tile are infinitely far away by their norm, and their id is -1.
    """

    states: Floats  # (tiles + 1, C, D)
    norms: Floats  # (tiles + 1, C) |x|²
    ids: NDArray[np.int32]  # (tiles + 1, C) which row it was
    low: Floats  # (tiles, D) the boxes
    high: Floats  # (tiles, D)


def tiled(near: Floats, tile: int, multiple: int) -> tuple[Tiles, Rows]:
    """Sort states (N, D) into tiles of about `tile` rows, C a multiple of `multiple`.

    Also gives the rotation (D, D) by which queries must be turned.
    """
    rows, columns = near.shape
    count = -(-rows // tile)
    starts = np.arange(count + 1) * rows // count  # all are equally full but for one row
    size = -(-int(np.diff(starts).max()) // multiple) * multiple
    rotation = _principal(near)
    turned = np.empty_like(near)

    def fill_turned(piece: slice) -> None:
        turned[piece] = turn(near[piece], rotation)

    _each(fill_turned, pieces(near))
    order = _sorted(turned, starts)
    out = Tiles(
        np.zeros((count + 1, size, columns), np.float32),
        np.full((count + 1, size), np.inf, np.float32),
        np.full((count + 1, size), -1, np.int32),
        np.empty((count, columns), np.float32),
        np.empty((count, columns), np.float32),
    )

    def fill(i: int) -> None:
        ids = order[starts[i] : starts[i + 1]]
        inside = turned[ids]
        out.states[i, : len(ids)], out.ids[i, : len(ids)] = inside, ids
        out.norms[i, : len(ids)] = np.square(inside, dtype=np.float64).sum(axis=1)
        out.low[i], out.high[i] = inside.min(axis=0), inside.max(axis=0)

    _each(fill, range(count))
    return out, rotation


def turn(rows: Points, rotation: Rows) -> Floats:
    """Rows (N, D) times the rotation, rounded only once."""
    turned = np.empty(rows.shape, np.float32)
    size = max(64, UNTHREADED // rotation.size)
    for start in range(0, len(rows), size):
        turned[start : start + size] = rows[start : start + size].astype(np.float64) @ rotation
    return turned


def _principal(near: Floats) -> Rows:
    """The principal directions (D, D) of some of the states, as columns."""
    sample = near[:: max(1, near.size // (16 * PASS))].astype(np.float64)
    sample -= sample.mean(axis=0)
    directions: Rows = np.linalg.eigh(sample.T @ sample)[1]
    return directions


def _sorted(rows: Floats, starts: Ids) -> Ids:
    """The order of the rows in which tile i has those from starts[i] to starts[i + 1]."""
    order = np.arange(len(rows))

    def halve(part: tuple[int, int]) -> list[tuple[int, int]]:
        first, last = part
        if last - first < 2:
            return []
        middle = (first + last) // 2
        own = order[starts[first] : starts[last]]
        column = rows[own[:: max(1, len(own) // SPREAD)]].var(axis=0).argmax()
        own[:] = own[np.argpartition(rows[own, column], starts[middle] - starts[first])]
        return [(first, middle), (middle, last)]

    parts = [(0, len(starts) - 1)]
    while parts:
        parts = [half for halves in _each(halve, parts) for half in halves]
    return order


def _each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What `work` gives for each item, many at once."""
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items))
