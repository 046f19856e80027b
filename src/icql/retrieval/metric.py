"""Metrics: each embeds states in a space where it is a function of the Euclidean distance.

One number decides every ranking: the float64 sum of squared coordinate differences of two embedded
rows. It depends on these two rows alone, so equal rows tie exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.floating[Any]]  # rows as they are given: float32 or float64, maybe mapped
Rows = NDArray[np.float64]
Ids = NDArray[np.int64]

PASS = 2**16  # numbers looked at in one go where whole arrays are passed through


@dataclass(frozen=True)
class Space:
    """A metric: how database and query rows are embedded, and its distance from |x - y|²."""

    embed_states: Callable[[Points], Points]
    embed_queries: Callable[[Points], Points]
    distance: Callable[[Rows], Rows]


def pieces(rows: Points) -> Iterator[slice]:
    """Cut rows into slices of about `PASS` numbers: no whole copy of mapped data is ever made."""
    size = max(1, PASS // max(1, rows[:1].size))
    return (slice(i, i + size) for i in range(0, len(rows), size))


def extent(rows: Points, embed: Callable[[Points], Points]) -> tuple[Rows, Rows]:
    """The least and the largest value in every column of the embedded rows."""
    embedded = (embed(rows[piece]) for piece in pieces(rows))
    found = [(part.min(axis=0), part.max(axis=0)) for part in embedded]
    low, high = (np.array(side, np.float64) for side in zip(*found, strict=True))
    return low.min(axis=0), high.max(axis=0)


def joint(one: tuple[Rows, Rows], other: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """The extent of both."""
    return np.minimum(one[0], other[0]), np.maximum(one[1], other[1])


def _directions(rows: Points, zero_column: int) -> Rows:
    """Unit vectors, with two more columns in which zero vectors become unit vectors of their own.

    A zero vector has no direction: its cosine with anything is 0, its distance 1. Zero states and
    zero queries take different columns, so that they are orthogonal to each other too.
    """
    out = np.zeros((rows.shape[0], rows.shape[1] + 2))
    for piece in pieces(rows):
        _fill_directions(out[piece], rows[piece].astype(np.float64), zero_column)
    return out


def _fill_directions(out: Rows, rows: Rows, zero_column: int) -> None:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    zero = largest[:, 0] == 0
    # Dividing by the largest entry first makes parallel rows equal to the last bit.
    rows = rows / np.where(largest == 0, 1, largest)
    norm = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    out[:, :-2] = rows / np.where(norm == 0, 1, norm)
    out[zero, zero_column] = 1


SPACES: dict[str, Space] = {
    # The Euclidean distance of the paper's definition of state-similar retrieval.
    "l2": Space(lambda rows: rows, lambda rows: rows, np.sqrt),
    # 1 - cos(x, y) = |x/|x| - y/|y||² / 2, without the cancellation near 0.
    "cosine": Space(
        lambda rows: _directions(rows, -2), lambda rows: _directions(rows, -1), lambda sq: sq / 2
    ),
}


def squared_distances(states: Points, queries: Points, ids: Ids) -> Rows:
    """|x - y|² of each query (Q, D) and the states (N, D) in its row of `ids` (Q, m)."""
    difference = np.subtract(states[ids], queries[:, None, :], dtype=np.float64)
    np.square(difference, out=difference)
    total: Rows = difference.sum(axis=-1)
    return total


def distances(states: Points, queries: Points, ids: Ids, metric: str) -> Rows:
    """Distances (Q, m) of queries (Q, D), not yet embedded, from the states in `ids` (Q, m)."""
    space, away = SPACES[metric], np.empty(ids.shape)
    size = max(1, PASS // (ids.shape[1] * states.shape[1]))
    for start in range(0, len(ids), size):
        part = slice(start, start + size)
        rows, places = np.unique(ids[part], return_inverse=True)
        near, asked = space.embed_states(states[rows]), space.embed_queries(queries[part])
        squared = squared_distances(near, asked, places.reshape(ids[part].shape))
        away[part] = space.distance(squared)
    return away
