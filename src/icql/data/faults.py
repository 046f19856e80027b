"""What a reader found in a log: all of it, each with its place, to be reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from icql.errors import UserError

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Fault:
    """One kind of fault of one column: its first row, and what to do. Rows count from 0."""

    rule: str
    file: str
    row: int | None
    column: str | None
    what: str
    fix: str = ""
    severity: Severity = "error"

    @property
    def message(self) -> str:
        """What is wrong and what to do about it."""
        return f"{self.what} {self.fix}".rstrip()


class LogError(UserError):
    """A log that cannot be used: the first fault as the message, and all of them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        first, more = faults[0], len(faults) - 1
        others = f"{more} more fault{'s' if more > 1 else ''}: 'icql data validate' lists them all."
        fix = f"{first.fix} {others}".strip() if more else first.fix
        super().__init__(first.what, where=first.file, fix=fix)
        self.faults = tuple(faults)


def refuse(faults: Sequence[Fault]) -> None:
    """Raise what is an error among these."""
    errors = [fault for fault in faults if fault.severity == "error"]
    if errors:
        raise LogError(errors)
