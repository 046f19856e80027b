"""Which sensors of an episode are stuck: what no single state can show.

`habits` says how strange a column is at each state. How strange is too strange is found on whole
episodes: conformal prediction (Vovk et al. 2005), for the states of one episode are alike. A new
episode is called where fewer than a share of `rate` of N + 1 episodes, itself among them, are as
strange at their strangest. So nothing below 1 / (N + 1) can be promised.

An episode is as strange as a new one only by habits that it was not part of. Of `MANY` episodes a
half shows the habits and the other half is compared, and the promise is exact. Of fewer that
wastes too much: each of `FOLDS` parts is compared by habits of the others, and a new episode with
every part by the same habits (cross-conformal prediction, Vovk 2015). The promise is then proven
for twice the rate only (Barber et al. 2021), and tested to hold as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.evidence.habits import ASKED, Habits, fit_habits, within
from icql.evidence.stillness import States, courses

FOLDS = 5
MANY = 200  # episodes of which a half is enough to compare with
READ = 1_000_000  # states at most that are read of a log
SEED = 0


@dataclass(frozen=True)
class Fold:
    """Some of a log's episodes, and the habits of others."""

    habits: Habits
    strangest: NDArray[np.float64]  # (n,) of each of the episodes, by these habits, ascending
    rows: NDArray[np.int64]  # (m,) of their states in the log
    strange: NDArray[np.float64]  # (m,) of the strangest column at each


@dataclass(frozen=True)
class Sensors:
    """What columns do by themselves, and how strange episodes are."""

    parts: tuple[Fold, ...]
    rate: float = 1.0  # of new episodes in which any column is called stuck, at most

    def at(self, rate: float) -> Sensors:
        """The same at another rate, or at the least that so many episodes can promise."""
        logged = sum(len(part.strangest) for part in self.parts)
        return replace(self, rate=max(rate, 1 / (logged + 1)))

    def __call__(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Which columns are stuck at each of the states (T, obs) of one episode so far, in order.

        Raises:
            UserError: they are of another width, or a number is not finite.
        """
        return self.called(self.strange(states))

    def called(self, strange: Sequence[NDArray[np.float64]]) -> NDArray[np.bool_]:
        """What is stranger than the rate allows, by every part's habits."""
        logged = sum(len(part.strangest) for part in self.parts)
        as_strange = logged - sum(
            np.searchsorted(part.strangest, one)
            for part, one in zip(self.parts, strange, strict=True)
        )
        # a share that is the rate itself must not be lost to rounding
        return np.asarray(as_strange + 1 <= self.rate * (logged + 1) * (1 + 1e-9))

    def strange(self, states: ArrayLike) -> list[NDArray[np.float64]]:
        """How strange each column is at each of the states (T, obs), by every part's habits."""
        course = courses([self._checked(states)])
        return [part.habits.strange(course) for part in self.parts]

    def strange_by_one(self, states: ArrayLike) -> NDArray[np.float64]:
        """The same (T, obs) by one part's habits, as of logged states."""
        return self.parts[0].habits.strange(courses([self._checked(states)]))

    def _checked(self, states: ArrayLike) -> States:
        found, width = np.asarray(states, np.float32), len(self.parts[0].habits.spread)
        if found.ndim != 2 or found.shape[1] != width:
            raise UserError(f"must have shape (T, {width}), not {found.shape}.", where="states")
        if not np.isfinite(found).all():
            row = int((~np.isfinite(found)).any(axis=1).argmax())
            raise UserError("is not finite (NaN or Inf).", where=f"states, row {row}")
        return found


def fit_sensors(data: Transitions, *, rate: float = 0.05) -> Sensors:
    """What the columns of a log do by themselves; its episodes' rows lie together.

    `rate` is the share of new episodes like the logged ones in which any column is called stuck;
    where there are too few to promise it, `Sensors.rate` is what is promised.
    """
    if not 0 < rate < 1:
        raise UserError(f"must lie between 0 and 1, not {rate}.", where="rate")
    found = episode_rows(data)
    rows = found[: within(found, READ)]
    count = 2 if len(rows) >= MANY else min(FOLDS, len(rows))
    if count < 2:
        raise UserError("has a single episode, and they are compared.", where=data.info.source)
    folds = [rows[i::count] for i in range(count)]
    compared = folds[:1] if len(rows) >= MANY else folds
    parts = []
    for i, fold in enumerate(compared):
        others = [one for other in folds[:i] + folds[i + 1 :] for one in other]
        parts.append(_part(data, fold, others))
    return Sensors(tuple(parts)).at(rate)


def _part(
    data: Transitions, rows: Sequence[NDArray[np.int64]], others: Sequence[NDArray[np.int64]]
) -> Fold:
    """Episodes by their rows, as strange as they are by the habits of others."""
    states, rows = data.states, rows[: within(rows, ASKED)]
    habits = fit_habits([np.asarray(states[one], np.float32) for one in others])
    course = courses([np.asarray(states[one], np.float32) for one in rows])
    strange = habits.strange(course).max(axis=1)
    strangest = np.sort(course.largest(strange))
    return Fold(habits, strangest, np.concatenate(rows), strange)


def episode_rows(data: Transitions) -> list[NDArray[np.int64]]:
    """The rows of each episode; episodes in an order drawn at random."""
    episode = np.asarray(data.episode)
    starts = np.flatnonzero(np.append(True, episode[1:] != episode[:-1]))
    found = np.split(np.arange(len(episode)), starts[1:])
    return [found[i] for i in np.random.default_rng(SEED).permutation(len(found))]
