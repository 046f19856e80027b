"""The paper's three retrieval strategies, on top of the nearest states, and what they leave out.

State-similar: the k nearest. Random: k uniform rows. State-similar-with-high-rewards: of the
nearest `candidates`, the k with the highest reward. In every case nearest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.arrays import blocks
from icql.errors import UserError
from icql.retrieval.metric import ODD, Ids, Points, Rows

Bits = NDArray[np.uint64]


class EpisodeRows:
    """The episode (N,) of every row, maybe mapped, and how many rows each has."""

    def __init__(self, of_row: NDArray[np.integer]) -> None:
        self.of_row = of_row
        parts = [np.unique(of_row[block], return_counts=True) for block in blocks(len(of_row))]
        names, counts = (np.concatenate(side) for side in zip(*parts, strict=True))
        self.names, place = np.unique(names, return_inverse=True)
        self.lengths = np.bincount(place, counts).astype(np.int64)

    def without(self, place: int, rows: Ids | range) -> Ids:
        """Those of the rows that are not of the episode names[place]."""
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
        return rows[self.of_row[rows] != self.names[place]]

    @cached_property
    def order(self) -> Ids:
        """The rows by episode."""
        return np.argsort(self.of_row, kind="stable")

    @cached_property
    def place(self) -> Ids:
        """Where each row is in `order`."""
        place = np.empty(len(self.of_row), np.int64)
        place[self.order] = np.arange(len(place))
        return place


@dataclass(frozen=True)
class LeftOut:
    """What is left out of the contexts of Q queries: single rows, and of some a whole episode."""

    rows: Ids  # (Q, e), none twice; -1 for none
    own: Ids  # (Q,) place of the episode in `episodes.names`; -1 for none
    episodes: EpisodeRows | None = None

    @classmethod
    def of(cls, rows: Ids, own: Ids, episodes: EpisodeRows | None = None) -> LeftOut:
        """Leave out `rows` (Q, e), and of `episodes` those of the rows `own` (Q,)."""
        rows = np.sort(rows, axis=1)
        rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
        if episodes is None:
            own = np.full(len(rows), -1)
        else:
            own = np.where(own < 0, -1, np.searchsorted(episodes.names, episodes.of_row[own]))
            inside = episodes.of_row[rows] == episodes.names[own][:, None]
            rows = np.where(inside & (own >= 0)[:, None], -1, rows)
        return cls(rows, own, episodes)

    def some(self, queries: Ids) -> LeftOut:
        """What is left out of some of the contexts."""
        return LeftOut(self.rows[queries], self.own[queries], self.episodes)

    @property
    def counts(self) -> Ids:
        """How many rows are left out of each query's context."""
        counts = (self.rows >= 0).sum(axis=1)
        if self.episodes is not None:
            counts += np.where(self.own < 0, 0, self.episodes.lengths[self.own])
        return counts

    def mask(self, queries: Ids, ids: Ids) -> NDArray[np.bool_]:
        """Which of the ids (q, m) found for some of the queries (q,) are left out."""
        out = np.zeros(ids.shape, bool)
        for column in self.rows[queries].T:
            out |= ids == column[:, None]
        if self.episodes is not None:
            own = self.own[queries][:, None]
            out |= (self.episodes.of_row[ids] == self.episodes.names[own]) & (own >= 0)
        return out

    def spans(self) -> tuple[Ids, Ids]:
        """What is left out as first places and lengths (Q, e + 1), ascending, in `order`."""
        starts, lengths = self.rows, (self.rows >= 0).astype(np.int64)
        if self.episodes is not None:
            first = np.cumsum(self.episodes.lengths) - self.episodes.lengths
            start, length = first[self.own], self.counts - lengths.sum(axis=1)
            starts = np.column_stack((self.episodes.place[starts], start))
            lengths = np.column_stack((lengths, length))
        order = np.argsort(starts, axis=1)
        return np.take_along_axis(starts, order, 1), np.take_along_axis(lengths, order, 1)


def check_ids(ids: ArrayLike, where: str, states: int, queries: int, *, most: int = 2) -> Ids:
    """Row ids as (Q, m), from an array of at most so many dimensions."""
    values = np.asarray(ids)
    if values.dtype.kind not in "iu":
        raise UserError(f"must be row ids, not {values.dtype}.", where=where)
    if not 1 <= values.ndim <= most or len(values) != queries:
        allowed = f"({queries},)" + (f" or ({queries}, m)" if most > 1 else "")
        raise UserError(f"must have shape {allowed}, not {values.shape}.", where=where)
    rows = values.astype(np.int64).reshape(queries, -1)
    wrong = ((rows < -1) | (rows >= states)).any(axis=1)
    if wrong.any():
        raise UserError(
            f"row ids lie between 0 and {states - 1}; -1 stands for none.",
            where=f"{where}, query {int(wrong.argmax())}",
        )
    return rows


def nearest_left(ids: Ids, away: Rows, out: NDArray[np.bool_], keep: int) -> tuple[Ids, Rows]:
    """The first `keep` that are not left out; -1 and infinitely far where there are fewer."""
    if out.any():
        order = np.argsort(out, axis=1, kind="stable")[:, :keep]
        ids, away = np.where(out, -1, ids), np.where(out, np.inf, away)
        ids, away = np.take_along_axis(ids, order, 1), np.take_along_axis(away, order, 1)
    more = ((0, 0), (0, max(0, keep - ids.shape[1])))
    ids, away = np.pad(ids, more, constant_values=-1), np.pad(away, more, constant_values=np.inf)
    return ids[:, :keep], away[:, :keep]


def highest_reward(ids: Ids, away: Rows, rewards: Points, k: int) -> tuple[Ids, Rows]:
    """Of candidates (Q, m), nearest first, the k with the highest reward; ties go to the nearer."""
    worth = np.where(ids < 0, -np.inf, rewards[ids])
    best = np.argsort(-worth, axis=1, kind="stable")[:, :k]
    best.sort(axis=1)  # nearest first again
    return np.take_along_axis(ids, best, 1), np.take_along_axis(away, best, 1)


def random_rows(queries: Points, rows: int, k: int, seed: int, left_out: LeftOut) -> Ids:
    """k distinct of so many rows (Q, k), uniform among those not left out.

    They depend on the seed, the query's values and what is left out alone. Floyd's sampling for
    all queries at once: k draws per query.
    """
    starts, lengths = left_out.spans()
    available = rows - lengths.sum(axis=1)
    bits = _bits(queries, seed)
    drawn = np.full((len(queries), k), -1, np.int64)
    for i in range(k):
        last = available - k + i
        bits += ODD
        # 64 bits modulo at most 32: the bias is below 1e-9
        number = (_mixed(bits) % (last + 1).astype(np.uint64)).astype(np.int64)
        again = (drawn[:, :i] == number[:, None]).any(axis=1)
        drawn[:, i] = np.where(again, last, number)
    # The draws number what is not left out: step over the rest in ascending order.
    for j in range(starts.shape[1]):
        drawn += lengths[:, j : j + 1] * (drawn >= starts[:, j : j + 1])
    return drawn if left_out.episodes is None else left_out.episodes.order[drawn]


def _bits(queries: Points, seed: int) -> Bits:
    """64 random bits of every query (Q, D), from its values and the seed."""
    bits = _mixed(np.full(len(queries), seed % 2**64, np.uint64) + ODD)
    for column in queries.T:
        values = column.astype(np.float64) + 0.0  # -0.0 is 0.0
        bits = _mixed((bits ^ values.view(np.uint64)) + ODD)
    return bits


def _mixed(bits: Bits) -> Bits:
    """The finaliser of SplitMix64: every bit of the result depends on every bit given."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))
