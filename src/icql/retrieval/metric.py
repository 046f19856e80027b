"""Metrics: each embeds states in a space where it is a function of the Euclidean distance.

Before that the columns may be divided by their own spread, or replaced by learned features. What a
space takes from the data for that belongs to it: queries are embedded by the data's numbers.

One number decides every ranking: the float64 sum of squared coordinate differences of two embedded
rows. It depends on these two rows alone, so equal rows tie exactly, and each is searched only once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.arrays import moments
from icql.errors import UserError

Points = NDArray[np.floating[Any]]  # rows as they are given: float32 or float64, maybe mapped
Rows = NDArray[np.float64]
Ids = NDArray[np.int64]
Fitted = Mapping[str, NDArray[Any]]  # what a space takes from the data, by name

PASS = 2**16  # numbers looked at in one go where whole arrays are passed through
SAMPLE = 2**20  # numbers at most that quartiles are taken of
TO_SIGMA = 1.349  # a normal distribution's quartiles are so many σ apart
RESTS = 3.0  # a column whose quartiles say so much less than its middle 95 % rests, and then moves
ROUNDING = 2.0**-22  # of a number's size: what float32 loses, and not a movement
LARGEST = np.float64(1e150)  # beyond, a squared distance may not be a finite float64
ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Space:
    """A metric: how database and query rows are embedded, and its distance from |x - y|².

    A row's embedding depends, to the bit, on that row and on `fitted` alone.
    """

    embed_states: Callable[[Points], Points]
    embed_queries: Callable[[Points], Points]
    distance: Callable[[Rows], Rows]
    fitted: Fitted = field(default_factory=dict)  # empty: the columns as they are

    @cached_property
    def digest(self) -> str:
        """A hash of what was fitted."""
        digest = hashlib.sha256()
        for name, array in sorted(self.fitted.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

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


def fit_space(metric: str, kind: str, states: Points) -> Space:
    """The space of a metric on the states' columns as they are, or on standardised ones."""
    if kind == "learned":
        raise UserError(
            "features are learned from whole transitions, not from states alone.",
            where="context.space",
            fix="Give the space: icql.retrieval.find_space(transitions, settings).",
        )
    return fitted_space(metric, {"scale": spreads(states)} if kind == "standardised" else {})


def fitted_space(metric: str, fitted: Fitted) -> Space:
    """The space of a metric on what was fitted: nothing, columns' spreads, or a network."""
    base = SPACES[metric]
    if not fitted:
        return base
    if set(fitted) == {"scale"}:
        features: Callable[[Points], Points] = partial(divided, scale=fitted["scale"])
    else:
        from icql.retrieval.learned import features_of  # JAX: only where it is needed

        features = partial(features_of, fitted)
    return Space(
        lambda rows: base.embed_states(features(rows)),
        lambda rows: base.embed_queries(features(rows)),
        base.distance,
        fitted,
    )


def spreads(rows: Points) -> Rows:
    """The spread of each column (D,), by which distances in it are told from those in others."""
    return medians_and_spreads(rows)[1]


def medians_and_spreads(rows: Points) -> tuple[Rows, Rows]:
    """The median and the spread of each column (D,).

    (q75 - q25) / 1.349, a normal distribution's σ: outliers do not move it. Of a column that rests
    most of the time that is its noise, and every movement hundreds of it: there, the standard
    deviation of the values, the outer 2.5 % on either side held at the quantiles. Where that is
    0 too, or no more than rounding, the standard deviation of all; 1 in columns that never move.
    Quantiles are those of at most `SAMPLE` numbers, evenly spread over the rows.
    """
    if not len(rows):
        return np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    sample = rows[spaced(len(rows), SAMPLE // rows.shape[1])]
    levels = (0.025, 0.25, 0.5, 0.75, 0.975)
    found = np.array([np.quantile(c.astype(np.float64), levels) for c in sample.T])
    median, spread = found[:, 2], (found[:, 3] - found[:, 1]) / TO_SIGMA
    low, high = SPACES["l2"].extent(rows[:0], rows)
    with np.errstate(over="ignore"):
        deviation = moments(rows)[1]
        middle = moments(np.clip(sample, found[:, 0], found[:, 4]))[1]
    moves = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    spread = np.where(middle > RESTS * spread, middle, spread)
    spread = np.where(spread > ROUNDING * np.abs(median), spread, deviation)
    return median, np.where(moves & (spread > 0) & np.isfinite(spread), spread, 1.0)


def spaced(rows: int, most: int) -> Ids:
    """About `most` rows, or all where there are fewer: one at random in each of equal parts."""
    if rows <= (most := max(most, 4096)):
        return np.arange(rows)
    edges = np.arange(most + 1) * rows // most
    return np.random.default_rng(0).integers(edges[:-1], edges[1:])  # steps could meet episodes'


def divided(rows: Points, scale: Rows) -> Rows:
    """Rows (N, D) with every column divided by its scale, in float64."""
    out = np.empty(rows.shape)
    with np.errstate(over="ignore"):
        np.divide(rows, scale, out=out)
    return np.clip(out, -LARGEST, LARGEST, out=out)


def squared_distances(states: Points, queries: Points, ids: Ids) -> Rows:
    """|x - y|² of each query (Q, D) and the states (N, D) in its row of `ids` (Q, m)."""
    difference = np.subtract(states[ids], queries[:, None, :], dtype=np.float64)
    np.square(difference, out=difference)
    total: Rows = difference.sum(axis=-1)
    return total


def distances(states: Points, queries: Points, ids: Ids, space: Space) -> Rows:
    """Distances (Q, m) of queries (Q, D), not yet embedded, from the states in `ids` (Q, m).

    Infinite where an id is negative: a hole.
    """
    away, width = np.empty(ids.shape), space.embed_states(states[:1]).shape[1]
    size = max(1, PASS // (ids.shape[1] * width))
    shared = size * min(16, width)  # queries that share what is embedded
    for start in range(0, len(ids), shared):
        part = slice(start, start + shared)
        rows, places = np.unique(np.maximum(ids[part], 0), return_inverse=True)
        places = places.reshape(ids[part].shape)
        near, asked = space.embed_states(states[rows]), space.embed_queries(queries[part])
        for i in range(0, len(asked), size):
            squared = squared_distances(near, asked[i : i + size], places[i : i + size])
            away[start + i : start + i + size] = space.distance(squared)
    away[ids < 0] = np.inf
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
