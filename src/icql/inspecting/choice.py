"""Which rows of a log are shown where not all of them can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class EpisodeList:
    """Where the episodes of a log lie, and what they paid."""

    ids: Ints
    first: Ints  # row
    length: Ints
    paid: NDArray[np.float64]  # undiscounted

    @classmethod
    def of(cls, data: Transitions) -> EpisodeList:
        """The episodes of a log, whose rows lie together."""
        ids, first, length = np.unique(
            np.asarray(data.episode), return_index=True, return_counts=True
        )
        returns = data.info.episode_returns
        if len(returns) > ids[-1]:  # also of the steps that became no transition
            paid = np.asarray(returns, np.float64)[ids]
        else:
            paid = np.add.reduceat(np.asarray(data.rewards, np.float64), np.sort(first))
        return cls(ids.astype(np.int64), first.astype(np.int64), length.astype(np.int64), paid)

    def rows(self, place: int, most: int) -> Ints:
        """The rows of one episode, or `most` of them evenly apart."""
        first, length = int(self.first[place]), int(self.length[place])
        return first + np.unique(np.linspace(0, length - 1, min(most, length)).astype(np.int64))

    def some(self, episodes: int, rows: int) -> Ints:
        """Places of episodes from the least to the best paid, `rows` in all at most."""
        order = np.argsort(self.paid, kind="stable")
        chosen = order[np.unique(np.linspace(0, len(order) - 1, episodes).astype(np.int64))]
        while len(chosen) > 1 and int(self.length[chosen].sum()) > rows:
            chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, len(chosen) - 1).astype(int))]
        return np.sort(chosen)


def spread(plane: NDArray[np.float64], most: int, seed: int = 0) -> Ints:
    """Places of `most` points that cover a map (N, 2): one of every cell before two of any."""
    if len(plane) <= most:
        return np.arange(len(plane))
    low, high = np.quantile(plane, (0.005, 0.995), axis=0)
    side = max(1, int(np.sqrt(most)))
    cells = ((plane - low) / np.maximum(high - low, 1e-12) * side).clip(0, side - 1).astype(int)
    cell = cells[:, 0] * side + cells[:, 1]
    mixed = np.random.default_rng(seed).permutation(len(plane))
    by_cell = mixed[np.argsort(cell[mixed], kind="stable")]
    starts = np.flatnonzero(np.append(True, np.diff(cell[by_cell]) > 0))
    turn = np.arange(len(by_cell)) - np.repeat(starts, np.diff(np.append(starts, len(by_cell))))
    return np.sort(by_cell[np.argsort(turn, kind="stable")[:most]])
