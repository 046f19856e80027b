"""A sensor that has not moved for longer than it ever did in the log is taken to be stuck.

One state cannot show it: a number stuck at a typical value is a typical number. Over time it can be
seen. Of every logged episode and column the longest run of equal values is known; a column's limit
is the run that a new episode exceeds with a probability of at most `rate` over all columns together
(each takes its part of the rate), by the ranks of the logged episodes, as conformal prediction has
it. Where there are too few episodes for that, the limit is the longest run that was logged, and
`rate` says what this keeps. A column that stays for too many whole episodes cannot be watched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError

FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Stillness:
    """How long each column may stay as it is."""

    limit: NDArray[np.int64]  # (obs,) states in a row that are equal; above, it is stuck
    watched: NDArray[np.bool_]  # (obs,) False: it stays for whole episodes in the log, too
    rate: float  # of false alarms, per episode at most

    def __call__(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Which columns are stuck at each of the states (T, obs) of one episode so far, in order.

        Raises:
            UserError: they are of another width.
        """
        found = np.asarray(states, np.float32)
        if found.ndim != 2 or found.shape[1] != len(self.limit):
            raise UserError(
                f"must have shape (T, {len(self.limit)}), not {found.shape}.", where="states"
            )
        return (runs(found) > self.limit) & self.watched


def runs(states: NDArray[np.float32], first: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """For how many states (T, obs) each column has been as it is, itself included.

    `first` (T,) marks where episodes begin; None: there is one.
    """
    changed = np.ones(states.shape, bool)
    changed[1:] = states[1:] != states[:-1]
    if first is not None:
        changed |= first[:, None]
    at = np.arange(len(states))[:, None]
    since = np.maximum.accumulate(np.where(changed, at, 0), axis=0)
    return at - since + 1


def fit_stillness(data: Transitions, *, rate: float = 0.05) -> Stillness:
    """How long the columns of a log stay as they are; its episodes' rows lie together.

    `rate` is the share of new episodes like the logged ones in which any column is called stuck.
    """
    if not 0 < rate < 1:
        raise UserError(f"must lie between 0 and 1, not {rate}.", where="rate")
    episode = np.asarray(data.episode)
    starts = np.flatnonzero(np.append(True, episode[1:] != episode[:-1]))
    lengths = np.diff(np.append(starts, len(episode)))
    first = np.zeros(len(episode), bool)
    first[starts] = True
    longest = np.empty((len(starts), data.observation_dim), np.int64)
    for column in range(data.observation_dim):  # one at a time: the log may be large
        still = runs(np.asarray(data.states[:, column : column + 1]), first)[:, 0]
        longest[:, column] = np.maximum.reduceat(still, starts)
    # of a column that never moved in an episode nobody knows how long it would have stayed
    longest[(longest == lengths[:, None]) & (lengths > 1)[:, None]] = FOREVER
    count, columns = len(starts), max(1, int((longest < FOREVER).any(axis=0).sum()))
    place = min(math.ceil((count + 1) * (1 - rate / columns)), count)
    kept = columns * (1 - place / (count + 1))  # what the ranks can promise
    limit = np.sort(longest, axis=0)[place - 1]
    return Stillness(limit, limit < FOREVER, max(rate, kept))
