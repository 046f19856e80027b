"""For how long the columns of episodes have stood still, and how far they leapt before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FOREVER = 2**53  # states: the largest count that float64 tells from the next
States = NDArray[np.float32]


@dataclass(frozen=True)
class Courses:
    """Episodes one after the other."""

    states: States  # (T, obs) of all
    run: NDArray[np.int64]  # (T, obs) for how many states each column has been as it is
    leap: NDArray[np.float64]  # (T, obs) how far it leapt to where it stands
    starts: NDArray[np.int64]  # (N + 1,) first row of each, and the end of the last

    def largest(self, sign: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest (N, obs) of a sign (T, obs) in each episode."""
        return np.maximum.reduceat(sign, self.starts[:-1])

    def longest(self, where: NDArray[np.bool_]) -> NDArray[np.float64]:
        """For how many states (N, obs) each column stood still at most in each episode.

        In states (T, obs) that count. Of a column that never moved nobody knows how long it would
        have stayed: FOREVER.
        """
        run = np.where(where, self.run, 0)
        found = [longest_run(run[i:j]) for i, j in pairwise(self.starts)]
        return np.array(found, np.float64)


def courses(episodes: Sequence[States]) -> Courses:
    """What the columns of episodes did, each the states (T, obs) of one in order."""
    found = [runs(one) for one in episodes]
    leaps_of = [leaps(one, run) for one, run in zip(episodes, found, strict=True)]
    starts = np.cumsum([0, *(len(one) for one in episodes)])
    return Courses(
        np.concatenate(episodes), np.concatenate(found), np.concatenate(leaps_of), starts
    )


def runs(states: States) -> NDArray[np.int64]:
    """For how many states (T, obs) of an episode each column has been as it is, itself included."""
    changed = np.ones(states.shape, bool)
    changed[1:] = states[1:] != states[:-1]
    at = np.arange(len(states))[:, None]
    begun: NDArray[np.int64] = np.maximum.accumulate(np.where(changed, at, 0), axis=0)
    return at - begun + 1


def leaps(states: States, run: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far each column (T, obs) leapt to the value at which it has stood still since.

    0 as long as it moves, and where it has stood from the first state on.
    """
    step = np.zeros(states.shape)
    step[1:] = np.abs(np.diff(states.astype(np.float64), axis=0))
    begun = np.arange(len(states))[:, None] - run + 1
    return np.where(run > 1, np.take_along_axis(step, begun, 0), 0)


def longest_run(run: NDArray[np.int64]) -> NDArray[np.int64]:
    """The longest run (obs,) of each column of an episode, from `runs`; FOREVER: it never moved."""
    longest = run.max(axis=0)
    never = (longest == len(run)) & (len(run) > 1)
    return np.where(never, FOREVER, longest)
