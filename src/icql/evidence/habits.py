"""What the columns of a log do by themselves, so that what they do otherwise can be told.

Three signs that a column is stuck, at each state of an episode: for how many states it has stood
still, how far it leapt before it did (both `stillness`), and what it has missed meanwhile, by what
the others say (`movement`). In logged episodes, each compared with the other ones, every sign has a
usual size; a sign divided by that is comparable with any other, and the largest of the three is how
strange a column is: 1 is as far as logged episodes go. How strange is too strange is not decided
here but on episodes that none of this was found on (`sensors`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Sized
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.evidence.movement import Movement, fit_movement
from icql.evidence.stillness import FOREVER, Courses, States, courses
from icql.retrieval.metric import Rows, divided, medians_and_spreads

ASKED = 80_000  # states at most at which episodes are looked at
BEYOND = 0.05  # of episodes at most: a single odd one of hundreds does not say what is usual
STATES = 5.0  # added to all counts, else standing still for two were twice for one …
SPREADS = 0.2  # … and to all spreads, else any were infinitely more than none


@dataclass(frozen=True)
class Habits:
    """The usual size of every sign."""

    spread: Rows  # (obs,)
    ends: States  # (2, obs) where its scale ends; NaN: not to be seen
    still: Rows  # (obs,) states in a row that are equal; infinite: it rests for whole episodes
    still_at_end: Rows  # (obs,) the same at an end of its scale, where numbers are cut off
    leap: Rows  # (obs,) spreads
    missed: Rows  # (obs,) spreads
    movement: Movement | None  # None: logged episodes are too short to tell

    def strange(self, course: Courses) -> Rows:
        """How strange each column is at every state (T, obs)."""
        at_end = _at_end(course.states, self.ends)
        still = np.where(at_end, self.still_at_end, self.still)
        found = (course.run + STATES) / (still + STATES)
        leap = divided(course.leap, self.spread)
        np.maximum(found, _times(leap, self.leap), out=found)
        if self.movement is not None:
            missed = self.movement.missed(course.states, course.run)
            np.maximum(found, _times(missed, self.missed), out=found)
        return found


def _ends(episodes: Sequence[States]) -> States:
    """The least and the largest value (2, obs) of each column, where numbers are cut off.

    Two episodes have the very same, which numbers that are not cut off hardly do; else NaN.
    """
    least, largest = (np.array([f(one, axis=0) for one in episodes]) for f in (np.min, np.max))
    ends = np.stack([least.min(axis=0), largest.max(axis=0)])
    shared = np.stack([(least == ends[0]).sum(axis=0), (largest == ends[1]).sum(axis=0)]) > 1
    return np.where(shared, ends, np.nan)


def _at_end(states: States, ends: States) -> NDArray[np.bool_]:
    """Where columns (T, obs) are at an end of their scale."""
    return (states == ends[0]) | (states == ends[1])


def _times(sign: Rows, usual: Rows) -> Rows:
    """How often the usual size a sign in spreads (T, obs) is."""
    return np.where(sign > 0, (sign + SPREADS) / (usual + SPREADS), 0)


def fit_habits(episodes: Sequence[States]) -> Habits:
    """The habits of episodes, each the states (T, obs) of one, in order.

    Of every sign the usual size is the k-th largest of an episode's, k as large as it can be while
    at most a share of `BEYOND` of the episodes go beyond any.
    """
    states = np.concatenate(episodes)
    _, spread = medians_and_spreads(states)
    movement = fit_movement(states, [len(one) for one in episodes])
    course = courses(episodes[: within(episodes, ASKED)])
    leap = course.largest(divided(course.leap, spread))
    missed = np.zeros(leap.shape)
    if movement is not None:
        own = np.repeat(np.arange(len(course.starts) - 1), np.diff(course.starts))
        missed = course.largest(movement.missed(course.states, course.run, own))
    ends = _ends(episodes)
    at_end = _at_end(course.states, ends)
    signs = [course.longest(~at_end), course.longest(at_end), leap, missed]
    found = usual(np.concatenate(signs, axis=1), BEYOND)
    found = np.where(found >= FOREVER, np.inf, found)
    still, still_at_end, leap, missed = np.split(found, len(signs))
    still = np.where(still > 0, still, still_at_end)  # never seen elsewhere: nothing is known
    return Habits(spread, ends, still, still_at_end, leap, missed, movement)


def within(episodes: Sequence[Sized], states: int) -> int:
    """How many of the first episodes have no more than so many states together; two at least."""
    ends = np.cumsum([len(one) for one in episodes])
    return max(2, int((ends <= states).sum()))


def usual(signs: Rows, rate: float) -> Rows:
    """Sizes (m,) of signs (N, m) such that at most `rate` of N + 1 rows exceed any of them.

    The k-th largest of each: rows that show several signs cost no more than with one. Where N is
    too small for the rate, the largest.
    """
    count, ordered = len(signs), -np.sort(-signs, axis=0)

    def beyond(k: int) -> int:
        """How many rows are, if the k-th largest is the size; more, the larger k."""
        return int((signs > ordered[k - 1]).any(axis=1).sum())

    k = bisect_right(range(2, count + 1), rate * (count + 1) - 1, key=beyond)
    return ordered[k]
