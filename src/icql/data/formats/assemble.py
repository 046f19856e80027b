"""From the columns of a table to steps: categories, flags, gaps, bounds, and every fault at once.

Rows may come in any order. Episodes may have any length; one that ends without a `terminal` or
`truncated` mark was cut there. No environment is needed. A cell that cannot be used is NaN in the
steps and a fault of the source: such a log can be described, but not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from icql.data.arrays import Bools, Floats, Room, blocks, say_size, tally
from icql.data.formats.cells import MOST_LEVELS, empty, flag
from icql.data.formats.gaps import PER_GAP, fill
from icql.data.formats.mapping import (
    DROP,
    GAPS,
    INTERPOLATE,
    REFUSE,
    Columns,
    by_number,
    paste_into,
)
from icql.data.formats.notes import Notes, Odd, Part, note_mark, note_odd, note_outside
from icql.data.formats.order import Order, in_order
from icql.data.formats.tabular import LogTable, distinct, is_number, is_text, plain
from icql.data.signals import Names, Signals
from icql.data.tasks import Task, find_task, get_task
from icql.data.transitions import DataInfo, Source, Steps

BOUND_SLACK = 1e-5  # of the range: rounding may put an action a little outside its bounds


def assemble(
    table: LogTable,
    columns: Columns,
    task: Task | None,
    room: Room,
    broken: Mapping[str, int] | None = None,
) -> Source:
    """The steps of the chosen columns, put into `room`, with all that was found on the way.

    Where the mapping gives `action_bounds`, actions are mapped linearly from them to [-1, 1], and a
    warning says so; else they keep their units. `broken` counts cells by column that were read as
    gaps because they hold something else, which has been noted already.
    """
    if not table.rows:
        raise table.error("there are no steps in it (zero rows).")
    return _Assembly(table, columns, room, broken or {}).source(task)


class _Assembly:
    def __init__(
        self, table: LogTable, columns: Columns, room: Room, broken: Mapping[str, int]
    ) -> None:
        self.table, self.columns, self.room, self.broken = table, columns, room, broken
        self.notes = Notes(table)
        self.order: Order = in_order(table, columns, room, self.notes)
        self.valid = self._marks(columns.valid)
        self.left_out: Bools | None = None
        self.gaps: dict[str, int] = {}
        self.levels = {name: self._levels(name) for name in columns.categories}

    def source(self, task: Task | None) -> Source:
        columns, none = self.columns, np.zeros(self.table.rows, np.bool_)
        marked = (self._marks(name) for name in (columns.terminal, columns.truncated))
        terminals, truncated = (none if marks is None else marks for marks in marked)
        self._check_ends(terminals, truncated)
        bounds = columns.bounds()
        signals = self._signals(bounds)
        following = self._matrix("next_observation") if columns.next_observation else None
        steps = Steps(
            observations=self._matrix("observation"),
            actions=self._matrix("action", bounds),
            rewards=self._matrix("reward")[:, 0],
            terminals=terminals,
            timeouts=truncated | (self.order.ends & ~terminals),
            next_observations=following,
            valid=self._usable(),
        )
        if bounds is not None:
            self._say_mapped(signals)
        if task is None and columns.task is not None:
            task = get_task(columns.task)
        path, faults = self.table.path, self.notes.faults
        changed = [f for f in faults if f.severity == "warning" and f.rule != "order_unchecked"]
        info = DataInfo(
            path.stem,
            source=str(path),
            warnings=tuple(f"{fault.file}: {fault.what}" for fault in changed),
            signals=signals,
        )
        return Source(
            steps.checked(info.source),
            info,
            task or find_task(path.name),
            faults=tuple(faults),
            gaps=self.gaps,
            mapping=paste_into(path, columns),
        )

    # --- cells → numbers ------------------------------------------------------------------------

    def _matrix(self, key: str, bounds: tuple[Floats, Floats] | None = None) -> Floats:
        """The columns of one meaning in order, gaps treated by their rule."""
        parts = self._parts(key)
        filled = self.room.empty(
            f"{key}s", (self.table.rows, parts[-1].at.stop), np.dtype(np.float32)
        )
        words = {part.name: False for part in parts}
        for i, part in enumerate(parts):
            odd, outside = Odd(), Odd()
            ends = (0.0, 0.0) if bounds is None else (float(bounds[0][i]), float(bounds[1][i]))
            for rows, column in self.table:
                values, steps = column(part.name), self.order.step_of(rows)
                numbers, words[part.name] = self._numbers(values, part, rows.start, odd)
                if bounds is not None:
                    usable = None if self.valid is None else self.valid[steps]
                    numbers = _to_unit(numbers, ends, usable, rows.start, outside)
                filled[steps, part.at] = numbers
            note_odd(self.notes, self.columns, part, odd)
            if bounds is not None:
                note_outside(self.notes, part.name, outside, *ends)
        for part in parts:
            self._treat_gaps(replace(part, words=words[part.name]), filled)
        return filled

    def _parts(self, key: str) -> list[Part]:
        names, parts, width = self.columns.names(key), [], 0
        # a next observation is what the observation in its place is
        alike = self.columns.names("observation") if key == "next_observation" else names
        for name, like in zip(names, alike, strict=True):
            levels = self.levels.get(like, ())
            parts.append(Part(name, slice(width, width + max(1, len(levels))), levels))
            width = parts[-1].at.stop
        return parts

    def _numbers(self, values: Any, part: Part, start: int, odd: Odd) -> tuple[Floats, bool]:
        """The cells of a column as numbers (rows, …), NaN where empty; whether they are words."""
        pa = import_module("pyarrow")
        if part.levels:
            return self._one_hot(values, part, start, odd), True
        if is_text(values.type):
            words = self.columns.flags.get(part.name, ())
            told = self._by_value(values, lambda cell: flag(cell, words), start, odd)
            return told[:, None], True
        if not is_number(values.type):
            odd.add(start, len(values), f"values of type {values.type}, not numbers", kind="type")
            return np.full((len(values), 1), np.nan, np.float32), False
        return plain(values.cast(pa.float32(), safe=False))[:, None], False

    def _one_hot(self, values: Any, part: Part, start: int, odd: Odd) -> Floats:
        ranks = {level: float(i) for i, level in enumerate(part.levels)}
        rank = self._by_value(_as_text(values), lambda cell: ranks.get(cell.strip()), start, odd)
        hot = (rank[:, None] == np.arange(len(part.levels))).astype(np.float32)
        hot[np.isnan(rank)] = np.nan
        return hot

    def _by_value(
        self, values: Any, meaning: Callable[[str], float | None], start: int, odd: Odd
    ) -> Floats:
        """What each of the cells means; NaN where it is empty or means nothing, which is odd."""
        found, at = distinct(values)
        told = np.full(len(found), np.nan, np.float32)
        for i, cell in enumerate(found):
            if cell is None or empty(cell, self.columns.missing):
                continue
            if (said := meaning(cell)) is not None:
                told[i] = said
            elif (rows := np.flatnonzero(at == i)).size:
                odd.add(start + int(rows[0]), rows.size, cell)
        return told[at]

    def _levels(self, name: str) -> Names:
        """The levels of a category: those given, or all that occur."""
        if self.columns.categories[name]:
            return self.columns.categories[name]
        seen: dict[str, None] = {}
        for _, column in self.table:
            cells = distinct(_as_text(column(name)))[0]
            seen |= {
                cell.strip(): None
                for cell in cells
                if cell is not None and not empty(cell, self.columns.missing)
            }
            if len(seen) > MOST_LEVELS:
                self.notes.add(
                    "levels",
                    None,
                    name,
                    lambda _: (
                        f"column {name!r} has more than {MOST_LEVELS} different values, too many "
                        "for a category."
                    ),
                    f"Take {name!r} out of `categories`, or of the observation.",
                )
                break
        return tuple(sorted(seen, key=by_number)[:MOST_LEVELS]) or ("",)

    def _marks(self, name: str | None) -> Bools | None:
        """A column of 0 and 1, or yes and no, in order."""
        if name is None:
            return None
        filled = np.empty(self.table.rows, np.bool_)
        part, odd = Part(name, slice(0, 1)), Odd()
        for rows, column in self.table:
            numbers, words = self._numbers(column(name), part, rows.start, odd)
            told = numbers[:, 0]
            strange = np.flatnonzero((told != 0) & (told != 1))
            if strange.size and not (words and odd.count):
                row = rows.start + int(strange[0])
                odd.add(row, strange.size, f"{told[strange[0]]}", kind="mark")
            filled[self.order.step_of(rows)] = told == 1
        if odd.count and odd.kind == "mark":
            note_mark(self.notes, name, odd)
        elif odd.count:
            note_odd(self.notes, self.columns, part, odd)
        return filled

    # --- what is odd ----------------------------------------------------------------------------

    def _check_ends(self, terminals: Bools, truncated: Bools) -> None:
        early = (terminals | truncated) & ~self.order.ends
        if self.columns.episode is None or not self.order.known:
            return
        for name, marks in (
            (self.columns.terminal, terminals),
            (self.columns.truncated, truncated & ~terminals),
        ):
            here = early & marks
            if here.any():
                more = f" ({here.sum():,} such rows)" if here.sum() > 1 else ""
                self.notes.add(
                    "early_end",
                    self.order.row_of(int(here.argmax())),
                    name,
                    lambda row, name=name, more=more: (  # type: ignore[misc]
                        f"column {name!r} ends the episode at row {row}, but the episode has "
                        f"later rows{more}."
                    ),
                    "Give the rows after it an episode of their own.",
                )

    # --- gaps -----------------------------------------------------------------------------------

    def _treat_gaps(self, part: Part, filled: Floats) -> None:
        """Find what is no finite number in a column, and treat gaps by their rule."""
        column, valid, name = filled[:, part.at], self.valid, part.name

        def gap(rows: slice) -> Bools:
            empty = np.isnan(column[rows, 0])
            return empty if valid is None else empty & valid[rows]

        def infinite(rows: slice) -> Bools:
            odd = np.isinf(column[rows, 0])
            return odd if valid is None else odd & valid[rows]

        step, count = tally(len(column), infinite)
        if step is not None:
            more = f" ({count:,} such rows)" if count > 1 else ""
            self.notes.add(
                "non_finite",
                self.order.row_of(step),
                name,
                lambda row: f"column {name!r} is not a finite number at row {row}{more}.",
                "Repair these rows, or mark them with 0 in a column named by `valid`.",
            )
        step, count = tally(len(column), gap)
        if any(fault.column == name and fault.severity == "error" for fault in self.notes.faults):
            return  # cells that mean nothing are gaps by now
        count -= self.broken.get(name, 0)
        if step is None or count <= 0:
            return
        self.gaps[name] = count
        row, rule = self.order.row_of(step), self.columns.gap_rule(name)
        share = f"{count:,} of {len(column):,} rows"
        if rule == REFUSE:
            self.notes.add(
                "gaps",
                row,
                name,
                lambda row: f"column {name!r} is empty at row {row} ({share}).",
                self._how_to_fill(),
            )
            return
        where = np.concatenate(
            [rows.start + np.flatnonzero(gap(rows)) for rows in blocks(len(column))]
        )
        if self.room.folder is not None and len(where) * PER_GAP > self.room.budget:
            raise self.table.error(
                f"to fill the {len(where):,} gaps of {name!r} takes "
                f"{say_size(len(where) * PER_GAP)} of memory, over the budget.",
                "Allow more with --memory.",
            )
        dropped, said = where, f"the {_gaps(len(where))} of {name!r}"
        if rule == DROP:
            said += f": {'the row is' if count == 1 else 'their rows are'} left out"
        else:
            done = fill(column, where, self.order.ends, rule, self.order.times, steps=part.steps)
            dropped = done.left_out
            how = "interpolated" if rule == INTERPOLATE and not part.steps else "held"
            said += f": {done.filled:,} {how}, at most {done.longest:,} in a row"
            if dropped.size:
                said += f"; {dropped.size:,} at the beginning of an episode left out"
        if dropped.size:
            if self.left_out is None:
                self.left_out = np.zeros(len(column), np.bool_)
            self.left_out[dropped] = True
        self.notes.add("gaps", row, name, lambda _: f"{said}.", "", "warning")

    def _how_to_fill(self) -> str:
        rules = " or ".join(f'"{rule}"' for rule in GAPS if rule != REFUSE)
        return f"Say what to do in {paste_into(self.table.path, self.columns)}: gaps = {rules}."

    def _usable(self) -> Bools | None:
        if self.left_out is None:
            return self.valid
        return ~self.left_out if self.valid is None else self.valid & ~self.left_out

    # --- names ----------------------------------------------------------------------------------

    def _signals(self, bounds: tuple[Floats, Floats] | None) -> Signals:
        columns, names = self.columns, list[str]()
        for name in columns.names("observation"):
            levels = self.levels.get(name, ())
            names += [f"{name}={level}" for level in levels] or [name]
        acts = columns.names("action")
        if acts[0] in self.levels:  # the only one: see `_check_named`
            acts = tuple(f"{acts[0]}={level}" for level in self.levels[acts[0]])
        low, high = ((), ()) if bounds is None else (tuple(map(float, b)) for b in bounds)
        return Signals(
            tuple(names),
            acts,
            columns.reward,
            dict(columns.units),
            low,
            high,
            dict(self.levels),
        )

    def _say_mapped(self, signals: Signals) -> None:
        ends = zip(signals.action, signals.action_low, signals.action_high, strict=True)
        told = ", ".join(f"{name!r} from {low:g} … {high:g}" for name, low, high in ends)
        self.notes.add(
            "reader",
            None,
            None,
            lambda _: (
                f"its actions were mapped linearly to [-1, 1]: {told}; a run keeps these bounds, "
                "and `load_policy(run).act` gives actions in them."
            ),
            severity="warning",
        )


def _to_unit(
    values: Floats, bounds: tuple[float, float], valid: Bools | None, start: int, odd: Odd
) -> Floats:
    """Actions within bounds as actions in [-1, 1]; the first of them stands in row `start`."""
    low, high = bounds
    slack = BOUND_SLACK * (high - low)
    wide = ((values < low - slack) | (values > high + slack))[:, 0]
    outside = np.flatnonzero(wide if valid is None else wide & valid)
    if outside.size:
        odd.add(start + int(outside[0]), outside.size, f"{values[outside[0], 0]:g}")
    exact = values.astype(np.float64)
    return np.clip(2 * (exact - low) / (high - low) - 1, -1, 1).astype(np.float32)


def _as_text(values: Any) -> Any:
    """A column of levels as text; whole numbers without a fraction."""
    pa = import_module("pyarrow")
    return values if is_text(values.type) else values.cast(pa.string())


def _gaps(count: int) -> str:
    return "gap" if count == 1 else f"{count:,} gaps"
