"""What a sensor that stands still should say, by what the others say.

A door rests for most of an episode, and so does its sensor, stuck or not. But where the others, a
moment ago and now, are as in logged moments in which the door had moved, it should have moved. So
each column is looked for in the log by the *other* ones: their values, how they changed over the
last `SPAN` states, and where the column itself was before. Every other column counts by its squared
correlation with this one, of values and of changes: a second sensor on the same door counts in
full, a distant one hardly. How far the column is from the nearest of the `NEAREST` values found is
what it has missed, in spreads of the column; less than `NOISE` is nothing.

What was missed is kept as long as the column stands still: a door that was opened unseen stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from icql.retrieval import ContextSettings, Retriever
from icql.retrieval.metric import Rows, divided, medians_and_spreads
from icql.settings.contexts import Exclude

SPAN = 10  # states over which changes are told, and for which a column must have stood still
EVERY = 2  # states from one look at a column that stands still to the next
NEAREST = 5  # logged moments that are asked what the column was
NOISE = 0.1  # spreads: what is less is no movement
LEAST = 0.01  # squared correlation below which a column says nothing of another
FAR = 20.0  # spreads at most by which a number counts
LOGGED = 20_000  # moments at most that are looked among
SEED = 2


@dataclass(frozen=True)
class Movement:
    """Moments of a log, SPAN states apart, among which those like others are found."""

    centre: Rows  # (obs,)
    spread: Rows  # (obs,)
    now: Rows  # (M, obs) in spreads
    before: Rows  # (M, obs) SPAN states earlier
    episode: NDArray[np.integer]  # (M,)
    levels: Rows  # (obs, obs) squared correlations of values …
    changes: Rows  # (obs, obs) … and of changes
    _found: dict[int, Retriever] = field(default_factory=dict, repr=False)

    def missed(
        self,
        states: NDArray[np.float32],
        still: NDArray[np.int64],
        own: NDArray[np.integer] | None = None,
    ) -> Rows:
        """How much each column of states (T, obs) has missed since it stands still, in spreads.

        They are of one episode, in order, or of several, one after the other: `still` (T, obs),
        for how many states it has, begins anew with each. `own` (T,) names the logged episodes that
        they are of (their places), which are not looked among.
        """
        x, out = standardised(states, self.centre, self.spread), np.zeros(states.shape)
        told = (self.levels + self.changes).any(axis=1)  # by any other column
        for column in np.flatnonzero((still > SPAN).any(axis=0) & told):
            for_long = still[:, column] - SPAN - 1
            looked = (for_long >= 0) & (for_long % EVERY == 0)
            at = np.flatnonzero(looked)
            apart = np.zeros(len(states))
            named = None if own is None else own[at]
            apart[at] = self._apart(x[at], x[at - SPAN], int(column), named)
            out[:, column] = since(apart, still[:, column])
        return out

    def _apart(self, now: Rows, before: Rows, column: int, own: NDArray[np.integer] | None) -> Rows:
        """How far a column (Q,) is from the nearest of what it was at moments like these."""
        retriever = self._retriever(column)
        asked, rows = self._features(now, before, column), np.full(len(now), -1)
        if own is not None:
            names, first = np.unique(self.episode, return_index=True)
            place = np.minimum(np.searchsorted(names, own), len(names) - 1)
            rows = np.where(names[place] == own, first[place], -1)  # any row names its episode
        rule: Exclude = "none" if own is None else "episode"
        ids, away = retriever.nearest(asked, retriever.left_out(asked, rows, rule=rule))
        apart = np.abs(self.now[ids, column] - now[:, [column]])
        nearest = np.where(np.isinf(away), np.inf, apart).min(axis=1)
        # where nothing is left to compare with, nothing was missed
        return np.where(np.isinf(nearest) | (nearest <= NOISE), 0, nearest)

    def _retriever(self, column: int) -> Retriever:
        if column not in self._found:
            features = self._features(self.now, self.before, column)
            nearest = min(NEAREST, len(features))
            context = ContextSettings(k=nearest, space="raw", engine="exact")
            self._found[column] = Retriever(features, None, context, episode=self.episode)
        return self._found[column]

    def _features(self, now: Rows, before: Rows, column: int) -> NDArray[np.float32]:
        """By what a column is looked for (Q, F): the others that say something, and its past."""
        some, moved = self.levels[column] > 0, self.changes[column] > 0
        parts = (
            now[:, some] * self.levels[column, some],
            (now - before)[:, moved] * self.changes[column, moved],
            before[:, [column]],
        )
        return np.concatenate(parts, axis=1).astype(np.float32)


def standardised(states: NDArray[np.float32], centre: Rows, spread: Rows) -> Rows:
    """States (T, obs) in spreads."""
    x = divided(states - centre, spread)
    return np.clip(x, -FAR, FAR, out=x)


def since(apart: Rows, still: NDArray[np.int64]) -> Rows:
    """The largest (T,) since the column last moved; `still` (T,) is how long ago that was."""
    out, largest = np.zeros(len(apart)), 0.0
    for i, (one, count) in enumerate(zip(apart, still, strict=True)):
        largest = 0.0 if count == 1 else max(largest, one)
        out[i] = largest
    return out


def fit_movement(states: NDArray[np.float32], lengths: Sequence[int]) -> Movement | None:
    """The moments of episodes whose states lie one after the other; None: all are too short."""
    starts, names = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, (end, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
        starts.append(np.arange(end - length, end - SPAN))
        names.append(np.full(len(starts[-1]), name))
    before, episode = np.concatenate(starts), np.concatenate(names)
    if not len(before):
        return None
    if len(before) > LOGGED:
        some = np.sort(np.random.default_rng(SEED).choice(len(before), LOGGED, replace=False))
        before, episode = before[some], episode[some]
    centre, spread = medians_and_spreads(states)
    was, now = (standardised(states[rows], centre, spread) for rows in (before, before + SPAN))
    together = _correlations(now), _correlations(now - was)
    return Movement(centre, spread, now, was, episode, *together)


def _correlations(x: Rows) -> Rows:
    """Squared correlations of columns (N, D), none with themselves, nor any that say nothing."""
    x = x - x.mean(axis=0)
    length = np.sqrt((x**2).sum(axis=0))
    x /= np.where(length > 0, length, 1)
    squared: Rows = (x.T @ x) ** 2
    np.fill_diagonal(squared, 0)
    return np.where(squared >= LEAST, squared, 0)
