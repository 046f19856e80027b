"""For how many states in a row each sensor may stand still: what a policy file takes along.

The plainest of the signs of a stuck sensor (`icql.evidence.sensors` has them all), for where the
log is not at hand: one number for each column. It is the longest time in the log, stretched by what
it takes for at most `rate` of the logged episodes to exceed the others' longest times in any column
(conformal prediction, with each episode left out once).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.evidence.habits import STATES, within
from icql.evidence.sensors import READ, episode_rows
from icql.evidence.stillness import FOREVER, longest_run, runs


@dataclass(frozen=True)
class StillLimits:
    """For how many states each column may stand still."""

    states: NDArray[np.int64]  # (obs,) FOREVER: it rested throughout a logged episode
    rate: float  # of new episodes in which any column stands still for longer, at most about

    def as_json(self) -> dict[str, object]:
        """With None for a column that may stand still for ever."""
        known = [None if n >= FOREVER else n for n in self.states.tolist()]
        return {"rate": self.rate, "states": known}


def fit_still_limits(data: Transitions, *, rate: float) -> StillLimits:
    """The limits of a log of two episodes or more, which at most about `rate` of new ones exceed.

    Of N episodes nothing below 1 / (N + 1) can be said: then it is that.
    """
    rows = episode_rows(data)
    rows = rows[: within(rows, READ)]
    longest = np.array([longest_run(runs(np.asarray(data.states[one]))) for one in rows])
    told = (longest < FOREVER).all(axis=0)  # of the others nobody knows how long they would rest
    limits = np.full(longest.shape[1], FOREVER)
    if told.any():
        times = longest[:, told] + STATES  # else standing still for two were twice for one
        stretched = _stretch(times, rate) * times.max(axis=0) - STATES
        limits[told] = np.maximum(np.floor(stretched + 1e-6), 1)
    return StillLimits(limits, max(rate, 1 / (len(rows) + 1)))


def _stretch(times: NDArray[np.float64], rate: float) -> float:
    """The share of the others' longest times that at most `rate` of N + 1 episodes exceed.

    Of `times` (N, columns); an episode's share is that of the column in which it is largest.
    """
    second, first = np.sort(times, axis=0)[-2:]
    others = np.where(times == first, second, first)  # where two are longest, both are `second`
    shares = np.sort((times / others).max(axis=1))
    place = min(math.ceil((len(times) + 1) * (1 - rate)), len(times))
    return float(shares[place - 1])
