"""Which sensors of an episode are stuck: what no single state can show.

Two signs, for each column at each state: for how many states it has stood still (`stillness`), and
what it has missed meanwhile, by what the others say (`movement`). Of logged episodes, each compared
with the other ones, the largest of every sign is known; a sign's limit is the k-th largest of
these. A new episode exceeds one of them only where, with it among the logged ones, it is one of the
first k in some sign. At most U + 1 of the N + 1 are, where U of the N logged ones are by
themselves: so k is the largest for which (U + 1) / (N + 1) is at most the stated rate. Signs that
no logged episode shows, or that the same ones show, cost nothing, other than if each took its part
of the rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.evidence.movement import EVERY, Movement, fit_movement
from icql.evidence.stillness import FOREVER, longest_run, runs

ASKED = 40_000  # states at most at which logged episodes are looked at
SEED = 0


@dataclass(frozen=True)
class Sensors:
    """How long each column may stand still, and what it may miss meanwhile."""

    still: NDArray[np.int64]  # (obs,) states in a row that are equal; above, it is stuck
    missed: NDArray[np.float64]  # (obs,) spreads
    movement: Movement | None  # None: logged episodes are too short to tell
    rate: float  # of new episodes in which any column is called stuck, at most

    def __call__(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Which columns are stuck at each of the states (T, obs) of one episode so far, in order.

        Raises:
            UserError: they are of another width, or a number is not finite.
        """
        found = np.asarray(states, np.float32)
        if found.ndim != 2 or found.shape[1] != len(self.still):
            raise UserError(
                f"must have shape (T, {len(self.still)}), not {found.shape}.", where="states"
            )
        if not np.isfinite(found).all():
            row = int((~np.isfinite(found)).any(axis=1).argmax())
            raise UserError("is not finite (NaN or Inf).", where=f"states, row {row}")
        run = runs(found)
        stuck = run > self.still
        if self.movement is not None:
            stuck |= self.movement.missed(found, run) > self.missed
        return stuck

    @property
    def watched(self) -> NDArray[np.bool_]:
        """Columns (obs,) whose standing still is a sign by itself; others rest whole episodes."""
        return self.still < FOREVER


def fit_sensors(data: Transitions, *, rate: float = 0.05) -> Sensors:
    """What the columns of a log do by themselves; its episodes' rows lie together.

    `rate` is the share of new episodes like the logged ones in which any column is called stuck.
    """
    if not 0 < rate < 1:
        raise UserError(f"must lie between 0 and 1, not {rate}.", where="rate")
    episodes = list(_episodes(np.asarray(data.episode)))
    movement = fit_movement(data.states, episodes)
    chosen = list(_some(episodes))
    rows = np.concatenate([np.arange(first, first + length) for _, first, length in chosen])
    states = np.asarray(data.states[rows], np.float32)
    starts = np.cumsum([0, *(length for *_, length in chosen)])
    run = np.concatenate([runs(states[i:j]) for i, j in pairwise(starts)])
    still = np.array([longest_run(run[i:j]) for i, j in pairwise(starts)], np.float64)
    missed = np.zeros(still.shape)
    if movement is not None:
        found = movement.missed(states, run, np.asarray(data.episode)[rows])
        missed = np.maximum.reduceat(found, starts[:-1])
    signs = np.concatenate([still, missed], axis=1)
    limit, kept = joint_limits(signs, rate)
    width = data.observation_dim
    whole = np.where(limit[:width] >= FOREVER, FOREVER, limit[:width].astype(np.int64))
    return Sensors(whole, limit[width:], movement, max(rate, kept))


def joint_limits(signs: NDArray[np.float64], rate: float) -> tuple[NDArray[np.float64], float]:
    """Limits (m,) of signs (N, m) that a new row exceeds with a probability of at most `rate`.

    Where N is too small for that: the largest of each, and what these keep.
    """
    count, ordered = len(signs), -np.sort(-signs, axis=0)

    def share(k: int) -> float:
        """Of rows of which some sign is one of the k largest, and larger than the next."""
        after = ordered[k] if k < count else np.full(signs.shape[1], -np.inf)
        return (float((signs > after).any(axis=1).sum()) + 1) / (count + 1)

    k = 1
    while k < count and share(k + 1) <= rate:
        k += 1
    return ordered[k - 1], share(k)


def _episodes(episode: NDArray[np.integer]) -> Iterator[tuple[int, int, int]]:
    """Name, first row and length of each."""
    starts = np.flatnonzero(np.append(True, episode[1:] != episode[:-1]))
    lengths = np.diff(np.append(starts, len(episode)))
    for first, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        yield int(episode[first]), first, length


def _some(episodes: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Episodes in an order drawn at random, until enough states would be looked at."""
    asked = 0
    for i, place in enumerate(np.random.default_rng(SEED).permutation(len(episodes))):
        asked += episodes[place][2] // EVERY
        if i > 1 and asked > ASKED:
            return
        yield episodes[place]
