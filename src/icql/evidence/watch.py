"""The alarm of an episode so far: states far from all logged ones, and sensors that are stuck.

Both share one stated rate, of states: each sign gets the same part of it, the largest for which
together they ring at no more of the logged states, each compared with other episodes. Of few
episodes it is a smaller part: limits are then tried on episodes that they were not found on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.evidence.habits import usual
from icql.evidence.sensors import MANY, Sensors
from icql.pages import note

TOLD = 10  # sensors that a notebook shows
GROUPS = 25  # of episodes, each of which is left out once
STEPS = 20  # levels that are tried


@dataclass(frozen=True)
class Watched:
    """Whether the alarm rings at each of an episode's T states so far, and why."""

    far: NDArray[np.bool_]  # (T,) nothing like this state was logged
    stuck: NDArray[np.bool_]  # (T, obs) sensors that do not do as they did in the log

    @property
    def rings(self) -> NDArray[np.bool_]:
        """(T,) either."""
        return self.far | self.stuck.any(axis=1)

    def _repr_html_(self) -> str:
        """In a notebook: how often it rings, and which sensors are stuck since when."""
        count, ringing = len(self.far), int(self.rings.sum())
        title = "the alarm is silent" if not ringing else f"the alarm rings at {ringing:,}"
        lines = [f"{count:,} states in order; {int(self.far.sum()):,} are unlike all logged ones"]
        named = np.flatnonzero(self.stuck.any(axis=0))
        often = named[np.argsort(-self.stuck[:, named].sum(axis=0), kind="stable")][:TOLD]
        rows = [
            (int(i), int(self.stuck[:, i].argmax()), int(self.stuck[:, i].sum())) for i in often
        ]
        return note(title, lines, ("stuck sensor", "first at", "states"), rows)


@dataclass(frozen=True)
class SharedLimits:
    """Above which each of the two rings."""

    distance: float
    strange: float

    def far(self, distance: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Of states (T,), by how far each is from the nearest logged one."""
        return distance > self.distance

    def stuck(self, strange: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which columns (T, obs) are stranger than allowed, by one part's habits.

        As logged ones are: who asks all parts rings too often by any of them, and too rarely by
        their median.
        """
        return strange > self.strange


def shared_limits(
    scored: NDArray[np.integer],
    distance: NDArray[np.float64],
    episode: NDArray[np.integer],
    sensors: Sensors,
    rate: float,
) -> SharedLimits:
    """Limits that a share of `rate` of states exceeds, of one or of both.

    `distance` (n,) is that of logged states, with their rows ascending; those of them count that
    the sensors know too. `episode` is that of every row of the log.
    """
    rows = np.concatenate([part.rows for part in sensors.parts])
    strange = np.concatenate([part.strange for part in sensors.parts])
    place = np.minimum(np.searchsorted(scored, rows), len(scored) - 1)
    known = scored[place] == rows
    signs = np.stack([distance[place[known]], strange[known]], axis=1)
    found = usual(signs, _level(signs, np.asarray(episode)[rows[known]], rate))
    return SharedLimits(float(found[0]), float(found[1]))


def _level(signs: NDArray[np.float64], episode: NDArray[np.integer], rate: float) -> float:
    """What to ask for, so that new episodes exceed the limits at a share of `rate` of states.

    A stuck sensor is so for the rest of an episode, so states ring in bundles, and of N episodes
    with a bundle in every tenth a new one has it in more: up to one in N + 1 more. So the limits of
    the other episodes are tried on each, or on a group of them.
    """
    names, group = np.unique(episode, return_inverse=True)
    if len(names) >= MANY:
        return rate
    group %= GROUPS
    level = rate
    for level in rate * np.arange(STEPS, 0, -1) / STEPS:
        beyond = 0
        for one in np.unique(group):
            limits = usual(signs[group != one], level)
            beyond += int((signs[group == one] > limits).any(axis=1).sum())
        if beyond <= rate * len(signs):
            break
    return float(level)
