"""An alarm where nothing like a state was logged, with a stated rate of false alarms.

The score of a state is its distance from the nearest logged state; of a logged one, from the
nearest of *other* episodes, which is what a new episode would see. The alarm rings above the
(1 − rate) quantile of the logged scores, with conformal prediction's correction for their number
(Vovk et al. 2005): if new episodes come from where the logged ones came from, a share of about
`rate` of their states rings. It says "nothing like this was logged", not "this is dangerous".

An alarm may keep a part of the logged states only, so that it fits elsewhere (docs/export.md). Its
limit is then that of this part: fewer states lie farther apart, and the rate stays as stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.evidence.sensors import Sensors, fit_sensors
from icql.evidence.watch import SharedLimits, Watched, shared_limits
from icql.files import default_cache_dir
from icql.pages import note
from icql.retrieval import ContextSettings, Retriever, Space, find_space
from icql.settings.contexts import SpaceName

SCORED = 20_000  # logged states at most that the limit is found on
TOLD = 10  # states that a notebook shows
SEED = 0  # of which
KEPT_SEED = 1  # of the states that are kept: drawn apart from those that are scored


@dataclass(frozen=True)
class Rings:
    """Whether the alarm rings at each of B states, and why."""

    rings: NDArray[np.bool_]  # (B,)
    distance: NDArray[np.float64]  # (B,) from the nearest logged state
    limit: float  # above which it rings
    row: NDArray[np.integer]  # (B,) of the nearest logged state

    def _repr_html_(self) -> str:
        """In a notebook: how often it rings, and the states that are farthest."""
        count, ringing = len(self.rings), int(self.rings.sum())
        title = "the alarm is silent" if not ringing else f"the alarm rings at {ringing:,}"
        lines = [f"{count:,} states; it rings beyond {self.limit:.4g}"]
        first = np.argsort(-self.distance, kind="stable")[:TOLD]
        rows = [
            (int(i), float(self.distance[i]), "rings" if self.rings[i] else "silent", self.row[i])
            for i in first
        ]
        return note(title, lines, ("state", "distance", "alarm", "nearest logged row"), rows)


@dataclass(frozen=True)
class Alarm:
    """Rings where nothing like a state was logged."""

    retriever: Retriever  # of the states that are kept
    limit: float
    rate: float
    kept: NDArray[np.integer]  # their rows in the log
    scored: NDArray[np.integer]  # rows that the limit was found on, ascending
    scores: NDArray[np.float64]  # how far each of them is from the nearest of other episodes
    log: Transitions  # that it is the alarm of

    def __repr__(self) -> str:
        rings = f"rings beyond {self.limit:.4g}, at {self.rate:.3g} of new states like these"
        return f"<Alarm over {len(self.kept):,} states of {self.log.info.name}: {rings}>"

    def __call__(self, states: ArrayLike) -> Rings:
        """Ask about states (B, obs) in the units of the log; a sensor that is NaN is an error."""
        batch = np.asarray(states, np.float32)
        width = self.retriever.states.shape[1]
        if batch.ndim != 2 or batch.shape[1] != width:
            raise UserError(f"must have shape (B, {width}), not {batch.shape}.", where="states")
        rows, away = self.retriever(batch)
        distance = away[:, 0].astype(np.float64)
        return Rings(distance > self.limit, distance, self.limit, self.kept[rows[:, 0]])

    def stuck(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Which sensors are stuck at each of an episode's states so far (T, obs), in order.

        Those that have stood still for longer than in the log, or after a leap, or while what moves
        with them did: what no single state can show (`icql.evidence.sensors`). In at most `rate` of
        new episodes any is called; of few episodes `alarm.sensors.rate` says what is promised. The
        first call takes longer.
        """
        return self.sensors(states)

    def watch(self, states: ArrayLike) -> Watched:
        """Whether it rings at each of an episode's states so far (T, obs), in order.

        Where nothing like a state was logged or a sensor is stuck, at about `rate` of the states of
        new episodes in all: so each alone rings later than by itself. The first call takes longer.
        """
        far = self.shared.far(self(states).distance)
        return Watched(far, self.shared.stuck(self.sensors.strange_by_one(states)))

    @cached_property
    def worst(self) -> float:
        """The share of false alarms that holds whatever the episodes are like.

        About `rate` is what logs like most give. But if every episode lies apart from all others,
        a new one rings throughout where it is the farthest, which one in N + 1 is.
        """
        return min(1.0, self.rate + 1 / (len(np.unique(self.log.episode)) + 1))

    @cached_property
    def sensors(self) -> Sensors:
        """What `stuck` and `watch` ask; found when first asked."""
        return fit_sensors(self.log, rate=self.rate)

    @cached_property
    def shared(self) -> SharedLimits:
        """What `watch` rings above."""
        return shared_limits(self.scored, self.scores, self.log.episode, self.sensors, self.rate)

    def logged(
        self, states: NDArray[np.floating], rows: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """How far logged states (B, obs), with their rows, are from those of other episodes.

        Of an alarm that keeps every state; what the limit was found on is not measured again.
        """
        place = np.minimum(np.searchsorted(self.scored, rows), len(self.scored) - 1)
        known = self.scored[place] == rows
        found = self.scores[place].copy()
        if not known.all():
            asked, own = states[~known], rows[~known]
            others = self.retriever.left_out(asked, own, rule="episode")
            found[~known] = self.retriever.nearest(asked, others)[1][:, 0]
        return found


def fit_alarm(
    data: Transitions,
    *,
    rate: float = 0.05,
    space: SpaceName = "standardised",
    states: int | None = None,
) -> Alarm:
    """The alarm of a log, with about this share of false alarms in new episodes like its own.

    `states` is how many logged states it keeps at most, drawn at random; None: all.

    Raises:
        UserError: there is a single episode, or the rate is beyond what its states can show.
    """
    if not 0 < rate < 1:
        raise UserError(f"must lie between 0 and 1, not {rate}.", where="rate")
    if len(np.unique(data.episode)) < 2:
        raise UserError(
            "an alarm compares states with those of other episodes, and there is a single one.",
            where=data.info.source,
            fix="Log more episodes.",
        )
    most = len(data) if states is None else max(states, 0)
    kept = some_rows(len(data), most, KEPT_SEED)
    if len(np.unique(data.episode[kept])) < 2:
        raise UserError(
            f"{states} are too few: all that are kept come from one episode.", where="states"
        )
    # who asks for a part takes it elsewhere, where the search is exact
    context = ContextSettings(k=1, space=space, engine="auto" if states is None else "exact")
    found = find_space(data, context, cache_dir=default_cache_dir())
    retriever = _retriever(data, kept, found, context)
    scored = some_rows(len(data), SCORED, SEED)
    of_scored = _scores(data, kept, retriever, scored)
    limit = limit_of(of_scored, rate)
    return Alarm(retriever, limit, rate, kept, scored, of_scored, data)


def limit_of(scores: NDArray[np.float64], rate: float) -> float:
    """The limit that a share of `rate` of new states exceeds, whose scores are like these (n,)."""
    place = math.ceil((len(scores) + 1) * (1 - rate))  # conformal: the new state is one more
    if place > len(scores):
        raise UserError(
            f"{len(scores):,} logged states cannot show a rate of {rate:g}.",
            where="rate",
            fix=f"Ask for at least {1 / (len(scores) + 1):.2g}.",
        )
    return float(np.sort(scores)[place - 1])


def _scores(
    data: Transitions,
    kept: NDArray[np.integer],
    retriever: Retriever,
    scored: NDArray[np.integer],
) -> NDArray[np.float64]:
    """How far logged states are from the nearest kept one of other episodes."""
    episodes, first = np.unique(data.episode[kept], return_index=True)
    place = np.minimum(np.searchsorted(episodes, data.episode[scored]), len(episodes) - 1)
    # any kept row of a state's episode names it; -1 where none of it was kept
    own = np.where(episodes[place] == data.episode[scored], first[place], -1)
    states = np.asarray(data.states[scored])
    others = retriever.left_out(states, own, rule="episode")
    return np.asarray(retriever.nearest(states, others)[1][:, 0], np.float64)


def _retriever(
    data: Transitions, kept: NDArray[np.integer], found: Space, context: ContextSettings
) -> Retriever:
    """A retriever of the kept states; of all, without a copy."""
    states, episode = data.states, data.episode
    if len(kept) < len(data):
        states, episode = states[kept], episode[kept]
    return Retriever(states, None, context, episode=episode, space=found)


def some_rows(rows: int, most: int, seed: int) -> NDArray[np.integer]:
    """All rows, or `most` of them drawn by `seed`, ascending."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
