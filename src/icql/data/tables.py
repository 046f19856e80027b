"""Logs as tables, one row per step: CSV and Parquet, no environment needed.

Rows may come in any order: they are sorted by episode and time. Episodes may have any length; one
that ends without a `terminal` or `truncated` mark was cut there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data import checks
from icql.data.columns import Chosen, Columns, choose, mapping_of, read_columns
from icql.data.csv_faults import Kind, first_fault, read_header
from icql.data.transitions import Bools, Floats, Steps
from icql.errors import UserError

BLOCK_BYTES = 2**19  # of CSV that a thread parses at a time: small enough for its cache
BOUND_SLACK = 1e-5  # of the range: rounding may put an action a little outside its bounds
_META = b"icql"  # key of what a Parquet file of ours says about itself

Column = Callable[[str], Any]  # name → pyarrow.ChunkedArray


@dataclass(frozen=True)
class Log:
    """What was read from a table."""

    steps: Steps
    task: str | None = None  # name in the task table, where the mapping or the file says it
    warnings: tuple[str, ...] = ()


def read_table(path: str | Path, columns: Columns | str | Path | None = None) -> Log:
    """Read a `.csv` or `.parquet` log.

    Args:
        path: the file.
        columns: the mapping or its file; by default the one beside the log, else default names.

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
        return _read_parquet(path, columns)
    return _read_csv(path, columns)


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


def _read_csv(path: Path, columns: Columns) -> Log:
    pa = _arrow("pyarrow", path)
    header = read_header(path, columns.delimiter)
    chosen = choose(columns, header, str(path))
    checks.check_size(_csv_rows(path) * len(chosen.all) * 4, str(path))
    try:
        table = _csv_table(path, columns.delimiter, chosen, newlines=False)
    except (pa.ArrowException, OSError, ValueError):
        # Slower, but cells in quotes may then hold new lines: the one fault that is none.
        table = _csv_table(path, columns.delimiter, chosen, newlines=True, named=True)
    if not table.num_rows:
        raise UserError("there are no steps in it (zero rows).", where=str(path))
    return _log(table.column, table.num_rows, chosen, columns, str(path))


def _csv_table(
    path: Path, delimiter: str, chosen: Chosen, *, newlines: bool, named: bool = False
) -> Any:
    """The chosen columns as a `pyarrow.Table`; if `named`, a fault is a `UserError`."""
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
        return csv.read_csv(path, convert_options=convert, **options)
    except (pa.ArrowException, OSError, ValueError) as error:
        if not named:
            raise
        kinds = {name: _kind(kind, pa) for name, kind in types.items()}
        raise first_fault(path, delimiter, kinds, error) from error


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


def _read_parquet(path: Path, columns: Columns) -> Log:
    parquet, pa = _arrow("pyarrow.parquet", path), _arrow("pyarrow", path)
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    with _damage(path, pa), parquet.ParquetFile(path, memory_map=True) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        chosen = choose(columns, schema.names, str(path))
        if not rows:
            raise UserError("there are no steps in it (zero rows).", where=str(path))
        checks.check_size(rows * len(chosen.all) * 4, str(path))
        # One column at a time: beside the arrays that stay, memory holds a single column.
        log = _log(lambda name: file.read([name]).column(name), rows, chosen, columns, str(path))
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


def _log(column: Column, rows: int, chosen: Chosen, columns: Columns, source: str) -> Log:
    """Assemble the steps; `column` reads one column of `rows` rows by name."""
    valid = _flag(column, chosen.valid, source)
    order, boundaries = _order(column, chosen, rows, source)
    bounds = columns.bounds(len(chosen.action))

    def numbers(names: tuple[str, ...], limits: tuple[Floats, Floats] | None = None) -> Floats:
        filled = np.empty((rows, len(names)), np.float32)
        for i, name in enumerate(names):
            values = _number(column(name), name, valid, rows, source)
            if limits is not None:
                values = _to_unit(values, limits[0][i], limits[1][i], valid, name, source)
            filled[:, i] = values if order is None else values[order]
        return filled

    def flag(name: str | None) -> Bools:
        values = _flag(column, name, source)
        if values is None:
            return np.zeros(rows, np.bool_)
        return values if order is None else values[order]

    terminals, truncated = flag(chosen.terminal), flag(chosen.truncated)
    if chosen.episode is not None:
        early = np.flatnonzero((terminals | truncated) & ~boundaries)
        if early.size:
            row = early[0] if order is None else order[early[0]]
            name = chosen.terminal if terminals[early[0]] else chosen.truncated
            raise UserError(
                f"column {name!r} ends the episode at row {row}, but the episode has later rows.",
                where=source,
                fix="Give the rows after it an episode of their own.",
            )
    steps = Steps(
        observations=numbers(chosen.observation),
        actions=numbers(chosen.action, bounds),
        rewards=numbers((chosen.reward,))[:, 0],
        terminals=terminals,
        timeouts=truncated | (boundaries & ~terminals),
        next_observations=numbers(chosen.next_observation) if chosen.next_observation else None,
        valid=valid if valid is None or order is None else valid[order],
    )
    warnings: tuple[str, ...] = ()
    if bounds is not None:
        low, high = (", ".join(f"{x:g}" for x in np.unique(b)) for b in bounds)
        warnings = (
            f"{source}: its actions were mapped linearly from [{low}] … [{high}] to [-1, 1]; "
            "map a policy's actions back before you use them.",
        )
    return Log(steps.checked(source), columns.task, warnings)


def _order(
    column: Column, chosen: Chosen, rows: int, source: str
) -> tuple[NDArray[np.int64] | None, Bools]:
    """The rows in order of episode and time (None: as they are), and which end an episode."""
    episode = np.zeros(rows, np.int64)
    if chosen.episode is not None:
        episode = _ranks(column(chosen.episode), chosen.episode, rows, source)
    time: NDArray[Any] = np.arange(rows)
    if chosen.time is not None:
        time = _times(column(chosen.time), chosen.time, rows, source)
    ordered = (episode[1:] > episode[:-1]) | (
        (episode[1:] == episode[:-1]) & (time[1:] > time[:-1])
    )
    order: NDArray[np.int64] | None = None
    if not ordered.all():
        order = np.lexsort((time, episode))
        episode, time = episode[order], time[order]
        twice = np.flatnonzero((episode[1:] == episode[:-1]) & (time[1:] == time[:-1]))
        if twice.size:
            first, second = sorted((int(order[twice[0]]), int(order[twice[0] + 1])))
            same = f"{chosen.time!r}" + (f" and {chosen.episode!r}" if chosen.episode else "")
            raise UserError(
                f"rows {first} and {second} are the same step: they agree in {same}.",
                where=source,
                fix="Leave one of them out, or number the episodes and steps anew.",
            )
    return order, np.append(episode[1:] != episode[:-1], True)


def _number(values: Any, name: str, valid: Bools | None, rows: int, source: str) -> Floats:
    """A column as float32, finite wherever it is valid."""
    pa = import_module("pyarrow")
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise UserError(
            f"column {name!r} holds values of type {kind}, not numbers.",
            where=source,
            fix="Store one number per row and column.",
        )
    array = _same_length(_plain(values.cast(pa.float32(), safe=False)), name, rows, source)
    finite = np.isfinite(array)
    bad = np.flatnonzero(~finite if valid is None else ~finite & valid)
    if bad.size:
        more = f" ({bad.size:,} such rows)" if bad.size > 1 else ""
        raise UserError(
            f"column {name!r} is not a finite number at row {bad[0]}{more}.",
            where=source,
            fix="Repair these rows, or mark them with 0 in a column named by `valid`.",
        )
    return array


def _flag(column: Column, name: str | None, source: str) -> Bools | None:
    if name is None:
        return None
    pa, values = import_module("pyarrow"), column(name)
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise UserError(
            f"column {name!r} holds values of type {kind}, but 0 and 1 are needed.", where=source
        )
    return checks.flags(name, _plain(values.cast(pa.float32(), safe=False)), source)


def _ranks(values: Any, name: str, rows: int, source: str) -> NDArray[np.int64]:
    """Whole numbers in the order of the values, whatever their type."""
    pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
    _no_gaps(values, name, source)
    if pa.types.is_integer(values.type):
        return _same_length(_plain(values), name, rows, source)
    if pa.types.is_nested(values.type):
        raise UserError(f"column {name!r} holds values of type {values.type}.", where=source)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    encoded = pa.concat_arrays(values.chunks).dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[compute.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    return _same_length(ranks[encoded.indices.to_numpy()], name, rows, source)


def _times(values: Any, name: str, rows: int, source: str) -> NDArray[Any]:
    """A column that can be ordered: numbers, or points in time."""
    pa = import_module("pyarrow")
    kind = values.type
    if pa.types.is_temporal(kind):
        values = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UserError(
            f"column {name!r} holds values of type {kind}, but steps are ordered by numbers or "
            "points in time.",
            where=source,
        )
    _no_gaps(values, name, source)
    return _same_length(_plain(values), name, rows, source)


def _no_gaps(values: Any, name: str, source: str) -> None:
    gaps = import_module("pyarrow.compute").is_null(values, nan_is_null=True)
    empty = np.flatnonzero(_plain(gaps))
    if empty.size:
        raise UserError(f"column {name!r} is empty at row {empty[0]}.", where=source)


def _to_unit(
    values: Floats,
    low: np.float32,
    high: np.float32,
    valid: Bools | None,
    name: str,
    source: str,
) -> Floats:
    """Actions in [low, high] as actions in [-1, 1]."""
    slack = BOUND_SLACK * (high - low)
    wide = (values < low - slack) | (values > high + slack)
    outside = np.flatnonzero(wide if valid is None else wide & valid)
    if outside.size:
        raise UserError(
            f"column {name!r} is {values[outside[0]]:g} at row {outside[0]}, outside its bounds "
            f"[{low:g}, {high:g}].",
            where=source,
            fix="Widen `action_bounds`, or repair the row.",
        )
    exact = values.astype(np.float64)
    return np.clip(2 * (exact - low) / (high - low) - 1, -1, 1).astype(np.float32)


def _plain(values: Any) -> NDArray[Any]:
    array: NDArray[Any] = values.to_numpy()
    return array


def _same_length(array: NDArray[Any], name: str, rows: int, source: str) -> NDArray[Any]:
    if len(array) != rows:  # only a damaged file
        raise UserError(f"column {name!r} has {len(array)} of {rows} rows.", where=source)
    return array


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
