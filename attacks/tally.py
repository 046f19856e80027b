"""What is counted, and the table of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FAULTS = ("silent", "traceback", "lost")
HEAD = ("kind", "attempts", "refused", "equal", "silent", "tracebacks", "lost")


@dataclass
class Tally:
    """One line: how often a kind of thing was attacked, and how that ended."""

    name: str
    attempts: int = 0
    refused: int = 0
    equal: int = 0
    faults: list[tuple[str, str]] = field(default_factory=list)  # silent, traceback or lost; what

    def fault(self, kind: str, what: str) -> None:
        """Count something that must not be."""
        self.faults.append((kind, what))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The columns of the table."""
        wrong = [sum(kind == name for kind, _ in self.faults) for name in FAULTS]
        return (self.attempts, self.refused, self.equal, *wrong)

    def as_json(self) -> dict[str, Any]:
        """The line for machines, with every fault in words."""
        line = dict(zip(HEAD, (self.name, *self.numbers), strict=True))
        return line | {"faults": [f"{kind}: {what}" for kind, what in self.faults]}


def table(tallies: Sequence[Tally]) -> str:
    """All lines and their sum, as Markdown."""
    sums = [sum(column) for column in zip(*(t.numbers for t in tallies), strict=True)]
    rows = [(t.name, *t.numbers) for t in tallies] + [("**all**", *sums)]
    lines = ["| " + " | ".join(HEAD) + " |", "|---|" + "---:|" * (len(HEAD) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])
