"""What is found wrong in a table, and how it is said: one fault per column and kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from icql.data.faults import Fault, Severity
from icql.data.formats.mapping import Columns
from icql.data.formats.tabular import LogTable
from icql.data.signals import Names


class Notes:
    """The faults of a table, as they are found."""

    def __init__(self, table: LogTable) -> None:
        self.table, self.faults = table, list[Fault]()

    def add(
        self,
        rule: str,
        row: int | None,
        column: str | None,
        what: Callable[[int], str],
        fix: str = "",
        severity: Severity = "error",
    ) -> None:
        """Note a fault; `row` counts in the table, and `what` is told its number in its file."""
        file, number = (str(self.table.path), 0) if row is None else self.table.locate(row)
        where = None if row is None else number
        self.faults.append(Fault(rule, file, where, column, what(number), fix, severity))


@dataclass(frozen=True)
class Part:
    """A column of the table as columns of an array of steps."""

    name: str
    at: slice
    levels: Names = ()  # of a category
    words: bool = False  # yes and no, in words

    @property
    def steps(self) -> bool:
        """Whether nothing lies between two of its values."""
        return self.words or bool(self.levels)


class Odd:
    """Cells of a column that cannot be used: how many, the first, and some of them."""

    def __init__(self) -> None:
        self.count, self.row, self.example, self.kind = 0, 0, "", "cell"
        self.cells: dict[str, None] = {}

    def add(self, row: int, count: int, cell: str, kind: str = "cell") -> None:
        """Count cells of which the first stands in `row`."""
        if not self.count or row < self.row:
            self.row, self.example, self.kind = row, cell[:60], kind
        self.count += count
        if len(self.cells) < 8:
            self.cells[cell[:60]] = None

    @property
    def more(self) -> str:
        """How many there are, where there are several."""
        return f" ({self.count:,} such rows)" if self.count > 1 else ""


def note_odd(notes: Notes, columns: Columns, part: Part, odd: Odd) -> None:
    """Note cells that mean nothing."""
    name = part.name
    if not odd.count:
        return
    if odd.kind == "type":
        notes.add(
            "wrong_type",
            None,
            name,
            lambda _: f"column {name!r} holds {odd.example}.",
            "Store one number per row and column.",
        )
    elif part.levels:
        others = ", ".join(repr(cell) for cell in odd.cells)
        notes.add(
            "levels",
            odd.row,
            name,
            lambda row: (
                f"column {name!r} is {odd.example!r} at row {row}, which is none of its "
                f"levels{odd.more}."
            ),
            f"Add to its levels in `categories`: {others}.",
        )
    elif 2 * odd.count > notes.table.rows:
        levels = name in columns.names("observation")
        notes.add(
            "wrong_type",
            odd.row,
            name,
            lambda _: (
                f"column {name!r} holds values of type string, not numbers, such as "
                f"{odd.example!r}."
            ),
            f'If these are levels, say so: categories = ["{name}"].' if levels else "",
        )
    else:
        notes.add(
            "flags",
            odd.row,
            name,
            lambda row: (
                f"column {name!r} is {odd.example!r} at row {row}, but yes or no is "
                f"needed{odd.more}."
            ),
            f'Other words are named so: flags = {{{name} = ["YES", "NO"]}}.',
        )


def note_outside(notes: Notes, name: str, odd: Odd, low: float, high: float) -> None:
    """Note actions outside their bounds."""
    if odd.count:
        notes.add(
            "outside_bounds",
            odd.row,
            name,
            lambda row: (
                f"column {name!r} is {odd.example} at row {row}, outside its bounds "
                f"[{low:g}, {high:g}]{odd.more}."
            ),
            "Widen `action_bounds`, or repair the row.",
        )


def note_mark(notes: Notes, name: str, odd: Odd) -> None:
    """Note numbers that are no flags."""
    notes.add(
        "flags",
        odd.row,
        name,
        lambda row: (
            f"`{name}` is {odd.example} at row {row}, but only 0 and 1 have a meaning{odd.more}."
        ),
        "Write 1 where the flag is set and 0 elsewhere.",
    )
