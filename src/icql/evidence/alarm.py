"""An alarm where nothing like a state was logged, with a stated rate of false alarms.

The score of a state is its distance from the nearest logged state; of a logged one, from the
nearest of *other* episodes, which is what a new episode would see. The alarm rings above the
(1 − rate) quantile of the logged scores, with conformal prediction's correction for their number
(Vovk et al. 2005): if new episodes come from where the logged ones came from, a share of about
`rate` of their states rings. It says "nothing like this was logged", not "this is dangerous".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.files import default_cache_dir
from icql.retrieval import ContextSettings, Retriever, find_space
from icql.settings.contexts import SpaceName

SCORED = 20_000  # logged states at most that the limit is found on
SEED = 0  # of which


@dataclass(frozen=True)
class Rings:
    """Whether the alarm rings at each of B states, and why."""

    rings: NDArray[np.bool_]  # (B,)
    distance: NDArray[np.float64]  # (B,) from the nearest logged state
    limit: float  # above which it rings
    row: NDArray[np.integer]  # (B,) of the nearest logged state


@dataclass(frozen=True)
class Alarm:
    """Rings where nothing like a state was logged."""

    retriever: Retriever
    limit: float
    rate: float

    def __call__(self, states: ArrayLike) -> Rings:
        """Ask about states (B, obs) in the units of the log; a sensor that is NaN is an error."""
        batch = np.asarray(states, np.float32)
        width = self.retriever.states.shape[1]
        if batch.ndim != 2 or batch.shape[1] != width:
            raise UserError(f"must have shape (B, {width}), not {batch.shape}.", where="states")
        rows, away = self.retriever(batch)
        distance = away[:, 0].astype(np.float64)
        return Rings(distance > self.limit, distance, self.limit, rows[:, 0])


def fit_alarm(data: Transitions, *, rate: float = 0.05, space: SpaceName = "standardised") -> Alarm:
    """The alarm of a log, with about this share of false alarms in new episodes like its own.

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
    context = ContextSettings(k=1, space=space)
    found = find_space(data, context, cache_dir=default_cache_dir())
    retriever = Retriever(data.states, None, context, episode=data.episode, space=found)
    rows = np.arange(len(data))
    if len(rows) > SCORED:
        rows = np.sort(np.random.default_rng(SEED).choice(len(data), SCORED, replace=False))
    others = Retriever(
        data.states,
        None,
        ContextSettings(k=1, space=space, exclude="episode"),
        episode=data.episode,
        space=found,
    )
    scores = np.sort(others(np.asarray(data.states[rows]), rows=rows)[1][:, 0])
    place = math.ceil((len(scores) + 1) * (1 - rate))  # conformal: the new state is one more
    if place > len(scores):
        raise UserError(
            f"{len(scores):,} logged states cannot show a rate of {rate:g}.",
            where="rate",
            fix=f"Ask for at least {1 / (len(scores) + 1):.2g}.",
        )
    return Alarm(retriever, float(scores[place - 1]), rate)
