"""How logged actions differ where states are alike: by how much, and whether a difference lasts.

People who show the same thing differ in how they do it, and go on differing from one step to the
next. A policy that explores draws its noise anew at every step. In the first case it was a way of
doing it that brought what followed, in the second a single action had little to do with it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.retrieval import ContextSettings, Retriever, find_space
from icql.settings.contexts import SpaceName

LEAST = 0.01  # of a deviation, where actions lie in [-1, 1]: who never deviates still has a unit


class Around:
    """The nearest rows of other episodes; fewer than `k` where there are not so many.

    `space` is what decides which states are nearest; a learned one is kept in `cache_dir`.
    """

    def __init__(
        self,
        data: Transitions,
        k: int = 16,
        *,
        space: SpaceName = "raw",
        cache_dir: Path | None = None,
    ) -> None:
        longest = int(np.unique(data.episode, return_counts=True)[1].max(initial=0))
        self.data, self.k = data, min(k, len(data) - longest)
        if self.k >= 1:
            context = ContextSettings(k=self.k, exclude="episode", engine="exact", space=space)
            found = find_space(data, context, cache_dir=cache_dir)
            self._near = Retriever(data.states, None, context, episode=data.episode, space=found)

    def __call__(self, rows: NDArray[np.integer]) -> NDArray[np.integer]:
        """The rows around each of these: (B, k)."""
        near, _ = self._near(self.data.states[rows], rows=rows)
        return near


def action_spread(around: Around, rows: int = 1000, seed: int = 0) -> float:
    """How much actions differ where states are alike: 0 they do not, 1 as much as anywhere.

    The mean squared distance of actions taken in nearest states of other episodes, over that of any
    two rows; of some rows, drawn by `seed`. 1 where there is nothing to compare.
    """
    actions = np.asarray(around.data.actions, np.float64)
    overall = 2 * float(actions.var(0).sum())
    if around.k < 1 or overall == 0:
        return 1.0
    drawn = _some(np.arange(len(actions)), rows, seed)
    apart = np.square(actions[around(drawn)] - actions[drawn, None]).sum(-1).mean()
    return float(apart) / overall


def deviations_last(around: Around, rows: int = 1000, seed: int = 0) -> float:
    """Whether who deviates from what others did in that state does so at the next step too.

    The correlation of an action's distance from the mean of those taken in nearest states of other
    episodes with the next step's, over all of its numbers: 0 where the deviation is drawn anew, 1
    where it stays, or where there is nothing to compare. Of some rows, drawn by `seed`.
    """
    data = around.data
    goes_on = (np.diff(data.step.astype(np.int64)) == 1) & (np.diff(data.episode) == 0)
    if around.k < 1 or not goes_on.any():
        return 1.0
    drawn = _some(np.flatnonzero(goes_on), rows, seed)
    actions = np.asarray(data.actions, np.float64)
    now, after = (actions[r] - actions[around(r)].mean(1) for r in (drawn, drawn + 1))
    size = float(np.sqrt(np.square(now).sum() * np.square(after).sum()))
    return float((now * after).sum()) / size if size > 0 else 1.0


def deviation_sizes(around: Around, rows: int = 2000, seed: int = 0) -> tuple[float, ...]:
    """How far each number of an action lies from the mean of those taken in nearest states.

    Its standard deviation over some rows, drawn by `seed`; at least `LEAST`, and where there is
    nothing to compare that of all actions.
    """
    actions = np.asarray(around.data.actions, np.float64)
    drawn = _some(np.arange(len(actions)), rows, seed)
    middle = actions[around(drawn)].mean(1) if around.k >= 1 else actions.mean(0)
    sizes = np.maximum((actions[drawn] - middle).std(0), LEAST)
    return tuple(float(size) for size in sizes)


def _some(rows: NDArray[np.integer], count: int, seed: int) -> NDArray[np.integer]:
    """So many of the rows, in order."""
    drawn = np.random.default_rng(seed).choice(rows, min(count, len(rows)), replace=False)
    return np.sort(drawn)
