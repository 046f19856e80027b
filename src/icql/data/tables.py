"""Logs as tables, one row per step: CSV and Parquet, no environment needed.

Rows may come in any order: they are sorted by episode and time. Episodes may have any length; one
that ends without a `terminal` or `truncated` mark was cut there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.blocks import BLOCK
from icql.data.columns import Chosen, Columns, choose, mapping_of, read_columns
from icql.data.csv_faults import Kind, first_fault, read_header
from icql.data.room import IN_MEMORY, Room
from icql.data.table_steps import Log, Piece, Table, steps_of
from icql.data.transitions import Floats, Steps
from icql.errors import UserError

BLOCK_BYTES = 2**19  # of CSV that a thread parses at a time: small enough for its cache
_META = b"icql"  # key of what a Parquet file of ours says about itself


def read_table(
    path: str | Path, columns: Columns | str | Path | None = None, room: Room = IN_MEMORY
) -> Log:
    """Read a `.csv` or `.parquet` log.

    Args:
        path: the file.
        columns: the mapping or its file; by default the one beside the log, else default names.
        room: where the steps are put.

    Returns:
        The steps sorted by episode and time. Where the mapping gives `action_bounds`, actions are
        mapped linearly from them to [-1, 1], and `warnings` says so; else they keep their units.

    Raises:
        UserError: naming file, row and column, if anything does not fit. Rows are counted from 0
            below the header.
    """
    path = Path(path)
    if columns is None:
        columns = mapping_of(path)
    elif not isinstance(columns, Columns):
        columns = read_columns(columns)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, columns, room)
    return _read_csv(path, columns, room)


def write_parquet(path: str | Path, steps: Steps, task: str | None = None) -> None:
    """Write steps as a Parquet log with the default column names, all or nothing.

    `steps.drop_last` has no column: see `icql.data.convert.without_last_rule`.
    """
    from icql.files import atomic

    pa, parquet = _arrow("pyarrow", path), _arrow("pyarrow.parquet", path)
    steps = steps.checked(str(path)).finite(str(path))
    ends = steps.terminals | steps.timeouts
    episode: NDArray[np.int64] = np.cumsum(ends) - ends
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    table: dict[str, NDArray[Any]] = {
        "episode": episode.astype(np.int32),
        "step": (np.arange(len(steps)) - starts[episode]).astype(np.int32),
        **_numbered("observation", steps.observations),
        **_numbered("action", steps.actions),
        "reward": steps.rewards,
        "terminal": steps.terminals,
        "truncated": steps.timeouts & ~steps.terminals,
        **_numbered("next_observation", steps.next_observations),
        **({} if steps.valid is None else {"valid": steps.valid}),
    }
    meta = {_META: json.dumps({"task": task})}
    with atomic(Path(path)) as temporary:
        parquet.write_table(pa.table(table).replace_schema_metadata(meta), temporary)


def _read_csv(path: Path, columns: Columns, room: Room) -> Log:
    pa = _arrow("pyarrow", path)
    header = read_header(path, columns.delimiter)
    chosen = choose(columns, header, str(path))
    rows = _csv_rows(path)
    room.check(rows * len(chosen.all) * 4, rows, str(path))
    try:
        table = _csv_table(path, columns.delimiter, chosen, room, newlines=False)
    except (pa.ArrowException, OSError, ValueError):
        # Slower, but cells in quotes may then hold new lines: the one fault that is none.
        table = _csv_table(path, columns.delimiter, chosen, room, newlines=True, named=True)
    if not table.rows:
        raise UserError("there are no steps in it (zero rows).", where=str(path))
    return steps_of(table, chosen, columns, str(path), room)


def _csv_table(
    path: Path, delimiter: str, chosen: Chosen, room: Room, *, newlines: bool, named: bool = False
) -> Table:
    """The chosen columns; if `named`, a fault is a `UserError`."""
    csv, pa = import_module("pyarrow.csv"), import_module("pyarrow")
    options: dict[str, Any] = {
        "read_options": csv.ReadOptions(block_size=BLOCK_BYTES),
        "parse_options": csv.ParseOptions(delimiter=delimiter, newlines_in_values=newlines),
    }
    types = dict.fromkeys(chosen.numbers, pa.float32())
    convert = csv.ConvertOptions(include_columns=chosen.all, column_types=types)
    try:
        # Types that are left open would be guessed anew per block: the first block decides.
        with csv.open_csv(path, convert_options=convert, **options) as first:
            types |= {field.name: _settled(field, chosen, pa) for field in first.schema}
        convert = csv.ConvertOptions(include_columns=chosen.all, column_types=types)
        if room.folder is not None:
            with csv.open_csv(path, convert_options=convert, **options) as batches:
                return _spooled(batches, room.folder)
        table = csv.read_csv(path, convert_options=convert, **options)
        return Table(table.num_rows, lambda: iter([(slice(0, table.num_rows), table.column)]))
    except (pa.ArrowException, OSError, ValueError) as error:
        if not named:
            raise
        kinds = {name: _kind(kind, pa) for name, kind in types.items()}
        raise first_fault(path, delimiter, kinds, error) from error


def _spooled(batches: Iterable[Any], folder: Path) -> Table:
    """The batches as a file in `folder` that is mapped, and read one batch at a time."""
    pa, ipc = import_module("pyarrow"), import_module("pyarrow.ipc")
    path, ends = folder / "table.arrow", [0]
    with ExitStack() as opened:
        file: Any = None
        for batch in batches:
            plain = pa.RecordBatch.from_arrays(
                [
                    column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                    for column in batch
                ],
                names=batch.schema.names,
            )
            file = file or opened.enter_context(ipc.new_file(path, plain.schema))
            file.write_batch(plain)
            ends.append(ends[-1] + plain.num_rows)
    if len(ends) == 1:
        return Table(0, lambda: iter(()))
    mapped = ipc.open_file(pa.memory_map(str(path)))

    def pieces() -> Iterator[Piece]:
        for number, (begin, end) in enumerate(pairwise(ends)):
            yield slice(begin, end), mapped.get_batch(number).column

    return Table(ends[-1], pieces)


def _csv_rows(path: Path) -> int:
    """About how many rows the file has, by the length of its first lines."""
    with path.open("rb") as file:
        head = file.read(2**20)
    return path.stat().st_size * max(head.count(b"\n"), 1) // len(head)


def _settled(field: Any, chosen: Chosen, pa: Any) -> Any:
    """The type to read a column as, given what its first block looks like."""
    if field.name in chosen.numbers:
        return pa.float32()
    if field.name in chosen.flags and not pa.types.is_boolean(field.type):
        return pa.float32()
    whole = pa.types.is_integer(field.type)
    if field.name == chosen.episode:
        return field.type if whole or pa.types.is_floating(field.type) else pa.string()
    # Later rows may have fractions; a float64 is exact up to 2^53.
    if pa.types.is_timestamp(field.type):
        return pa.timestamp("ns", field.type.tz)
    return pa.float64() if whole else field.type


def _kind(kind: Any, pa: Any) -> Kind:
    if pa.types.is_floating(kind):
        return "number"
    return "whole number" if pa.types.is_integer(kind) else "any"


def _read_parquet(path: Path, columns: Columns, room: Room) -> Log:
    parquet, pa = _arrow("pyarrow.parquet", path), _arrow("pyarrow", path)
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    with _damage(path, pa), parquet.ParquetFile(path, memory_map=True) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        chosen = choose(columns, schema.names, str(path))
        if not rows:
            raise UserError("there are no steps in it (zero rows).", where=str(path))
        room.check(rows * len(chosen.all) * 4, rows, str(path))
        if room.folder is None:
            # One column at a time: beside the arrays that stay, memory holds a single column.
            whole = (slice(0, rows), lambda name: file.read([name]).column(name))
            table = Table(rows, lambda: iter([whole]))
        else:
            names = list(chosen.all)
            batches = file.iter_batches(max(1, BLOCK // len(names)), columns=names)
            table = _spooled(batches, room.folder)
        log = steps_of(table, chosen, columns, str(path), room)
        return log if log.task else replace(log, task=_own_task(schema.metadata or {}, path))


def _own_task(metadata: dict[bytes, bytes], path: Path) -> str | None:
    try:
        own = json.loads(metadata.get(_META, b"{}").decode())
    except ValueError as error:
        raise UserError(f"its metadata is not JSON ({error}).", where=str(path)) from error
    task = own.get("task") if isinstance(own, dict) else None
    return task if isinstance(task, str) else None


@contextmanager
def _damage(path: Path, pa: Any) -> Iterator[None]:
    try:
        yield
    # What Arrow raises depends on where in the file the damage is.
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, MemoryError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"it cannot be read as Parquet ({text}).",
            where=str(path),
            fix="It may be truncated or damaged: write or fetch it again.",
        ) from error


def _numbered(name: str, matrix: Floats | None) -> dict[str, Floats]:
    return {} if matrix is None else {f"{name}_{i}": col for i, col in enumerate(matrix.T)}


def _arrow(module: str, path: str | Path) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            "PyArrow is needed for CSV and Parquet and is not installed.",
            where=str(path),
            fix="pip install 'icql[logs]'",
        ) from error
