"""How near a policy stays to what was logged.

Around a state s, in other episodes, were logged the actions a_1 … a_k of the nearest states. The
policy is *far* at s where its action is farther from all of them than any of them is from its own
nearest:

    min_j |π(s) − a_j| > max_j min_{i ≠ j} |a_i − a_j|

What it does there, nobody tried: no method can tell from the log what follows. Logged actions
themselves are far in about 1 of k + 1 states; where actions hardly differ, more often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.judging.log import Doubles, Log, Rows
from icql.retrieval import ContextSettings, Retriever
from icql.retrieval.neighbours import usual_space

NEAR = 16  # states whose actions are compared
ASKED = 1000  # states at which it is asked


@dataclass(frozen=True)
class Surroundings:
    """Some rows of the log, and the rows of other episodes around them."""

    rows: Rows  # (n,)
    near: NDArray[np.integer]  # (n, k)
    actions: Doubles  # (N, act) in units of their spread
    spread: Doubles  # (act,)

    @classmethod
    def of(cls, log: Log, seed: int) -> Surroundings | None:
        """Find them; None where there are too few rows of other episodes."""
        data = log.data
        longest = int(np.unique(data.episode, return_counts=True)[1].max())
        k = min(NEAR, len(data) - longest)
        if k < 3:
            return None
        rng = np.random.default_rng([seed, 5])
        rows = np.sort(rng.choice(len(data), min(ASKED, len(data)), replace=False))
        space = usual_space(data)
        context = ContextSettings(k=k, exclude="episode", engine="exact", space=space)
        retriever = Retriever(data.states, None, context, episode=data.episode)
        near, _ = retriever(data.states[rows], rows=rows)
        spread = data.actions.std(0, dtype=np.float64)
        spread = np.where(spread > 1e-6, spread, 1.0)
        return cls(rows, near, data.actions / spread, spread)

    def far(self, actions: Doubles) -> float:
        """The share of these rows at which actions (n, act) are far from all logged ones."""
        logged = self.actions[self.near]
        asked = np.asarray(actions, np.float64) / self.spread
        nearest = np.linalg.norm(logged - asked[:, None], axis=-1).min(1)
        between = np.linalg.norm(logged[:, :, None] - logged[:, None], axis=-1)
        between[:, np.arange(logged.shape[1]), np.arange(logged.shape[1])] = np.inf
        return float((nearest > between.min(2).max(1)).mean())

    @property
    def far_logged(self) -> float:
        """The same of the actions that were logged there."""
        return self.far(self.actions[self.rows] * self.spread)


def explained(errors: Doubles, values: Doubles) -> float:
    """1 − mean error² / variance: 1 is exact, 0 no better than the mean of the values."""
    variance = float(np.var(values))
    return 1 - float(np.mean(np.square(errors))) / variance if variance > 0 else 0.0
