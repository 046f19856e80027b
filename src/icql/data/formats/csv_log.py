"""CSV logs: read fast by PyArrow; where it fails, a slow second look finds row and column."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from icql.data.arrays import Room
from icql.data.formats.mapping import FLAGS, KEYS, VECTORS, Columns, Given, choose, columns_of
from icql.data.formats.tabular import LogTable, arrow
from icql.data.tasks import Task
from icql.data.transitions import Source
from icql.errors import UserError

BLOCK_BYTES = 2**19  # that a thread parses at a time: small enough for its cache


def read_csv(path: Path, task: Task | None, room: Room, columns: Given) -> Source:
    """Read a CSV log; `columns` is its mapping or the file that holds it.

    Rows are counted from 0 below the header.
    """
    mapping, pa = columns_of(path, columns), arrow("pyarrow", path)
    chosen = choose(mapping, _header(path, mapping.delimiter), str(path))
    rows = _rows_about(path)
    room.check(rows * len(chosen.names(*KEYS)) * 4, rows, str(path))
    try:
        table = _table(path, chosen, room, newlines=False)
    except (pa.ArrowException, OSError, ValueError):
        # Slower, but cells in quotes may then hold new lines: the one fault that is none.
        table = _table(path, chosen, room, newlines=True)
    return table.source(chosen, task, room)


def _table(path: Path, columns: Columns, room: Room, *, newlines: bool) -> LogTable:
    """The chosen columns; with `newlines` in cells allowed, a fault is a `UserError`."""
    pa, reader = arrow("pyarrow", path), arrow("pyarrow.csv", path)
    delimiter, names = columns.delimiter, columns.names(*KEYS)
    options: dict[str, Any] = {
        "read_options": reader.ReadOptions(block_size=BLOCK_BYTES),
        "parse_options": reader.ParseOptions(delimiter=delimiter, newlines_in_values=newlines),
    }
    types = dict.fromkeys(columns.names(*VECTORS, "reward"), pa.float32())
    convert = reader.ConvertOptions(include_columns=names, column_types=types)
    try:
        # Types that are left open would be guessed anew per block: the first block decides.
        with reader.open_csv(path, convert_options=convert, **options) as first:
            types |= {field.name: _settled(field, columns, pa) for field in first.schema}
        convert = reader.ConvertOptions(include_columns=names, column_types=types)
        if room.folder is not None:
            with reader.open_csv(path, convert_options=convert, **options) as batches:
                return LogTable.spooled(path, batches, room.folder)
        table = reader.read_csv(path, convert_options=convert, **options)
        return LogTable.whole(path, table.num_rows, table.column)
    except (pa.ArrowException, OSError, ValueError) as error:
        if not newlines:
            raise
        numbers = {name for name, kind in types.items() if pa.types.is_floating(kind)}
        whole = {name for name, kind in types.items() if pa.types.is_integer(kind)}
        fault = _first_fault(path, delimiter, numbers, whole)
        raise fault or _unreadable(path, error) from error


def _settled(field: Any, columns: Columns, pa: Any) -> Any:
    """The type to read a column as, given what its first block looks like."""
    boolean = pa.types.is_boolean(field.type)
    if field.name in columns.names(*VECTORS, "reward", *(() if boolean else FLAGS)):
        return pa.float32()
    whole = pa.types.is_integer(field.type)
    if field.name == columns.episode:
        return field.type if whole or pa.types.is_floating(field.type) else pa.string()
    # Later rows may have fractions; a float64 is exact up to 2^53.
    if pa.types.is_timestamp(field.type):
        return pa.timestamp("ns", field.type.tz)
    return pa.float64() if whole else field.type


def _rows_about(path: Path) -> int:
    """About how many rows the file has, by the length of its first lines."""
    with path.open("rb") as file:
        head = file.read(2**20)
    return path.stat().st_size * max(head.count(b"\n"), 1) // len(head)


def _header(path: Path, delimiter: str) -> list[str]:
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    for _, cells in _rows(path, delimiter):
        return cells
    raise UserError("it is empty.", where=str(path))


def _first_fault(
    path: Path, delimiter: str, numbers: set[str], whole: set[str]
) -> UserError | None:
    """The first thing in the file that does not fit, with its row and its line; None: nothing.

    `numbers` and `whole` are the columns that must hold numbers and whole numbers.
    """
    rows = _rows(path, delimiter)
    _, header = next(rows)
    row = -1
    for row, (line, cells) in enumerate(rows):
        if len(cells) != len(header):
            return UserError(
                f"row {row} (line {line}) has {len(cells)} cells, but there are "
                f"{len(header)} columns.",
                where=str(path),
                fix="Every row needs one cell per column; cells with a delimiter need quotes.",
            )
        for name, cell in zip(header, cells, strict=True):
            try:
                int(cell) if name in whole else float(cell) if name in numbers else None
            except ValueError:
                return UserError(
                    f"column {name!r} is {cell[:40]!r} at row {row} (line {line}), "
                    f"but a {'whole ' if name in whole else ''}number is needed.",
                    where=str(path),
                )
    if row < 0:
        return UserError("there are no steps in it (zero rows).", where=str(path))
    return None


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except UnicodeDecodeError as error:
        raise UserError(
            f"it is not text in UTF-8 (byte {error.object[error.start]:#04x}).",
            where=str(path),
            fix="Save it as CSV in UTF-8.",
        ) from error
    except (csv.Error, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, reason: BaseException) -> UserError:
    text = (str(reason).splitlines() or [""])[0][:200]
    return UserError(f"it cannot be read as CSV ({text}).", where=str(path))
