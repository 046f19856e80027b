"""What validation says of a log."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from icql.data.transitions import Transitions
from icql.errors import UserError


@dataclass(frozen=True)
class Finding:
    """One defect: which rule, where, and what follows from it. Rows count from 0."""

    rule: str
    file: str
    row: int | None
    column: str | None
    message: str


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

    def stop(self, dataset: str) -> None:
        """Raise the first error as a `UserError`, if there is one."""
        if self.ok:
            return
        first, more = self.errors[0], len(self.errors) - 1
        places = (first.file, first.row, first.column)
        where = [f"{n}{p}" for n, p in zip(("", "row ", ""), places, strict=True) if p is not None]
        others = f"{more} more finding(s): " if more else ""
        raise UserError(
            first.message,
            where=", ".join(where),
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
