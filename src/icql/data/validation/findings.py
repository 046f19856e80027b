"""What validation says of a log, and what its rules look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from icql.data.arrays import Bools, Doubles, Rows, Test, blocks, moments, tally
from icql.data.faults import Fault, Severity
from icql.data.signals import Signals
from icql.data.tasks import Task
from icql.data.transitions import Source, Steps, Transitions
from icql.errors import UserError

ROUNDING = 1e-6  # of a column's largest number
Found = Iterator[tuple[Severity, str, int | None, str | None, str]]  # …, rule, row, column, message


@dataclass(frozen=True)
class Finding:
    """One defect: which rule, where, and what follows from it. Rows count from 0."""

    rule: str
    file: str
    row: int | None
    column: str | None
    message: str

    @classmethod
    def of(cls, fault: Fault) -> Finding:
        """What a reader found."""
        return cls(fault.rule, fault.file, fault.row, fault.column, fault.message)

    @property
    def place(self) -> tuple[str, ...]:
        """File, row and column, as far as they are known."""
        row = None if self.row is None else f"row {self.row}"
        return tuple(part for part in (self.file, row, self.column) if part is not None)


@dataclass(frozen=True)
class Findings:
    """What was found, and the transitions that the log gives: None where there are errors."""

    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    transitions: Transitions | None = None

    @property
    def ok(self) -> bool:
        """Whether the data can be trained on."""
        return not self.errors

    def usable(self, dataset: str) -> Transitions:
        """The transitions; where there are errors, the first one is raised as a `UserError`."""
        if self.transitions is not None:
            return self.transitions
        first, more = self.errors[0], len(self.errors) - 1
        others = f"{more} more finding(s): " if more else ""
        raise UserError(
            first.message,
            where=", ".join(first.place),
            fix=f"{others}'icql data validate {dataset}' tells more.",
        )

    def as_json(self) -> dict[str, Any]:
        """`ok`, `errors`, `warnings` and the number of `transitions` (None with errors)."""
        return {
            "ok": self.ok,
            "errors": [asdict(finding) for finding in self.errors],
            "warnings": [asdict(finding) for finding in self.warnings],
            "transitions": None if self.transitions is None else len(self.transitions),
        }


@dataclass(frozen=True)
class Examined:
    """Steps with what every rule needs to know about them."""

    steps: Steps
    task: Task | None
    ends: Bools  # (T,)
    good: Bools  # (T,) valid and finite
    starts: Rows  # (E,) first row of every episode, a last unfinished one included
    last: Rows  # (E,) last row of every episode
    scale: Doubles  # (obs,) standard deviation of the good rows; 1 where it is rounding
    signals: Signals = field(default_factory=Signals)  # what the columns are called
    mapping: str | None = None  # the file to paste settings of columns into, for tables
    source: str = ""  # file or id

    @classmethod
    def of(cls, source: Source) -> Examined:
        """Look once at everything."""
        steps = source.steps
        ends = steps.ends
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
        last = np.append(starts[1:] - 1, len(steps) - 1)
        named = source.info.signals, source.mapping, source.info.source
        return cls(steps, source.task, ends, good, starts, last, spread, *named)

    def name(self, array: str, column: int) -> str:
        """What a column of `observations` or `actions` is called, or its number."""
        names = {"observations": self.signals.observation, "actions": self.signals.action}
        known = names.get(array, ())
        return known[column] if known else f"{array}[{column}]"

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

    def acted(self, rows: slice) -> Bools:
        """Valid rows with a finite action, whatever their observation is."""
        finite: Bools = np.asarray(np.isfinite(self.steps.actions[rows]).all(axis=1))
        return finite if self.steps.valid is None else finite & self.steps.valid[rows]

    def scaled(self, rows: Rows) -> Doubles:
        """Observations of these rows in units of their standard deviation."""
        return self.steps.observations[rows].astype(np.float64) / self.scale


def counted(number: int, noun: str) -> str:
    """A number of things as people say it."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
