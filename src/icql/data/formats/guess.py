"""A first mapping for a log: what its columns may be, by their names and what stands in them.

Every guess says why. Nothing is made up where a wrong guess would change the data in silence: gaps
are counted, not filled; a log without a column that looks like a reward gets none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Literal

import numpy as np

from icql.data.arrays import Room, blocks, scratch
from icql.data.formats.cells import are_flags, empty, formats, moment, number
from icql.data.formats.mapping import (
    Columns,
    beside,
    by_number,
    files_of,
    is_pattern,
    same_columns,
)
from icql.data.transitions import Source
from icql.errors import UserError

Kind = Literal["number", "flag", "text", "time", "empty"]

WORDS = {
    "reward": "reward profit gain score payoff revenue utility gewinn belohnung erlös r",
    "terminal": "terminal terminated done failed failure crashed crash tripped trip "
    "ausfall störung",
    "truncated": "truncated timeout cut interrupted ended end finished abgebrochen",
    "valid": "valid ok usable gültig",
    "time": "time timestamp datetime date zeit zeitstempel datum step t minute second tick",
    "episode": "episode run batch trial shift flight trajectory campaign lot session charge "
    "schicht fahrt lauf",
    "action": "action act a u control setpoint set sp command cmd throttle valve torque dose "
    "actuator mv input sollwert stellwert ventil",
    "index": "index id nr no row line lfd unnamed",
    "category": "mode type recipe product status state modus rezept produkt zustand",
}
UNITS = "Pa kPa hPa bar mbar degC degF kW MW kWh MWh EUR USD rpm kg Hz mm"
LEVELS = 20  # different texts at most that are taken for a category
CODES = 12  # different whole numbers at most that are


@dataclass(frozen=True)
class Seen:
    """What a column looks like in the first rows."""

    name: str
    kind: Kind = "number"
    whole: bool = False
    different: int = 2
    rows: int = 0
    rising: bool = False
    format: str | None = None  # of times that are not ISO

    def called(self, meaning: str) -> bool:
        """Whether a word of its name speaks for a meaning."""
        apart = re.sub(r"(?<=[a-zäöü])(?=[A-Z])", "_", self.name).casefold()
        known = WORDS[meaning].split()
        words = [word for word in re.split(r"[^a-zäöüß]+", apart) if len(word) > 1]
        # a letter speaks for itself alone: u and u_1, but not t_in
        letter = re.fullmatch(r"([a-z])[_ ]?\d*", apart)
        return any(word in known for word in (*words, *(letter.groups() if letter else ())))


@dataclass
class Guess:
    """A mapping with the reasons for its lines."""

    values: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # column → why
    gaps: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, value: Any, why: str) -> None:
        """Set a key."""
        self.values[key], self.why[key] = value, why

    def text(self, title: str) -> str:
        """The mapping as a TOML file."""
        lines = [f"# {title}", "# Guessed: check every line. docs/mapping.md has all keys.", ""]
        for key, value in self.values.items():
            lines += [f"# {self.why[key]}", f"{key} = {toml(value)}"]
        if self.gaps:
            counts = ", ".join(f"{count:,} in {name}" for name, count in self.gaps.items())
            lines += [
                "",
                f"# gaps: {counts}. Nothing is made up unless you say so; one of:",
                '# gaps = "drop"         # leave such rows out',
                '# gaps = "hold"         # repeat the last value of the episode',
                '# gaps = "interpolate"  # go straight to the next one, by time',
            ]
        if self.left_out:
            lines += ["", "# Left out:"]
            lines += [f"#   {name}: {reason}" for name, reason in self.left_out.items()]
        told = (_one_line(line) if line.startswith("#") else line for line in lines)
        return "\n".join(told) + "\n"


def guess_mapping(path: Path, *, separator: str | None = None, decimal: str | None = None) -> Guess:
    """Guess the mapping of a CSV or Parquet log; all of it is read, nothing in it is executed.

    Raises:
        UserError: if it cannot be read.
    """
    said = Columns(separator=separator, decimal=decimal)
    read = _read_parquet if path.suffix.lower() == ".parquet" else _read_csv
    header, rows, signs = read(path, said)
    seen = [_look(name, cells, signs["decimal"]) for name, cells in zip(header, rows, strict=True)]
    guess = _roles(seen)
    if is_pattern(path):
        guess.add("files", [path.name], "all of these files are one log")
    for key, given in (("separator", separator), ("decimal", decimal)):
        if given is not None:
            guess.add(key, given, "as given")
    _try_out(path, guess)
    return guess


def by_name(header: Sequence[str]) -> str:
    """The three lines that every mapping needs, and others, by the columns' names alone."""
    guess = _roles([Seen(name) for name in header])
    return "\n".join(f"  {key} = {toml(value)}" for key, value in guess.values.items())


# --- Looking at columns -------------------------------------------------------------------------


def _read_csv(path: Path, said: Columns) -> tuple[list[str], list[list[str]], dict[str, str]]:
    from icql.data.formats.dialect import decimal_sign, header_of, sample, separator_of

    files = files_of(path, said)
    signs = [separator_of(file, said) for file in files]
    headers = [header_of(file, sign) for file, sign in zip(files, signs, strict=True)]
    same_columns(files, headers)
    header, rows = headers[0], sample(files[0], signs[0])[1:]
    columns = [[cells[i] if i < len(cells) else "" for cells in rows] for i in range(len(header))]
    # a point may also stand in dates and names: only columns of numbers tell
    listed = [
        i
        for i, cells in enumerate(columns)
        if any(all(empty(c) or number(c, sign) is not None for c in cells) for sign in ".,")
    ]
    paste = f"--decimal, or {beside(path)[0]}"
    decimal = said.decimal or decimal_sign(rows, listed, files[0], paste)
    return header, columns, {"separator": signs[0], "decimal": decimal}


def _read_parquet(path: Path, said: Columns) -> tuple[list[str], list[list[str]], dict[str, str]]:
    from icql.data.arrays import reading
    from icql.data.formats.tabular import arrow

    parquet, pa = arrow("pyarrow.parquet", path), arrow("pyarrow", path)
    file = files_of(path, said)[0]
    with (
        reading("Parquet", file, pa.ArrowException, OSError, ValueError),
        parquet.ParquetFile(file) as opened,
    ):
        batch = next(opened.iter_batches(2_000), None)
        names = opened.schema_arrow.names
    columns = [[] if batch is None else batch.column(i).to_pylist() for i in range(len(names))]
    return names, [[_cell(x) for x in cells] for cells in columns], {"decimal": "."}


def _cell(value: Any) -> str:
    """A value as CSV would have it."""
    if value is None:
        return ""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _look(name: str, cells: list[str], decimal: str) -> Seen:
    """What a column looks like."""
    there = [cell.strip() for cell in cells if not empty(cell)]
    different = {*there}
    seen = Seen(name, "text", different=len(different), rows=len(cells))
    if not there:
        return replace(seen, kind="empty")
    numbers = [number(cell, decimal) for cell in there]
    known = [x for x in numbers if x is not None]
    if len(known) == len(there):
        whole = all(x == int(x) for x in known if np.isfinite(x))
        rising = all(b >= a for a, b in pairwise(known))
        kind: Kind = "flag" if different <= {"0", "1"} and len(different) > 1 else "number"
        return replace(seen, kind=kind, whole=whole, rising=rising)
    if are_flags(different):
        return replace(seen, kind="flag")
    if all(moment(cell) for cell in different):
        return replace(seen, kind="time", rising=True)
    some = sorted(different)[:200]
    if fits := formats(some):
        return replace(seen, kind="time", format=fits[0])
    return seen


# --- What they may be ---------------------------------------------------------------------------


def _roles(seen: Sequence[Seen]) -> Guess:
    """Which columns may be what."""
    guess, left = Guess(), list(seen)

    def take(test: Callable[[Seen], bool]) -> Seen | None:
        found = next((column for column in left if test(column)), None)
        if found is not None:
            left.remove(found)
        return found

    names = {column.name for column in seen}
    follow = [c for c in left if c.name.startswith("next_") and c.name[5:] in names]
    left = [column for column in left if column not in follow]
    singles: dict[str, tuple[Seen | None, str]] = {}
    looked = any(column.rows for column in seen)  # else names are all that is known
    for key in ("terminal", "truncated", "valid"):
        found = take(lambda c: c.called(key) and (c.kind == "flag" or not looked))  # noqa: B023
        why = {
            "terminal": "1 where the task itself ended: nothing follows",
            "truncated": "1 where the log was cut; if the task itself ended there: terminal",
            "valid": "0 in rows to leave out",
        }[key]
        singles[key] = found, f"by its name and its two values: {why}"
    time = (
        take(lambda c: c.kind == "time" and c.called("time"))
        or take(lambda c: c.kind == "number" and c.called("time"))
        or take(lambda c: c.kind == "time")
    )
    singles["time"] = time, "rows are ordered by it"
    episode = take(
        lambda c: (
            c.called("episode")
            and (not looked or c.kind == "text" or (c.whole and c.kind != "time"))
            and not (looked and c.different == c.rows > 2)
        )
    )
    singles["episode"] = episode, "rows with the same value are one episode"
    reward = take(lambda c: c.kind in ("number", "flag") and c.called("reward"))
    actions = [c for c in left if c.kind in ("number", "flag") and c.called("action")]
    left = [column for column in left if column not in actions]
    observed, categories = list[str](), list[str]()
    for column in left:
        if reason := _useless(column):
            guess.left_out[column.name] = reason
            continue
        coded = column.kind == "number" and column.whole and 2 < column.different <= CODES
        if column.kind == "text" or (coded and column.called("category")):
            categories.append(column.name)
        observed.append(column.name)
    guess.add("observation", observed, "what the policy may look at: all other columns")
    acted = [column.name for column in actions]
    why = "by their names" if acted else "no name speaks of an action: name what the policy sets"
    guess.add("action", acted, why)
    why = (
        "by its name; must say how good the step was"
        if reward
        else ("no name speaks of a reward: name the column that says how good a step was")
    )
    guess.add("reward", reward.name if reward else "", why)
    for key in ("episode", "time", "terminal", "truncated", "valid"):
        found, why = singles[key]
        if found is not None:
            guess.add(key, found.name, why)
    if time is not None and time.format is not None:
        guess.add("time_format", time.format, "the times are not ISO 8601; day or month first?")
    if follow and {c.name[5:] for c in follow} == {*observed}:
        guess.add("next_observation", [f"next_{name}" for name in observed], "by their names")
    if categories:
        guess.add("categories", categories, "text, or codes: one number for each level")
    units = {c.name: unit for c in seen if (unit := _unit(c.name)) and c.name in _used(guess)}
    if units:
        guess.add("units", units, "by the names; kept with the data")
    return guess


def _useless(column: Seen) -> str:
    """Why a column is no observation; "" if it may be one."""
    if column.kind == "empty":
        return "it is empty"
    if column.rows > 1 and column.different == 1:
        return "it never changes"
    if column.kind == "time":
        return "a second time"
    if column.kind == "text" and (
        column.different > LEVELS or 2 * column.different > max(column.rows, 4)
    ):
        return "text with too many different values for a category"
    counts = column.whole and column.rising and column.different == column.rows > 2
    if counts and (column.called("index") or not column.name):
        return "it counts the rows"
    return ""


def _unit(name: str) -> str:
    if found := re.search(r"[\[(]\s*([^\])]{1,12}?)\s*[\])]\s*$", name):
        return found[1]
    last = name.rsplit("_", 1)[-1] if "_" in name else ""
    return next((unit for unit in UNITS.split() if unit.casefold() == last.casefold()), "")


def _used(guess: Guess) -> set[str]:
    values = guess.values
    return {*values["observation"], *values["action"], values["reward"]}


# --- What all rows say --------------------------------------------------------------------------


def _try_out(path: Path, guess: Guess) -> None:
    """Read the log by the guess: the levels of categories, the range of actions, gaps."""
    values = guess.values
    if not values["action"] or not values["reward"] or not values["observation"]:
        return
    keys = ("episode", "time", "terminal", "truncated", "valid")
    single: dict[str, Any] = {key: values.get(key) for key in keys}
    columns = Columns(
        tuple(values["observation"]),
        tuple(values["action"]),
        values["reward"],
        tuple(values.get("next_observation", ())) or None,
        **single,
        categories=dict.fromkeys(values.get("categories", ()), ()),
        time_format=values.get("time_format"),
        separator=values.get("separator"),
        decimal=values.get("decimal"),
        origin=str(beside(path)[0]),
    )
    from icql.data.formats.csv_log import read_csv
    from icql.data.formats.parquet_log import read_parquet

    read = read_parquet if path.suffix.lower() == ".parquet" else read_csv
    with scratch(Path(gettempdir())) as room:
        try:
            source = read(path, None, Room(room.folder), columns)
        except UserError as error:
            guess.left_out["(not looked at)"] = f"the rows could not be read so: {error.what}"
            return
        _by_rows(guess, source)


def _by_rows(guess: Guess, source: Source) -> None:
    categories = source.info.signals.categories
    if categories:
        levels = {name: sorted(found, key=by_number) for name, found in categories.items()}
        guess.add("categories", levels, "text, or codes: one number for each level, in this order")
    guess.gaps = dict(source.gaps)
    actions, names = source.steps.actions, source.info.signals.action
    low, high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for rows in blocks(*actions.shape):
        part = np.where(np.isfinite(actions[rows]), actions[rows], np.nan)
        low, high = np.fmin(low, np.fmin.reduce(part)), np.fmax(high, np.fmax.reduce(part))
    bounds = {
        name: [_plain(low[i]), _plain(high[i])]
        for i, name in enumerate(names)
        if max(abs(low[i]), abs(high[i])) > 1 and low[i] < high[i]
    }
    if bounds:
        why = "the range that was seen: put the limits of the plant; mapped to [-1, 1]"
        guess.add("action_bounds", bounds, why)
    for fault in source.faults:
        if fault.severity == "error" and fault.rule != "gaps":
            guess.left_out[f"(to repair) {fault.column or fault.rule}"] = fault.what


def _plain(value: Any) -> float | int:
    """A number as people write it: the shortest that is the same in float32."""
    short = float(str(np.float32(value)))
    return int(short) if short == int(short) and abs(short) < 2**53 else short


# --- TOML ---------------------------------------------------------------------------------------


def toml(value: Any) -> str:
    """A value as TOML has it: text, numbers, lists and tables of them."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(k)} = {toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


def _one_line(line: str) -> str:
    """A line whose comment cannot end it."""
    return "".join(x if x.isprintable() or x == "\t" else "?" for x in line)
