"""Which columns of a log are what: the mapping file of CSV and Parquet logs.

A mapping is a TOML file beside the log (`log.csv.toml` or `log.toml`), or given by hand:

    observation = ["angle", "speed"]  # names, or one pattern such as "obs_*"
    action = "act_*"
    reward = "reward"
    episode = "flight"                # without it, `terminal` and `truncated` cut the log
    time = "t"                        # without it, rows count in the order of the file
    terminal = "crashed"
    truncated = "timed_out"
    next_observation = "next_*"       # the recorded successor, where there is one
    valid = "ok"                      # 0 in rows to leave out
    action_bounds = [-2.0, 2.0]       # or [[low, …], [high, …]]: mapped linearly to [-1, 1]
    task = "hopper-medium-v2"
    delimiter = ";"

Only `observation`, `action` and `reward` are needed. A log without a mapping must use the names
that are the defaults of `Columns`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from icql.data.arrays import Floats
from icql.errors import UserError, nearest

REQUIRED = ("observation", "action", "reward")
VECTORS = ("observation", "action", "next_observation")  # several columns, or a pattern
FLAGS = ("terminal", "truncated", "valid")
KEYS = (*VECTORS, "reward", *FLAGS, "episode", "time")

Names = tuple[str, ...]
Bounds = tuple[float | tuple[float, ...], float | tuple[float, ...]]


@dataclass(frozen=True)
class Columns:
    """A mapping; the defaults are the names that need no mapping file."""

    observation: str | Names = "observation_*"
    action: str | Names = "action_*"
    reward: str = "reward"
    next_observation: str | Names | None = "next_observation_*"
    episode: str | None = "episode"
    time: str | None = "step"
    terminal: str | None = "terminal"
    truncated: str | None = "truncated"
    valid: str | None = "valid"
    action_bounds: Bounds | None = None  # low, high: one number for all actions, or one for each
    task: str | None = None  # name in the task table
    delimiter: str = ","  # of CSV
    origin: str = ""  # the mapping file, for messages; "" means these are the defaults

    def names(self, *keys: str) -> Names:
        """The columns of these meanings."""
        values = (getattr(self, key) for key in keys)
        named = ((value,) if isinstance(value, str) else value or () for value in values)
        return tuple(dict.fromkeys(name for names in named for name in names))

    def bounds(self, actions: int) -> tuple[Floats, Floats] | None:
        """Lowest and highest value (act,) of each of the actions, where given."""
        if self.action_bounds is None:
            return None
        where = f"{self.origin}: action_bounds"
        low, high = (np.atleast_1d(np.asarray(b, np.float32)) for b in self.action_bounds)
        if {len(low), len(high)} - {1, actions}:
            raise UserError(
                f"gives {len(low)} low and {len(high)} high values for {actions} actions.",
                where=where,
            )
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise UserError("each low value must be below its high value.", where=where)
        return np.broadcast_to(low, actions), np.broadcast_to(high, actions)


Given = Columns | str | Path | None  # a mapping or its file; None: as `columns_of` finds it


def columns_of(path: Path, given: Given) -> Columns:
    """The mapping of a log: the one given, the one that lies beside it, or the default names."""
    if isinstance(given, Columns):
        return given
    beside = (path.with_name(f"{path.name}.toml"), path.with_suffix(".toml"))
    file = given or next((file for file in beside if file.is_file()), None)
    return Columns() if file is None else read_columns(file)


def read_columns(path: str | Path) -> Columns:
    """Read a mapping file (the format at the top of this module); a fault is named by its key."""
    source = str(path)
    try:
        table = tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        raise UserError(f"it cannot be read ({error.strerror}).", where=source) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"it is not TOML ({error}).", where=source) from error
    known = [f.name for f in fields(Columns) if f.name != "origin"]
    for key in table:
        if key not in known:
            raise UserError(f"there is no setting {key!r}.", where=source, fix=nearest(key, known))
    for key in REQUIRED:
        if key not in table:
            raise UserError(f"`{key}` is missing.", where=source, fix=f'Add: {key} = "COLUMN".')
    given: dict[str, Any] = dict.fromkeys(KEYS)
    given |= {key: _value(key, value, source) for key, value in table.items()}
    return Columns(**given, origin=source)


def choose(columns: Columns, header: Sequence[str], source: str) -> Columns:
    """The mapping for a file with this `header`: every pattern replaced by what it stands for.

    Numbered columns that a pattern stands for are ordered by number (x_2 before x_10).

    Raises:
        UserError: if a column is missing (with the nearest name), or has two meanings.
    """
    repeated = [name for i, name in enumerate(header) if name in header[:i]]
    if repeated:
        raise UserError(f"two columns are called {repeated[0]!r}.", where=source)
    found = {key: _found(columns, key, header, source) for key in KEYS}
    where = columns.origin or source
    meanings = [name for key in (*VECTORS, "reward", *FLAGS) for name in found[key]]
    for i, name in enumerate(meanings):
        if name in meanings[:i]:
            raise UserError(f"column {name!r} is given two meanings.", where=where)
    here, following = len(found["observation"]), len(found["next_observation"])
    if following not in (0, here):
        raise UserError(
            f"there are {here} columns of the observation but {following} of the next observation.",
            where=where,
        )
    single = {key: (found[key] or (None,))[0] for key in KEYS if key not in VECTORS}
    return replace(columns, **found | single)  # type: ignore[arg-type]


def _value(key: str, value: Any, source: str) -> Any:
    """A value of the mapping file in the type that `Columns` has for it."""
    where = f"{source}: {key}"
    if key == "action_bounds":
        match value:
            case [int() | float(), int() | float()]:
                return tuple(value)
            case [[*low], [*high]] if all(type(x) in (int, float) for x in (*low, *high)):
                return tuple(low), tuple(high)
        raise UserError(
            "must be [low, high], each a number or a list with one number per action.", where=where
        )
    if key in VECTORS and isinstance(value, list):
        if not value or not all(isinstance(name, str) for name in value):
            raise UserError("must list names of columns.", where=where)
        return tuple(value)
    if not isinstance(value, str):
        raise UserError(f"must be text, not {value!r}.", where=where)
    if key == "delimiter" and (len(value) != 1 or not value.isascii() or value in '"\r\n'):
        raise UserError(f"must be one character, not {value!r}.", where=where)
    return value


def _found(columns: Columns, key: str, header: Sequence[str], source: str) -> Names:
    """The columns of one meaning, all of them there; a default name may be missing."""
    wanted, names = getattr(columns, key), columns.names(key)
    if isinstance(wanted, str) and wanted not in header:
        fitting = [name for name in header if key in VECTORS and fnmatchcase(name, wanted)]
        if not fitting and not columns.origin and key not in REQUIRED:
            return ()
        names = tuple(sorted(fitting, key=_by_number)) or names
    for name in names:
        if name not in header:
            said = f"which {columns.origin} names as `{key}`" if columns.origin else f"the {key}"
            fix = nearest(name, [*header])
            if not columns.origin:
                fix = f"Say which columns are what in {source}.toml or with --columns. {fix}"
            raise UserError(f"it has no column {name!r}, {said}.", where=source, fix=fix)
    return names


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
