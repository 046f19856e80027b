"""CSV logs: read fast by PyArrow; where it fails, a slow second look finds every fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from icql.data.arrays import Room
from icql.data.faults import Fault, LogError
from icql.data.formats.assemble import assemble
from icql.data.formats.cells import are_flags, empty, flag, moment, number
from icql.data.formats.dialect import (
    Dialect,
    decimal_of,
    header_of,
    rows_of,
    separator_of,
    unreadable,
)
from icql.data.formats.mapping import (
    FLAGS,
    KEYS,
    VECTORS,
    Columns,
    Given,
    choose,
    columns_of,
    files_of,
    paste_into,
    same_columns,
)
from icql.data.formats.tabular import LogTable, arrow, is_text
from icql.data.tasks import Task
from icql.data.transitions import Source
from icql.errors import UserError

BLOCK_BYTES = 2**19  # that a thread parses at a time: small enough for its cache
SET_ASIDE = 200  # different cells at most that are read as gaps because they are no numbers

Types = dict[str, Any]  # column → type that it is read as


def read_csv(path: Path, task: Task | None, room: Room, columns: Given) -> Source:
    """Read a CSV log; `columns` is its mapping or the file that holds it.

    The name of `path` may be a pattern that stands for several files. Rows are counted from 0 below
    the header.
    """
    mapping, pa = columns_of(path, columns), arrow("pyarrow", path)
    log = _Log.of(path, mapping)
    rows = sum(map(_rows_about, log.files))
    room.check(rows * len(log.columns.names(*KEYS)) * 4, rows, str(path))
    try:
        table = log.table(room)
    except (pa.ArrowException, OSError, ValueError):
        # Slower, but cells in quotes may then hold new lines: the one fault that is none.
        log = replace(log, newlines=True)
        try:
            table = log.table(room)
        except (pa.ArrowException, OSError, ValueError) as error:
            return _faulty(log, task, room, error)
    return assemble(table, log.columns, task, room)


@dataclass(frozen=True)
class _Log:
    """Files with the same columns, and how to read them."""

    path: Path
    files: tuple[Path, ...]
    dialects: tuple[Dialect, ...]
    columns: Columns
    newlines: bool = False  # whether cells in quotes may hold them
    gaps: frozenset[str] = frozenset()  # cells that stand for nothing, besides the usual
    types: Types = field(default_factory=dict)  # filled when the first block has been seen

    @classmethod
    def of(cls, path: Path, mapping: Columns) -> _Log:
        """Find the files, how they are written, and what their columns are."""
        files = files_of(path, mapping)
        signs = [separator_of(file, mapping) for file in files]
        headers = [header_of(file, sign) for file, sign in zip(files, signs, strict=True)]
        same_columns(files, headers)
        chosen = choose(mapping, headers[0], str(path))
        both = zip(files, signs, strict=True)
        dialects = [Dialect(sign, decimal_of(file, sign, chosen)) for file, sign in both]
        return cls(path, tuple(files), tuple(dialects), chosen, gaps=frozenset(chosen.missing))

    def table(self, room: Room) -> LogTable:
        """The chosen columns; PyArrow's errors pass."""
        reader = arrow("pyarrow.csv", self.path)
        self._settle(reader)
        if room.folder is not None:
            batches = ((file, self._batches(reader, i)) for i, file in enumerate(self.files))
            return LogTable.spooled(self.path, batches, room.folder)
        tables = [
            reader.read_csv(file, **self._options(reader, i)) for i, file in enumerate(self.files)
        ]
        starts = [0]
        for one in tables:
            starts.append(starts[-1] + one.num_rows)
        whole = arrow("pyarrow", self.path).concat_tables(tables)
        files = tuple(zip(self.files, starts, strict=False))
        return LogTable.whole(self.path, files, whole.num_rows, whole.column)

    def _batches(self, reader: Any, number: int) -> Iterator[Any]:
        with reader.open_csv(self.files[number], **self._options(reader, number)) as batches:
            yield from batches

    def _options(self, reader: Any, number: int) -> dict[str, Any]:
        dialect = self.dialects[number]
        convert = reader.ConvertOptions(
            include_columns=self.columns.names(*KEYS),
            column_types=self.types,
            decimal_point=dialect.decimal,
        )
        convert.null_values = [*convert.null_values, *sorted(self.gaps)]
        return {
            "read_options": reader.ReadOptions(block_size=BLOCK_BYTES),
            "parse_options": reader.ParseOptions(
                delimiter=dialect.separator, newlines_in_values=self.newlines
            ),
            "convert_options": convert,
        }

    def _settle(self, reader: Any) -> None:
        """Types that are left open would be guessed anew per block: the first block decides."""
        pa = arrow("pyarrow", self.path)
        if not self.types:
            columns = self.columns
            text = {*columns.categories, *columns.flags}
            alike = zip(
                columns.names("next_observation"), columns.names("observation"), strict=False
            )
            text |= {name for name, like in alike if like in columns.categories}
            self.types.update(dict.fromkeys(text, pa.string()))
            if columns.time is not None and columns.time_format is not None:
                self.types[columns.time] = pa.string()
            with reader.open_csv(self.files[0], **self._options(reader, 0)) as first:
                seen = first.schema
                batch = next(iter(first), None)
            for i, entry in enumerate(seen):
                if entry.name not in self.types:
                    values = batch.column(i) if batch is not None else None
                    self.types[entry.name] = _settled(entry, values, columns, pa)


def _settled(entry: Any, values: Any, columns: Columns, pa: Any) -> Any:
    """The type to read a column as, given what its first block looks like."""
    marks = entry.name in columns.names(*FLAGS)
    if marks or entry.name in columns.names(*VECTORS, "reward"):
        if pa.types.is_boolean(entry.type):
            return entry.type
        words = is_text(entry.type) and entry.name != columns.reward
        return pa.string() if words and _words(values) else pa.float32()
    whole = pa.types.is_integer(entry.type)
    if entry.name == columns.episode:
        return entry.type if whole or pa.types.is_floating(entry.type) else pa.string()
    # Later rows may have fractions; a float64 is exact up to 2^53.
    if pa.types.is_timestamp(entry.type):
        return pa.timestamp("ns", entry.type.tz)
    return pa.float64() if whole or pa.types.is_null(entry.type) else entry.type


def _words(values: Any) -> bool:
    """Whether most cells of a column say yes or no in words; the others are faults."""
    counts = [(one["values"], one["counts"]) for one in values.value_counts().to_pylist()]
    said = sum(n for cell, n in counts if flag(cell) is not None and number(cell) is None)
    return 2 * said > sum(n for cell, n in counts if not empty(cell))


def _rows_about(path: Path) -> int:
    """About how many rows the file has, by the length of its first lines."""
    with path.open("rb") as file:
        head = file.read(2**20)
    return path.stat().st_size * max(head.count(b"\n"), 1) // max(len(head), 1)


# --- The second look ----------------------------------------------------------------------------


@dataclass
class _Odd:
    """Cells of a column that are not what the column holds."""

    row: int
    line: int
    cell: str
    count: int = 0
    cells: set[str] = field(default_factory=set)


def _faulty(log: _Log, task: Task | None, room: Room, reason: BaseException) -> Source:
    """A log that PyArrow could not read: all that is wrong with it.

    Where only cells are wrong, they are read as gaps, so that the rest can be looked at as well.
    """
    faults, cells, blank = list[Fault](), set[str](), set[str]()
    broken: dict[str, int] = {}
    for file, dialect in zip(log.files, log.dialects, strict=True):
        found, odd = _second_look(log, file, dialect, blank)
        faults += found
        for name, one in odd.items():
            cells |= one.cells
            broken[name] = broken.get(name, 0) + one.count
    pa = arrow("pyarrow", log.path)
    log = replace(log, gaps=log.gaps | blank)
    if not faults and blank:  # gaps that PyArrow does not know, such as a space
        try:
            return assemble(log.table(room), log.columns, task, room)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(log.path, error) from error
    if not faults:
        raise unreadable(log.path, reason) from reason
    ragged = any(fault.rule in ("ragged", "empty") for fault in faults)
    ambiguous = any(number(cell, sign) is not None for cell in cells for sign in ".,")
    if ragged or len(cells) > SET_ASIDE or ambiguous:
        raise LogError(faults) from reason
    try:
        table = replace(log, gaps=log.gaps | cells).table(room)
        source = assemble(table, log.columns, task, room, broken)
    except (pa.ArrowException, OSError, ValueError, UserError):
        raise LogError(faults) from reason
    others = [f for f in source.faults if not (f.column in broken and f.severity == "error")]
    return replace(source, faults=(*faults, *others))


def _second_look(
    log: _Log, path: Path, dialect: Dialect, blank: set[str]
) -> tuple[list[Fault], dict[str, _Odd]]:
    """Every kind of fault of every column of a file, and the odd cells by column.

    How gaps are written goes into `blank`.
    """
    pa, columns = arrow("pyarrow", path), log.columns
    # where the first block could not be read, numbers are what most columns hold
    wanted = {name: _wanted(kind, pa) for name, kind in log.types.items()}
    if not wanted:
        wanted |= dict.fromkeys(columns.names(*VECTORS, "reward"), "number")
    rows = rows_of(path, dialect.separator)
    _, header = next(rows)
    faults, odd = list[Fault](), dict[str, _Odd]()
    tallies = dict.fromkeys(header, 0)
    ragged: list[tuple[int, int, int]] = []  # row, line, cells
    row = -1
    for row, (line, cells) in enumerate(rows):
        if len(cells) != len(header):
            ragged.append((row, line, len(cells)))
            continue
        for name, cell in zip(header, cells, strict=True):
            kind = wanted.get(name)
            if kind is None:
                continue
            if empty(cell, columns.missing):
                blank.add(cell)
                continue
            tallies[name] += 1
            if not _is(cell, kind, dialect.decimal):
                one = odd.setdefault(name, _Odd(row, line, cell[:40]))
                one.count += 1
                if len(one.cells) <= SET_ASIDE:
                    one.cells.add(cell)
    if row < 0:
        faults.append(_fault("empty", path, None, None, "there are no steps in it (zero rows)."))
    if ragged:
        row, line, count = ragged[0]
        more = f" ({len(ragged):,} rows have another number of cells)" if len(ragged) > 1 else ""
        what = (
            f"row {row} (line {line}) has {count} cells, but there are {len(header)} columns{more}."
        )
        fix = "Every row needs one cell per column; cells with a separator need quotes."
        faults.append(_fault("ragged", path, row, None, what, fix))
    if not log.types:
        words = {name for name, one in odd.items() if are_flags(one.cells)}
        odd = {name: one for name, one in odd.items() if name not in words | {*columns.categories}}
    for name, one in odd.items():
        kind = wanted[name] or ""
        faults.append(_odd_cells(log, path, dialect, name, kind, one, tallies[name]))
    return faults, odd


def _odd_cells(
    log: _Log, path: Path, dialect: Dialect, name: str, kind: str, odd: _Odd, cells: int
) -> Fault:
    """The fault that these cells are."""
    columns, paste = log.columns, paste_into(log.path, log.columns)
    place = f"at row {odd.row} (line {odd.line})"
    more = f" ({odd.count:,} of {cells:,} cells)" if odd.count > 1 else ""
    what = f"column {name!r} is {odd.cell!r} {place}, but a {kind} is needed{more}."
    fix, rule = "", "wrong_cells"
    if kind in ("naive", "zoned"):
        one = moment(odd.cell)
        said = {"naive": "without a zone", "zoned": "with one"}
        what = (
            f"column {name!r} is {odd.cell!r} {place}, {said[one]}, others {said[kind]}{more}."
            if one
            else f"column {name!r} is {odd.cell!r} {place}, but a point in time is needed{more}."
        )
        fix, rule = "Write all times with their zone, or all without." if one else "", "times"
    elif "number" in kind and name in columns.names("observation") and 2 * odd.count > cells:
        what = f"column {name!r} holds text such as {odd.cell!r} {place}, not numbers{more}."
        fix = f'If these are levels, say so in {paste}: categories = ["{name}"].'
    elif any(number(odd.cell, sign) is not None for sign in ".,"):
        other = "," if dialect.decimal == "." else "."
        if number(odd.cell, other) is not None:
            fix = f'Is the decimal sign another one? Say so in {paste}: decimal = "{other}".'
    elif "number" in kind and not any(empty(cell) for cell in odd.cells) and len(odd.cells) <= 3:
        listed = ", ".join(f'"{cell}"' for cell in sorted(odd.cells) if cell.isprintable())
        fix = f"If such cells are gaps, say so in {paste}: missing = [{listed}]." if listed else ""
    return _fault(rule, path, odd.row, name, what, fix)


def _fault(
    rule: str, path: Path, row: int | None, column: str | None, what: str, fix: str = ""
) -> Fault:
    return Fault(rule, str(path), row, column, what, fix)


def _wanted(kind: Any, pa: Any) -> str | None:
    """What the cells of a column of this type must be; None: anything."""
    if pa.types.is_floating(kind):
        return "number"
    if pa.types.is_integer(kind):
        return "whole number"
    if pa.types.is_boolean(kind):
        return "yes or no"
    if pa.types.is_timestamp(kind):
        return "naive" if kind.tz is None else "zoned"
    if pa.types.is_date(kind):
        return "naive"
    return None


def _is(cell: str, kind: str, decimal: str) -> bool:
    if kind == "number":
        return number(cell, decimal) is not None
    if kind == "whole number":
        return cell.strip().lstrip("+-").isdecimal()
    if kind in ("naive", "zoned"):
        return moment(cell) == kind
    return are_flags([cell])
