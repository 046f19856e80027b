"""What the rules of validation look at: steps, and what each rule needs to know about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icql.data.blocks import Rows, Test, blocks, moments, tally
from icql.data.tasks import Task
from icql.data.transitions import Bools, Steps

ROUNDING = 1e-6  # of a column's largest number


@dataclass(frozen=True)
class Log:
    """Steps with what every rule needs to know about them."""

    steps: Steps
    task: Task | None
    ends: Bools  # (T,)
    good: Bools  # (T,) valid and finite
    starts: Rows  # (E,) first row of every episode, a last unfinished one included
    last: Rows  # (E,) last row of every episode
    scale: NDArray[np.float64]  # (obs,) standard deviation of the good rows; 1 where it is rounding

    @classmethod
    def of(cls, steps: Steps, task: Task | None) -> Log:
        """Look once at everything."""
        ends = steps.terminals | steps.timeouts
        good = np.empty(len(steps), np.bool_)
        largest = np.ones(steps.observations.shape[1], np.float32)
        for block in blocks(*steps.observations.shape):
            part = steps.observations[block]
            fine = np.isfinite(part).all(1) & np.isfinite(steps.actions[block]).all(1)
            fine &= np.isfinite(steps.rewards[block])
            good[block] = fine if steps.valid is None else fine & steps.valid[block]
            largest = np.maximum(largest, np.abs(part[good[block]]).max(0, initial=1.0))
        spread = moments(steps.observations, good)[1]
        spread[spread <= ROUNDING * largest] = 1.0
        starts = np.flatnonzero(np.append(True, ends[:-1]))
        return cls(
            steps=steps,
            task=task,
            ends=ends,
            good=good,
            starts=starts,
            last=np.append(starts[1:] - 1, len(steps) - 1),
            scale=spread,
        )

    def pair(self, rows: slice, *, across: bool = False) -> Bools:
        """Good rows whose next row is good and belongs to the same episode (`across`: another).

        Neither is asked of the log's last row: `rows` lie before it.
        """
        after = slice(rows.start + 1, rows.stop + 1)
        ends = self.ends[rows] if across else ~self.ends[rows]
        return ends & self.good[rows] & self.good[after]

    def pairs(self, test: Test | None = None, *, across: bool = False) -> tuple[int | None, int]:
        """The first such row that passes the test too, and their number."""
        return tally(
            len(self.steps) - 1,
            lambda rows: self.pair(rows, across=across) & (True if test is None else test(rows)),
            width=self.steps.observations.shape[1] if test else 1,
        )
