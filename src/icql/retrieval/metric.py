"""Metrics: each embeds states in a space where it is a function of the Euclidean distance.

One number decides every ranking: the float64 sum of squared coordinate differences of two embedded
rows. It depends on these two rows alone, so equal rows tie exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Space:
    """A metric: how database and query rows are embedded, and its distance from |x - y|²."""

    embed_states: Callable[[Rows], Rows]
    embed_queries: Callable[[Rows], Rows]
    distance: Callable[[Rows], Rows]


def _directions(rows: Rows, zero_column: int) -> Rows:
    """Unit vectors, with two more columns in which zero vectors become unit vectors of their own.

    A zero vector has no direction: its cosine with anything is 0, its distance 1. Zero states and
    zero queries take different columns, so that they are orthogonal to each other too.
    """
    largest = np.abs(rows).max(axis=1, keepdims=True)
    zero = largest[:, 0] == 0
    # Dividing by the largest entry first makes parallel rows equal to the last bit.
    rows = rows / np.where(largest == 0, 1, largest)
    norm = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    out = np.zeros((rows.shape[0], rows.shape[1] + 2))
    out[:, :-2] = rows / np.where(norm == 0, 1, norm)
    out[zero, zero_column] = 1
    return out


SPACES: dict[str, Space] = {
    # The Euclidean distance of the paper's definition of state-similar retrieval.
    "l2": Space(lambda rows: rows, lambda rows: rows, np.sqrt),
    # 1 - cos(x, y) = |x/|x| - y/|y||² / 2, without the cancellation near 0.
    "cosine": Space(
        lambda rows: _directions(rows, -2), lambda rows: _directions(rows, -1), lambda sq: sq / 2
    ),
}


def squared_distances(states: Rows, queries: Rows, ids: Ids) -> Rows:
    """|x - y|² of each query (Q, D) and the states (N, D) in its row of `ids` (Q, m)."""
    difference = states[ids] - queries[:, None, :]
    np.square(difference, out=difference)
    total: Rows = difference.sum(axis=-1)
    return total
