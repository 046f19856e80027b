"""A log, episode by episode: where each begins and ends, what it returned, which are held out.

The value of the behaviour is known better than any other, because it was logged:

    G = r_0 + γ r_1 + … + γ^{T−1} r_{T−1} + γ^T m V(s_T)

An episode that was cut has no logged end. Its tail V(s_T) is what fitted Q evaluation of the
behaviour itself says (`Q_b(s_T, a_T)`): discounted returns of cut and of ended episodes then mean
the same. A row that is missing inside an episode cuts it, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.graph.comparison import lambda_returns

Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Log:
    """Transitions in time order, episode after episode."""

    data: Transitions
    broken: NDArray[np.bool_]  # (N,) the row after this one is not its next step
    first: Rows  # (E,) the first row of each episode
    last: Rows  # (E,) the row at which it ends, is cut or has a hole

    @classmethod
    def of(cls, data: Transitions) -> Log:
        """Put rows in time order and find the episodes."""
        order = np.lexsort((data.step, data.episode))
        if (order[1:] < order[:-1]).any():
            data = data.subset(order)
        episode, step = data.episode.astype(np.int64), data.step.astype(np.int64)
        broken = np.ones(len(data), np.bool_)
        broken[:-1] = (np.diff(episode) != 0) | (np.diff(step) != 1)
        first = np.flatnonzero(np.append(True, np.diff(episode) != 0))
        breaks = np.flatnonzero(broken)
        return cls(data, broken, first, breaks[np.searchsorted(breaks, first)])

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self.first)

    @property
    def cut(self) -> NDArray[np.bool_]:
        """Episodes (E,) without a logged end."""
        return np.asarray(self.data.mask[self.last] > 0)

    @property
    def steps(self) -> Rows:
        """How many rows each episode (E,) has before it ends, is cut or has a hole."""
        return self.last - self.first + 1

    def rows_of(self, episodes: Rows) -> Rows:
        """All rows of these episodes, one after the other; an episode may be asked for twice."""
        ends = np.append(self.first[1:], len(self.data))
        spans = [np.arange(self.first[e], ends[e]) for e in episodes.tolist()]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)

    def split(self, share: float, seed: int) -> tuple[Rows, Rows]:
        """Episodes to fit on and episodes held out; of a single one none is held out."""
        shuffled = np.random.default_rng([seed, 1]).permutation(len(self))
        held = min(max(1, round(share * len(self))), len(self) - 1)
        return np.sort(shuffled[held:]), np.sort(shuffled[:held])

    def returns_to_go(self, discount: float, tails: Doubles | float) -> Doubles:
        """Discounted return (N,) from every row on; `tails` (N,) are values of s' where cut."""
        rewards, mask = (np.asarray(x, np.float64) for x in (self.data.rewards, self.data.mask))
        beyond = np.broadcast_to(np.asarray(tails, np.float64), rewards.shape)
        return lambda_returns(rewards, mask, beyond, self.broken, discount=discount, trace=1.0)

    def possible(self, discount: float) -> tuple[float, float]:
        """The least and the largest value that a policy can have, by the rewards of the log."""
        low, high = float(self.data.rewards.min()), float(self.data.rewards.max())
        if (self.data.mask == 0).any():  # an episode may end at once: then nothing follows
            low, high = min(low, low * (1 - discount)), max(high, high * (1 - discount))
        return low / (1 - discount), high / (1 - discount)

    def table(self, values: Doubles) -> Doubles:
        """Values (N,) of rows as a table (E, T + 1), with 0 after the end of each episode."""
        steps = self.steps
        filled = np.zeros((len(self), int(steps.max()) + 1))
        for e, (first, count) in enumerate(zip(self.first.tolist(), steps.tolist(), strict=True)):
            filled[e, :count] = values[first : first + count]
        return filled
