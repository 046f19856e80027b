"""For how long the columns of an episode have stood still."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FOREVER = 2**53  # states: the largest count that float64 tells from the next


def runs(states: NDArray[np.float32]) -> NDArray[np.int64]:
    """For how many states (T, obs) of an episode each column has been as it is, itself included."""
    changed = np.ones(states.shape, bool)
    changed[1:] = states[1:] != states[:-1]
    at = np.arange(len(states))[:, None]
    begun: NDArray[np.int64] = np.maximum.accumulate(np.where(changed, at, 0), axis=0)
    return at - begun + 1


def longest_run(run: NDArray[np.int64]) -> NDArray[np.int64]:
    """The longest run (obs,) of each column of an episode, from `runs`.

    Of a column that never moved nobody knows how long it would have stayed: FOREVER.
    """
    longest = run.max(axis=0)
    never = (longest == len(run)) & (len(run) > 1)
    return np.where(never, FOREVER, longest)
