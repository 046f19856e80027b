"""From the columns of a table to steps in order of episode and time.

A table comes in pieces: one that holds everything, or batches of a mapped file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data import checks
from icql.data.blocks import Rows, blocks
from icql.data.columns import Chosen, Columns
from icql.data.room import Room, say_size
from icql.data.transitions import Bools, Floats, Steps
from icql.errors import UserError

BOUND_SLACK = 1e-5  # of the range: rounding may put an action a little outside its bounds
SORTING = 56  # bytes a row that it takes to sort a table

Column = Callable[[str], Any]  # name → pyarrow.Array or ChunkedArray
Piece = tuple[slice, Column]  # the rows, and their columns


@dataclass(frozen=True)
class Table:
    """Columns of a file, to be gone through as often as needed."""

    rows: int
    pieces: Callable[[], Iterator[Piece]]


@dataclass(frozen=True)
class Log:
    """What was read from a table."""

    steps: Steps
    task: str | None = None  # name in the task table, where the mapping or the file says it
    warnings: tuple[str, ...] = ()


def steps_of(table: Table, chosen: Chosen, columns: Columns, source: str, room: Room) -> Log:
    """Assemble the steps of a table in `room`.

    Raises:
        UserError: naming `source`, row and column, if anything does not fit.
    """
    valid = _flag(table, chosen.valid, source)
    place, boundaries = _order(table, chosen, source, room)
    bounds = columns.bounds(len(chosen.action))

    def numbers(
        key: str, names: tuple[str, ...], limits: tuple[Floats, Floats] | None = None
    ) -> Floats:
        filled = room.empty(key, (table.rows, len(names)), np.float32)
        bad = dict.fromkeys(names, (0, 0))  # first row, count
        for rows, column in table.pieces():
            target = rows if place is None else place[rows]
            usable = None if valid is None else valid[rows]
            for i, name in enumerate(names):
                values = _number(column(name), name, rows, source)
                wrong = ~np.isfinite(values) if usable is None else ~np.isfinite(values) & usable
                if count := int(np.count_nonzero(wrong)):
                    first, before = bad[name]
                    first = first if before else rows.start + int(wrong.argmax())
                    bad[name] = first, before + count
                if limits is not None:
                    low, high = limits[0][i], limits[1][i]
                    values = _to_unit(values, low, high, usable, name, rows.start, source)
                filled[target, i] = values
        for name, (row, count) in bad.items():
            if count:
                more = f" ({count:,} such rows)" if count > 1 else ""
                raise UserError(
                    f"column {name!r} is not a finite number at row {row}{more}.",
                    where=source,
                    fix="Repair these rows, or mark them with 0 in a column named by `valid`.",
                )
        return filled

    def flag(name: str | None) -> Bools:
        values = _flag(table, name, source)
        return np.zeros(table.rows, np.bool_) if values is None else _placed(values, place)

    terminals, truncated = flag(chosen.terminal), flag(chosen.truncated)
    if chosen.episode is not None:
        early = (terminals | truncated) & ~boundaries
        if early.any():
            sorted_row = int(early.argmax())
            row = sorted_row if place is None else int((place == sorted_row).argmax())
            name = chosen.terminal if terminals[sorted_row] else chosen.truncated
            raise UserError(
                f"column {name!r} ends the episode at row {row}, but the episode has later rows.",
                where=source,
                fix="Give the rows after it an episode of their own.",
            )
    following = chosen.next_observation
    steps = Steps(
        observations=numbers("observations", chosen.observation),
        actions=numbers("actions", chosen.action, bounds),
        rewards=numbers("rewards", (chosen.reward,))[:, 0],
        terminals=terminals,
        timeouts=truncated | (boundaries & ~terminals),
        next_observations=numbers("next_observations", following) if following else None,
        valid=None if valid is None else _placed(valid, place),
    )
    warnings: tuple[str, ...] = ()
    if bounds is not None:
        low, high = (", ".join(f"{x:g}" for x in np.unique(b)) for b in bounds)
        warnings = (
            f"{source}: its actions were mapped linearly from [{low}] … [{high}] to [-1, 1]; "
            "map a policy's actions back before you use them.",
        )
    return Log(steps.checked(source), columns.task, warnings)


def _placed(values: Bools, place: Rows | None) -> Bools:
    if place is None:
        return values
    placed = np.empty_like(values)
    placed[place] = values
    return placed


def _order(table: Table, chosen: Chosen, source: str, room: Room) -> tuple[Rows | None, Bools]:
    """Where each row goes in order of episode and time (None: as they are), and which of the
    ordered rows end an episode.
    """
    ends = np.zeros(table.rows, np.bool_)
    ends[-1] = True
    if chosen.episode is None and chosen.time is None:
        return None, ends
    episode: NDArray[Any] | None = None
    if chosen.episode is not None:
        episode = _ranks(table, chosen.episode, source, room)
    time: NDArray[Any] | None = None
    if chosen.time is not None:
        time = _times(table, chosen.time, source, room)

    def steps_on(array: NDArray[Any] | None, rows: slice) -> tuple[Bools, Bools]:
        """Whether the array grows, and stays, from each of these rows to the next."""
        if array is None:
            return np.zeros(1, np.bool_), np.ones(1, np.bool_)
        here, after = array[rows], array[rows.start + 1 : rows.stop + 1]
        return after > here, after == here

    ordered = True
    for rows in blocks(table.rows - 1):
        later, same = steps_on(episode, rows)
        grows = steps_on(time, rows)[0] if time is not None else np.ones(1, np.bool_)
        ordered = ordered and bool((later | (same & grows)).all())
        ends[rows] = ~same
    if ordered:
        return None, ends
    if room.folder is not None and table.rows * SORTING > room.budget:
        raise UserError(
            f"its rows are not in order, and to sort them takes "
            f"{say_size(table.rows * SORTING)} of memory, over the budget.",
            where=source,
            fix="Sort it by episode and time first, or allow more with --memory.",
        )
    keys = [np.asarray(key) for key in (time, episode) if key is not None]
    order = np.lexsort(keys)
    equal = [key[order[1:]] == key[order[:-1]] for key in keys]
    twice = np.logical_and.reduce(equal)
    if time is not None and twice.any():
        at = int(twice.argmax())
        first, second = sorted((int(order[at]), int(order[at + 1])))
        names = f"{chosen.time!r}" + (f" and {chosen.episode!r}" if chosen.episode else "")
        raise UserError(
            f"rows {first} and {second} are the same step: they agree in {names}.",
            where=source,
            fix="Leave one of them out, or number the episodes and steps anew.",
        )
    ends[:-1] = ~equal[-1] if episode is not None else False
    place = np.empty(table.rows, np.int64)
    place[order] = np.arange(table.rows)
    return place, ends


def _number(values: Any, name: str, rows: slice, source: str) -> Floats:
    """A column as float32; what is empty is NaN."""
    pa = import_module("pyarrow")
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise UserError(
            f"column {name!r} holds values of type {kind}, not numbers.",
            where=source,
            fix="Store one number per row and column.",
        )
    return _same_length(_plain(values.cast(pa.float32(), safe=False)), name, rows, source)


def _flag(table: Table, name: str | None, source: str) -> Bools | None:
    if name is None:
        return None
    pa = import_module("pyarrow")
    filled = np.empty(table.rows, np.bool_)
    for rows, column in table.pieces():
        values = column(name)
        kind = values.type
        if not any(
            f(kind) for f in (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean)
        ):
            raise UserError(
                f"column {name!r} holds values of type {kind}, but 0 and 1 are needed.",
                where=source,
            )
        plain = _same_length(_plain(values.cast(pa.float32(), safe=False)), name, rows, source)
        filled[rows] = checks.flags(name, plain, source, offset=rows.start)
    return filled


def _ranks(table: Table, name: str, source: str, room: Room) -> NDArray[np.int64]:
    """Whole numbers in the order of the values, whatever their type."""
    pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
    filled: NDArray[np.int64] = room.empty("episode", (table.rows,), np.int64)
    seen: dict[Any, int] = {}  # value → number in order of appearance
    kind = None
    for rows, column in table.pieces():
        values = column(name)
        _no_gaps(values, name, rows, source)
        if pa.types.is_nested(values.type):
            raise UserError(f"column {name!r} holds values of type {values.type}.", where=source)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        values = _whole(values)
        if pa.types.is_integer(values.type):
            filled[rows] = _same_length(_plain(values), name, rows, source)
            continue
        kind = values.type
        encoded = pa.concat_arrays(getattr(values, "chunks", [values])).dictionary_encode()
        numbers = [seen.setdefault(v, len(seen)) for v in encoded.dictionary.to_pylist()]
        plain = np.asarray(numbers, np.int64)[encoded.indices.to_numpy()]
        filled[rows] = _same_length(plain, name, rows, source)
    if kind is not None:
        ranks = np.empty(len(seen), np.int64)
        ranks[compute.array_sort_indices(pa.array(list(seen), kind)).to_numpy()] = np.arange(
            len(ranks)
        )
        for rows in blocks(table.rows):
            filled[rows] = ranks[filled[rows]]
    return filled


def _times(table: Table, name: str, source: str, room: Room) -> NDArray[Any]:
    """A column that can be ordered: numbers, or points in time."""
    pa = import_module("pyarrow")
    filled: NDArray[Any] | None = None
    for rows, column in table.pieces():
        values = column(name)
        kind = values.type
        values = _whole(values)
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise UserError(
                f"column {name!r} holds values of type {kind}, but steps are ordered by numbers or "
                "points in time.",
                where=source,
            )
        _no_gaps(values, name, rows, source)
        plain = _same_length(_plain(values), name, rows, source)
        if filled is None:
            filled = room.empty("time", (table.rows,), plain.dtype)
        filled[rows] = plain
    assert filled is not None
    return filled


def _whole(values: Any) -> Any:
    """Points in time as whole numbers; anything else as it is."""
    pa = import_module("pyarrow")
    if not pa.types.is_temporal(values.type):
        return values
    return values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())


def _no_gaps(values: Any, name: str, rows: slice, source: str) -> None:
    gaps = _plain(import_module("pyarrow.compute").is_null(values, nan_is_null=True))
    if gaps.any():
        raise UserError(
            f"column {name!r} is empty at row {rows.start + int(gaps.argmax())}.", where=source
        )


def _to_unit(
    values: Floats,
    low: np.float32,
    high: np.float32,
    valid: Bools | None,
    name: str,
    start: int,
    source: str,
) -> Floats:
    """Actions in [low, high] as actions in [-1, 1]; the first of them stands in row `start`."""
    slack = BOUND_SLACK * (high - low)
    wide = (values < low - slack) | (values > high + slack)
    outside = np.flatnonzero(wide if valid is None else wide & valid)
    if outside.size:
        raise UserError(
            f"column {name!r} is {values[outside[0]]:g} at row {start + outside[0]}, outside its "
            f"bounds [{low:g}, {high:g}].",
            where=source,
            fix="Widen `action_bounds`, or repair the row.",
        )
    exact = values.astype(np.float64)
    return np.clip(2 * (exact - low) / (high - low) - 1, -1, 1).astype(np.float32)


def _plain(values: Any) -> NDArray[Any]:
    # an Array, unlike a ChunkedArray, must be told that a copy is fine
    chunked = hasattr(values, "chunks")
    array: NDArray[Any] = values.to_numpy() if chunked else values.to_numpy(zero_copy_only=False)
    return array


def _same_length(array: NDArray[Any], name: str, rows: slice, source: str) -> NDArray[Any]:
    if len(array) != rows.stop - rows.start:  # only a damaged file
        raise UserError(
            f"column {name!r} has {len(array)} of {rows.stop - rows.start} rows.", where=source
        )
    return array
