"""Logs as tables, one row per step: from columns to steps in order of episode and time.

Rows may come in any order. Episodes may have any length; one that ends without a `terminal` or
`truncated` mark was cut there. A table comes in pieces: one that holds everything, or batches of a
mapped file. No environment is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import Bools, Floats, Room, Rows, blocks, flags, not_finite, say_size
from icql.data.formats.mapping import Columns
from icql.data.tasks import Task, find_task, get_task
from icql.data.transitions import DataInfo, Source, Steps
from icql.errors import UserError

BOUND_SLACK = 1e-5  # of the range: rounding may put an action a little outside its bounds
SORTING = 56  # bytes a row that it takes to sort a table

Column = Callable[[str], Any]  # name → pyarrow.Array or ChunkedArray
Piece = tuple[slice, Column]  # the rows, and their columns


@dataclass(frozen=True)
class LogTable:
    """Columns of a file, to be gone through as often as needed."""

    path: Path
    rows: int
    pieces: Callable[[], Iterator[Piece]]

    @classmethod
    def whole(cls, path: Path, rows: int, column: Column) -> LogTable:
        """A table in one piece."""
        return cls(path, rows, lambda: iter([(slice(0, rows), column)]))

    @classmethod
    def spooled(cls, path: Path, batches: Iterable[Any], folder: Path) -> LogTable:
        """The batches as a file in `folder` that is mapped, and read one batch at a time."""
        pa, ipc = import_module("pyarrow"), import_module("pyarrow.ipc")
        spool, ends = folder / "table.arrow", [0]
        with ExitStack() as opened:
            file: Any = None
            for batch in batches:
                columns = [_decoded(column) for column in batch]
                plain = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
                file = file or opened.enter_context(ipc.new_file(spool, plain.schema))
                file.write_batch(plain)
                ends.append(ends[-1] + plain.num_rows)
        if len(ends) == 1:
            return cls(path, 0, lambda: iter(()))
        mapped = ipc.open_file(pa.memory_map(str(spool)))

        def pieces() -> Iterator[Piece]:
            for number, (begin, end) in enumerate(pairwise(ends)):
                yield slice(begin, end), mapped.get_batch(number).column

        return cls(path, ends[-1], pieces)

    def __iter__(self) -> Iterator[Piece]:
        for rows, column in self.pieces():
            yield rows, partial(self._values, rows, column)

    def source(self, columns: Columns, task: Task | None, room: Room) -> Source:
        """Assemble the steps of the chosen columns in `room`.

        Where the mapping gives `action_bounds`, actions are mapped linearly from them to [-1, 1],
        and a warning says so; else they keep their units.
        """
        if not self.rows:
            raise self.error("there are no steps in it (zero rows).")
        place, boundaries = self._order(columns, room)

        def row_of(sorted_row: int) -> int:
            return sorted_row if place is None else int((place == sorted_row).argmax())

        valid, none = self._marks(columns.valid, place), np.zeros(self.rows, np.bool_)
        bounds = columns.bounds(len(columns.names("action")))

        def numbers(key: str, limits: Any = None) -> Floats:
            names = columns.names(key)
            filled = room.empty(f"{key}s", (self.rows, len(names)), np.float32)
            for rows, column in self:
                target = rows if place is None else place[rows]
                for i, name in enumerate(names):
                    values = self._numbers(column(name), name)
                    if limits is not None:
                        usable = None if valid is None else valid[target]
                        ends = limits[0][i], limits[1][i]
                        values = self._to_unit(values, ends, usable, name, rows.start)
                    filled[target, i] = values
            row, at, count = not_finite(filled, valid)
            if row is not None:
                more = f" ({count:,} such rows)" if count > 1 else ""
                raise self.error(
                    f"column {names[at]!r} is not a finite number at row {row_of(row)}{more}.",
                    "Repair these rows, or mark them with 0 in a column named by `valid`.",
                )
            return filled

        marked = (self._marks(name, place) for name in (columns.terminal, columns.truncated))
        terminals, truncated = (none if marks is None else marks for marks in marked)
        early = (terminals | truncated) & ~boundaries
        if columns.episode is not None and early.any():
            row = int(early.argmax())
            name = columns.terminal if terminals[row] else columns.truncated
            raise self.error(
                f"column {name!r} ends the episode at row {row_of(row)}, but the episode has later "
                "rows.",
                "Give the rows after it an episode of their own.",
            )
        steps = Steps(
            observations=numbers("observation"),
            actions=numbers("action", bounds),
            rewards=numbers("reward")[:, 0],
            terminals=terminals,
            timeouts=truncated | (boundaries & ~terminals),
            next_observations=numbers("next_observation") if columns.next_observation else None,
            valid=valid,
        )
        warnings: tuple[str, ...] = ()
        if bounds is not None:
            low, high = (", ".join(f"{x:g}" for x in np.unique(b)) for b in bounds)
            warnings = (
                f"{self.path}: its actions were mapped linearly from [{low}] … [{high}] to "
                "[-1, 1]; map a policy's actions back before you use them.",
            )
        if task is None and columns.task is not None:
            task = get_task(columns.task)
        info = DataInfo(self.path.stem, source=str(self.path), warnings=warnings)
        return Source(steps.checked(info.source), info, task or find_task(self.path.name))

    def error(self, what: str, fix: str = "") -> UserError:
        """A fault of this file."""
        return UserError(what, where=str(self.path), fix=fix)

    def _values(self, rows: slice, column: Column, name: str) -> Any:
        values = _decoded(column(name))
        if len(values) != rows.stop - rows.start:  # only a damaged file
            raise self.error(f"column {name!r} has {len(values)} of {rows.stop - rows.start} rows.")
        return values

    def _numbers(self, values: Any, name: str) -> Floats:
        """A column as float32; what is empty is NaN."""
        pa = import_module("pyarrow")
        kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean)
        if not any(kind(values.type) for kind in kinds):
            raise self.error(
                f"column {name!r} holds values of type {values.type}, not numbers.",
                "Store one number per row and column.",
            )
        return _plain(values.cast(pa.float32(), safe=False))

    def _marks(self, name: str | None, place: Rows | None) -> Bools | None:
        """A column of 0 and 1, in order."""
        if name is None:
            return None
        filled = np.empty(self.rows, np.bool_)
        for rows, column in self:
            values = self._numbers(column(name), name)
            marked = flags(name, values, str(self.path), offset=rows.start)
            filled[rows if place is None else place[rows]] = marked
        return filled

    def _order(self, columns: Columns, room: Room) -> tuple[Rows | None, Bools]:
        """Where each row goes in order of episode and time (None: as they are), and which of the
        ordered rows end an episode.
        """
        ends = np.zeros(self.rows, np.bool_)
        ends[-1] = True
        if columns.episode is None and columns.time is None:
            return None, ends
        episode = self._key("episode", columns.episode, room)
        time = self._key("time", columns.time, room)
        ordered = True
        for rows in blocks(self.rows - 1):
            after = slice(rows.start + 1, rows.stop + 1)
            same = np.ones(1, np.bool_) if episode is None else episode[after] == episode[rows]
            later = np.zeros(1, np.bool_) if episode is None else episode[after] > episode[rows]
            grows = np.ones(1, np.bool_) if time is None else time[after] > time[rows]
            ordered = ordered and bool((later | (same & grows)).all())
            ends[rows] = ~same
        if ordered:
            return None, ends
        if room.folder is not None and self.rows * SORTING > room.budget:
            raise self.error(
                f"its rows are not in order, and to sort them takes "
                f"{say_size(self.rows * SORTING)} of memory, over the budget.",
                "Sort it by episode and time first, or allow more with --memory.",
            )
        keys = [np.asarray(key) for key in (time, episode) if key is not None]
        order = np.lexsort(keys)
        equal = [key[order[1:]] == key[order[:-1]] for key in keys]
        twice = np.logical_and.reduce(equal)
        if time is not None and twice.any():
            at = int(twice.argmax())
            first, second = sorted((int(order[at]), int(order[at + 1])))
            names = f"{columns.time!r}" + (f" and {columns.episode!r}" if columns.episode else "")
            raise self.error(
                f"rows {first} and {second} are the same step: they agree in {names}.",
                "Leave one of them out, or number the episodes and steps anew.",
            )
        ends[:-1] = ~equal[-1] if episode is not None else False
        place = np.empty(self.rows, np.int64)
        place[order] = np.arange(self.rows)
        return place, ends

    def _key(self, key: str, name: str | None, room: Room) -> NDArray[Any] | None:
        """A column that rows are ordered by: numbers and points in time as they are, names of
        episodes as their ranks.
        """
        if name is None:
            return None
        pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        filled: NDArray[Any] | None = None
        seen: dict[Any, int] = {}  # value → number in order of appearance
        for rows, column in self:
            values = column(name)
            kind = values.type
            if pa.types.is_temporal(kind):
                values = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
            gaps = _plain(compute.is_null(values, nan_is_null=True))
            if gaps.any():
                row = rows.start + int(gaps.argmax())
                raise self.error(f"column {name!r} is empty at row {row}.")
            if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
                plain = _plain(values)
            elif key == "time" or pa.types.is_nested(kind):
                wanted = "numbers or points in time" if key == "time" else "one value per row"
                raise self.error(
                    f"column {name!r} holds values of type {kind}, but to order by it {wanted} "
                    "are needed."
                )
            else:
                encoded = pa.concat_arrays(getattr(values, "chunks", [values])).dictionary_encode()
                numbers = [seen.setdefault(v, len(seen)) for v in encoded.dictionary.to_pylist()]
                plain = np.asarray(numbers, np.int64)[encoded.indices.to_numpy()]
            if filled is None:
                filled = room.empty(key, (self.rows,), plain.dtype)
            filled[rows] = plain
        assert filled is not None
        if seen:
            ranks = np.empty(len(seen), np.int64)
            order = compute.array_sort_indices(pa.array(list(seen), kind)).to_numpy()
            ranks[order] = np.arange(len(ranks))
            for rows in blocks(self.rows):
                filled[rows] = ranks[filled[rows]]
        return filled

    def _to_unit(
        self, values: Floats, bounds: tuple[Any, Any], valid: Bools | None, name: str, start: int
    ) -> Floats:
        """Actions within bounds as actions in [-1, 1]; the first of them stands in row `start`."""
        low, high = bounds
        slack = BOUND_SLACK * (high - low)
        wide = (values < low - slack) | (values > high + slack)
        outside = np.flatnonzero(wide if valid is None else wide & valid)
        if outside.size:
            raise self.error(
                f"column {name!r} is {values[outside[0]]:g} at row {start + outside[0]}, outside "
                f"its bounds [{low:g}, {high:g}].",
                "Widen `action_bounds`, or repair the row.",
            )
        exact = values.astype(np.float64)
        return np.clip(2 * (exact - low) / (high - low) - 1, -1, 1).astype(np.float32)


def arrow(module: str, path: Path) -> Any:
    """A module of PyArrow, which only these logs need."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            "PyArrow is needed for CSV and Parquet and is not installed.",
            where=str(path),
            fix="pip install 'icql[logs]'",
        ) from error


def _decoded(values: Any) -> Any:
    """A column without a dictionary of its values."""
    has = import_module("pyarrow").types.is_dictionary(values.type)
    return values.cast(values.type.value_type) if has else values


def _plain(values: Any) -> NDArray[Any]:
    # an Array, unlike a ChunkedArray, must be told that a copy is fine
    chunked = hasattr(values, "chunks")
    array: NDArray[Any] = values.to_numpy() if chunked else values.to_numpy(zero_copy_only=False)
    return array
