"""The rows of a log in order of episode and time: sorted where they are not, and said so."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import Bools, Room, Rows, blocks, say_size
from icql.data.formats.cells import formats, moment
from icql.data.formats.mapping import Columns
from icql.data.formats.notes import Notes
from icql.data.formats.tabular import LogTable, distinct, is_text, plain

SORTING = 72  # bytes a row that it takes to sort a table
SHOWN = 3  # examples in a message


@dataclass(frozen=True)
class Order:
    """Which row of a table is which step of the log."""

    rows: int
    ends: Bools  # (T,) steps after which an episode ends, as far as the keys say
    order: Rows | None = None  # step → row; None: as they are
    place: Rows | None = None  # row → step
    time: NDArray[Any] | None = None  # (T,) of each row
    known: bool = True  # whether the keys could be read

    def step_of(self, rows: slice) -> slice | Rows:
        """Where these rows of the table go."""
        return rows if self.place is None else self.place[rows]

    def row_of(self, step: int) -> int:
        """The row of the table that is this step."""
        return step if self.order is None else int(self.order[step])

    def times(self, steps: Rows) -> NDArray[Any]:
        """When these steps were logged; without times, their numbers."""
        if self.time is None:
            return steps
        return np.asarray(self.time[steps if self.order is None else self.order[steps]])


def in_order(table: LogTable, columns: Columns, room: Room, notes: Notes) -> Order:
    """Read episodes and times and find the order; faults of them are noted."""
    before = len(notes.faults)
    episode = _key(table, "episode", columns.episode, columns, room, notes)
    time = _key(table, "time", columns.time, columns, room, notes)
    known = len(notes.faults) == before
    ends = np.zeros(table.rows, np.bool_)
    ends[-1] = True
    if columns.time is None:
        named = "an `episode`" if columns.episode else "neither `episode`"
        named += " but no `time`" if columns.episode else " nor `time`"
        notes.add(
            "order_unchecked",
            None,
            None,
            lambda _: (
                f"there is {named}: rows count in the order of the file, and nothing can tell "
                "whether that is the order in which they happened."
            ),
            'Name the column with the time or the step: time = "COLUMN".',
            "warning",
        )
        if columns.episode is None:  # nothing says that one file goes on with another
            ends[[first - 1 for _, first in table.files[1:]]] = True
    if (episode is None and time is None) or not known:
        return Order(table.rows, ends, known=known)
    ordered = True
    for rows in blocks(table.rows - 1):
        after = slice(rows.start + 1, rows.stop + 1)
        same = np.ones(1, np.bool_) if episode is None else episode[after] == episode[rows]
        later = np.zeros(1, np.bool_) if episode is None else episode[after] > episode[rows]
        grows = np.ones(1, np.bool_) if time is None else time[after] > time[rows]
        ordered = ordered and bool((later | (same & grows)).all())
        ends[rows] = ~same
    if ordered:
        return Order(table.rows, ends, time=time)
    return _sorted(table, columns, room, notes, (episode, time), ends)


def _sorted(
    table: LogTable,
    columns: Columns,
    room: Room,
    notes: Notes,
    keys: tuple[NDArray[Any] | None, NDArray[Any] | None],
    ends: Bools,
) -> Order:
    episode, time = keys
    if room.folder is not None and table.rows * SORTING > room.budget:
        raise table.error(
            f"its rows are not in order, and to sort them takes "
            f"{say_size(table.rows * SORTING)} of memory, over the budget.",
            "Sort it by episode and time first, or allow more with --memory.",
        )
    _note_swapped(columns, notes, episode, time)
    present = [np.asarray(key) for key in (time, episode) if key is not None]
    order = np.lexsort(present)
    equal = [key[order[1:]] == key[order[:-1]] for key in present]
    twice = np.logical_and.reduce(equal)
    if time is not None and twice.any():
        at = int(twice.argmax())
        first, second = sorted((int(order[at]), int(order[at + 1])))
        (one, row), (other, second_row) = table.locate(first), table.locate(second)
        rows = f"rows {row} and {second_row}" if one == other else f"row {row} and {other}, row"
        rows += "" if one == other else f" {second_row},"
        names = f"{columns.time!r}" + (f" and {columns.episode!r}" if columns.episode else "")
        more = f" ({twice.sum():,} such pairs)" if twice.sum() > 1 else ""
        notes.add(
            "same_step",
            first,
            columns.time,
            lambda _: f"{rows} are the same step: they agree in {names}{more}.",
            "Leave one of them out, or number the episodes and steps anew.",
        )
    ends[:-1] = ~equal[-1] if episode is not None else False
    place = np.empty(table.rows, np.int64)
    place[order] = np.arange(table.rows)
    return Order(table.rows, ends, order, place, time)


def _note_swapped(
    columns: Columns, notes: Notes, episode: NDArray[Any] | None, time: NDArray[Any] | None
) -> None:
    """Say which rows stand before an earlier one of their episode, as their file has them."""
    if time is None:
        return
    rows = np.arange(len(time)) if episode is None else np.argsort(episode, kind="stable")
    back = time[rows[1:]] < time[rows[:-1]]
    if episode is not None:
        back &= episode[rows[1:]] == episode[rows[:-1]]
    late = rows[1:][back]
    if not late.size:
        return
    shown = ", ".join(str(notes.table.locate(int(row))[1]) for row in late[:SHOWN])
    more = " …" if late.size > SHOWN else ""
    count = "1 row stands" if late.size == 1 else f"{late.size:,} rows stand"
    notes.add(
        "swapped_rows",
        int(late[0]),
        columns.time,
        lambda _: (
            f"{count} after a later one of the same episode (row{'s' * (late.size > 1)} {shown}"
            f"{more}): the rows were sorted by {columns.time!r}."
        ),
        "Check that the clock is right and that no two sources are mixed.",
        "warning",
    )


def _key(
    table: LogTable,
    key: Literal["episode", "time"],
    name: str | None,
    columns: Columns,
    room: Room,
    notes: Notes,
) -> NDArray[Any] | None:
    """A column that rows are ordered by: numbers and points in time as they are, names of episodes
    as their ranks. None: there is none, or it has faults, which are noted.
    """
    if name is None:
        return None
    pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
    filled: NDArray[Any] | None = None
    seen: dict[Any, int] = {}  # value → number in order of appearance
    clock = _Clock(name, columns, notes)
    gaps, first_gap = 0, 0
    kind: Any = None
    for rows, column in table:
        values = column(name)
        kind = values.type
        if key == "time" and is_text(kind):
            values = clock.read(values, rows.start)
            if values is None:
                return None
        if pa.types.is_temporal(values.type):
            values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
        empty = plain(compute.is_null(values, nan_is_null=True))
        if is_text(values.type):
            empty |= plain(compute.equal(values, "").fill_null(True))
        if empty.any():
            first_gap = first_gap if gaps else rows.start + int(empty.argmax())
            gaps += int(empty.sum())
            continue
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            numbers = plain(values)
        elif key == "time" or pa.types.is_nested(kind):
            wanted = "numbers or points in time" if key == "time" else "one value per row"
            what = (
                f"column {name!r} holds values of type {kind}, but to order by it {wanted} "
                "are needed."
            )
            notes.add("wrong_type", None, name, lambda _, what=what: what)  # type: ignore[misc]
            return None
        else:
            found, at = distinct(values)
            numbers = np.asarray([seen.setdefault(v, len(seen)) for v in found], np.int64)[at]
        if filled is None:
            filled = room.empty(key, (table.rows,), numbers.dtype)
        filled[rows] = numbers
    if gaps:
        more = f" ({gaps:,} such rows)" if gaps > 1 else ""
        notes.add(
            "gaps", first_gap, name, lambda row: f"column {name!r} is empty at row {row}{more}."
        )
        return None
    assert filled is not None
    if seen:
        ranks = np.empty(len(seen), np.int64)
        order = compute.array_sort_indices(pa.array(list(seen), kind)).to_numpy()
        ranks[order] = np.arange(len(ranks))
        for rows in blocks(table.rows):
            filled[rows] = ranks[filled[rows]]
    return filled


class _Clock:
    """Reads times that are text: ISO 8601, all with a zone or all without, or a stated format."""

    def __init__(self, name: str, columns: Columns, notes: Notes) -> None:
        self.name, self.format, self.notes = name, columns.time_format, notes
        self.zone: str | None = None
        self.begun = False

    def read(self, values: Any, start: int) -> Any | None:
        """Points in time; None: a fault was noted."""
        pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        values = compute.if_else(compute.equal(values, ""), None, values)
        if self.format is not None:
            read = compute.strptime(values, format=self.format, unit="us", error_is_null=True)
            odd = plain(compute.and_(compute.is_null(read), compute.is_valid(values)))
            if odd.any():
                at = int(odd.argmax())
                cell = values[at].as_py()
                self._note(start + at, f"is {cell!r}", f"which is not {self.format!r}", "")
                return None
            return read
        for zone in (self.zone,) if self.begun else (None, "UTC"):
            try:
                read = values.cast(pa.timestamp("ns", zone))
            except pa.ArrowInvalid:
                continue
            self.zone, self.begun = zone, True
            return read
        self._why(values, start)
        return None

    def _why(self, values: Any, start: int) -> None:
        """Note what is wrong with times that cannot be read."""
        cells = values.to_pylist()
        kinds = [None if cell is None else moment(cell) for cell in cells]
        before = {None: "naive", "UTC": "zoned"}[self.zone] if self.begun else None
        both = {kind for kind in kinds if kind} | ({before} if before else set())
        if len(both) == 2:
            last = next(kind for kind in reversed(kinds) if kind)
            first = before or next(kind for kind in kinds if kind)
            at = next(i for i, kind in enumerate(kinds) if kind and kind != first)
            how = {"naive": "without", "zoned": "with"}
            told = f"{how[kinds[at] or last]} a zone, others {how[first]} one"
            self._note(start + at, f"is {cells[at]!r}", told, "Write all of them with their zone.")
            return
        at = next((i for i, kind in enumerate(kinds) if kind is None and cells[i]), 0)
        fits = formats(cell for cell in cells if cell)
        fix = f"Say how they are written: time_format = {' or '.join(map(repr, fits))}."
        told = "but to order by it numbers or points in time are needed"
        said = f"holds values of type {values.type} such as {cells[at]!r}"
        self._note(start + at, said, told, fix.replace("'", '"') if fits else "")

    def _note(self, row: int, said: str, told: str, fix: str) -> None:
        what = f"column {self.name!r} {said}"
        place = "" if "type" in said else " at row {row}"
        self.notes.add(
            "times",
            row,
            self.name,
            lambda number: f"{what}{place.format(row=number)}, {told}.",
            fix,
        )
