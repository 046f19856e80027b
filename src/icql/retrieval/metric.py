"""Metrics: each embeds states in a space where it is a function of the Euclidean distance.

One number decides every ranking: the float64 sum of squared coordinate differences of two embedded
rows. It depends on these two rows alone, so equal rows tie exactly, and each is searched only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.errors import UserError

Points = NDArray[np.floating[Any]]  # rows as they are given: float32 or float64, maybe mapped
Rows = NDArray[np.float64]
Ids = NDArray[np.int64]

PASS = 2**16  # numbers looked at in one go where whole arrays are passed through
LARGEST = np.float64(1e150)  # beyond, a squared distance may not be a finite float64
ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Space:
    """A metric: how database and query rows are embedded, and its distance from |x - y|²."""

    embed_states: Callable[[Points], Points]
    embed_queries: Callable[[Points], Points]
    distance: Callable[[Rows], Rows]

    def extent(self, queries: Points, states: Points) -> tuple[Rows, Rows]:
        """The least and the largest value of both, embedded, in every column."""
        embedded = (
            embed(rows[piece])
            for rows, embed in ((queries, self.embed_queries), (states, self.embed_states))
            for piece in pieces(rows)
        )
        found = [(part.min(axis=0), part.max(axis=0)) for part in embedded]
        low, high = (np.array(side, np.float64) for side in zip(*found, strict=True))
        return low.min(axis=0), high.max(axis=0)


def pieces(rows: Points) -> Iterator[slice]:
    """Cut rows into slices of about `PASS` numbers: no whole copy of mapped data is ever made."""
    size = max(1, PASS // max(1, rows[:1].size))
    return (slice(i, i + size) for i in range(0, len(rows), size))


def check_rows(rows: ArrayLike, where: str) -> Points:
    """Rows (N, D) as finite float32 or float64, or a UserError that names the row.

    Mapped arrays of these types stay as they are: nothing is copied.
    """
    values = numbers(rows, where)
    if values.ndim != 2 or values.shape[1] == 0:
        raise UserError(f"must have shape (rows, columns), not {values.shape}.", where=where)
    for piece in pieces(values):
        bad = ~(np.abs(values[piece]) <= LARGEST).all(axis=1)
        if bad.any():
            row = piece.start + int(bad.argmax())
            finite = np.isfinite(values[row]).all()
            what = f"has a value beyond ±{LARGEST:g}." if finite else "is not finite (NaN or Inf)."
            raise UserError(what, where=f"{where}, row {row}", fix="Leave such rows out.")
    return values


def numbers(values: ArrayLike, where: str) -> Points:
    """An array of float32 or float64, or a UserError."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UserError("rows have different lengths.", where=where) from error
    if array.dtype.kind not in "fiub":
        raise UserError(f"must be real numbers, not {array.dtype}.", where=where)
    native = array.dtype in (np.dtype(np.float32), np.dtype(np.float64))
    return array if native else array.astype(np.float64)


def _directions(rows: Points, zero_column: int) -> Rows:
    """Unit vectors, with two more columns in which zero vectors become unit vectors of their own.

    A zero vector has no direction: its cosine with anything is 0, its distance 1. Zero states and
    zero queries take different columns, so that they are orthogonal to each other too.
    """
    out = np.zeros((rows.shape[0], rows.shape[1] + 2))
    for piece in pieces(rows):
        part = rows[piece].astype(np.float64)
        # Dividing by the largest entry first makes parallel rows equal to the last bit.
        largest = np.abs(part).max(axis=1, keepdims=True)
        part /= np.where(largest == 0, 1, largest)
        norm = np.sqrt((part**2).sum(axis=1, keepdims=True))
        out[piece, :-2] = part / np.where(norm == 0, 1, norm)
        out[piece, zero_column] = largest[:, 0] == 0
    return out


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


def nearest_first(ids: Ids, away: Rows, keep: int | None = None) -> tuple[Ids, Rows]:
    """The `keep` nearest of ids (Q, m) by (distance, id), and their distances; None: all."""
    order = np.lexsort((ids, away))[:, :keep]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(away, order, 1)


def distinct(rows: Points) -> tuple[Ids, Ids]:
    """First row of each group of equal rows, in row order, and the group of each row."""
    _, first, group = np.unique(_hashes(rows), return_index=True, return_inverse=True)
    if not _same(rows, first, group):  # two rows share a hash: compare all of their bits
        bits = np.ascontiguousarray(rows)
        keys = bits.view(np.dtype((np.void, bits.shape[1] * bits.itemsize)))[:, 0]
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return first[order], number[group]


def _hashes(rows: Points) -> NDArray[np.uint64]:
    """64 bits per row; equal rows have equal ones."""
    hashes = np.zeros(len(rows), np.uint64)
    for piece in pieces(rows):
        for column in _bits(rows[piece]).T:
            hashes[piece] = (hashes[piece] ^ column) * ODD
            hashes[piece] ^= hashes[piece] >> np.uint64(29)
    return hashes


def _same(rows: Points, first: Ids, group: Ids) -> bool:
    """Whether every row equals the first of its group."""
    return len(first) == len(rows) or all(
        np.array_equal(_bits(rows[piece]), _bits(rows[first[group[piece]]]))
        for piece in pieces(rows)
    )


def row_finder(rows: Points) -> Callable[[Points], Ids]:
    """Tells of queries (Q, D) which of the rows has the same bits: the first such, or -1."""
    hashes = _hashes(rows)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]

    def find(queries: Points) -> Ids:
        with np.errstate(over="ignore"):  # what float32 cannot hold equals no row
            asked = _hashes(queries.astype(rows.dtype))
        row = order[np.minimum(np.searchsorted(ordered, asked), len(ordered) - 1)]
        return np.where((rows[row] == queries).all(axis=1), row, -1)

    return find


def _bits(rows: Points) -> NDArray[np.unsignedinteger]:
    kind = np.uint32 if rows.dtype == np.float32 else np.uint64
    return np.ascontiguousarray(rows).view(kind)
