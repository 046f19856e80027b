"""Gaps of a column, filled by a stated rule: held, interpolated, or their rows left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import Bools, Floats, Rows
from icql.data.formats.mapping import HOLD, INTERPOLATE

PER_GAP = 80  # bytes that it takes to fill one

Times = Callable[[Rows], NDArray[Any]]  # rows → when they were logged


@dataclass(frozen=True)
class Filled:
    """What became of the gaps of a column."""

    filled: int
    left_out: Rows  # rows with nothing to fill them with
    longest: int  # gaps in a row


def fill(
    column: Floats, gaps: Rows, ends: Bools, rule: str, times: Times, *, steps: bool
) -> Filled:
    """Fill the `gaps` (rows, ascending) of the numbers (T, columns) in place, within episodes.

    `hold` repeats the last value before; `interpolate` goes straight, by time, to the next one, and
    at the end of an episode holds. With `steps` (flags, categories) nothing lies between two
    values: they are held. Gaps at the beginning of an episode have nothing before them: their rows
    are left out.
    """
    if not gaps.size:
        return Filled(0, gaps, 0)
    begins = np.append(True, (np.diff(gaps) > 1) | ends[gaps[:-1]])
    run = np.cumsum(begins) - 1
    first = gaps[begins]
    last = gaps[np.append(begins[1:], True)]
    longest = int((last - first).max()) + 1
    before, after = first - 1, last + 1
    known = before >= 0
    known[known] = ~ends[before[known]]
    followed = after < len(column)
    followed &= ~ends[last]
    usable = known[run]
    rows, group = gaps[usable], run[usable]
    start = column[before[group]]
    if rule == HOLD or steps:
        column[rows] = start
    elif rule == INTERPOLATE:
        onward = followed[group]
        goal = np.where(onward, after[group], before[group])
        stop, begin = column[goal], times(before[group])
        passed, span = (x.astype(np.float64) for x in (times(rows) - begin, times(goal) - begin))
        share = np.divide(passed, span, out=np.zeros_like(passed), where=span > 0)
        column[rows] = start + share[:, None] * (stop.astype(np.float64) - start)
    return Filled(len(rows), gaps[~usable], longest)
