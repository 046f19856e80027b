"""Which columns of a log are what: the mapping file of CSV and Parquet logs.

A mapping is a small TOML file beside the log (`log.csv.toml` or `log.toml`), given by hand, or the
dataset itself, where it names `files`. `docs/mapping.md` has every key with an example, and
`icql data init LOG` writes one to be edited. Only `observation`, `action` and `reward` are needed.
A log without a mapping must use the names that are the defaults of `Columns`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from icql.data.arrays import Floats
from icql.data.signals import Names
from icql.errors import UserError, nearest
from icql.files import read_small

REQUIRED = ("observation", "action", "reward")
VECTORS = ("observation", "action", "next_observation")  # several columns, or a pattern
FLAGS = ("terminal", "truncated", "valid")
KEYS = (*VECTORS, "reward", *FLAGS, "episode", "time")
REFUSE, DROP, HOLD, INTERPOLATE = GAPS = ("refuse", "drop", "hold", "interpolate")
FOLDER_MAPPING = "columns.toml"  # of the files that a pattern such as logs/*.csv names

# low, high: one number for all actions or one for each; or [low, high] by the action's name
Range = tuple[float, float]
Bounds = tuple[float | tuple[float, ...], float | tuple[float, ...]] | dict[str, Range]


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
    categories: Mapping[str, Names] = field(default_factory=dict)  # column → levels; (): find them
    flags: Mapping[str, Names] = field(default_factory=dict)  # column → its words for yes and no
    gaps: str | Mapping[str, str] = REFUSE  # one of GAPS, for all columns or by name
    missing: Names = ()  # what also stands for an empty cell of CSV
    action_bounds: Bounds | None = None
    units: Mapping[str, str] = field(default_factory=dict)  # column → unit
    time_format: str | None = None  # of times that are not ISO, as strptime reads them
    files: Names = ()  # patterns beside the mapping, where the mapping is the dataset
    separator: str | None = None  # of CSV; by default found
    decimal: str | None = None  # of CSV; by default found
    task: str | None = None  # name in the task table
    origin: str = ""  # the mapping file, for messages; "" means these are the defaults

    def names(self, *keys: str) -> Names:
        """The columns of these meanings."""
        values = (getattr(self, key) for key in keys)
        named = ((value,) if isinstance(value, str) else value or () for value in values)
        return tuple(dict.fromkeys(name for names in named for name in names))

    def gap_rule(self, name: str) -> str:
        """What happens to the gaps of a column."""
        if isinstance(self.gaps, str):
            dropped = self.gaps != REFUSE and name not in self.names("observation", "action")
            return DROP if dropped else self.gaps  # nobody can make up a reward
        return self.gaps.get(name, REFUSE)

    def bounds(self) -> tuple[Floats, Floats] | None:
        """Lowest and highest value (act,) of each of the actions, where given."""
        if self.action_bounds is None:
            return None
        where, actions = f"{self.origin}: action_bounds", self.names("action")
        given = self.action_bounds
        if isinstance(given, dict):  # what is not named is in [-1, 1] already
            pairs = [given.get(name, (-1.0, 1.0)) for name in actions]
            given = tuple(low for low, _ in pairs), tuple(high for _, high in pairs)
        low, high = (_float32(b, where) for b in given)
        if {len(low), len(high)} - {1, len(actions)}:
            raise UserError(
                f"gives {len(low)} low and {len(high)} high values for {len(actions)} actions.",
                where=where,
            )
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise UserError("each low value must be below its high value.", where=where)
        return np.broadcast_to(low, len(actions)), np.broadcast_to(high, len(actions))


Given = Columns | str | Path | None  # a mapping or its file; None: as `columns_of` finds it


def columns_of(path: Path, given: Given) -> Columns:
    """The mapping of a log: the one given, the one that lies beside it, or the default names."""
    if isinstance(given, Columns):
        return given
    file = given or next((file for file in beside(path) if file.is_file()), None)
    return Columns() if file is None else read_columns(file)


def beside(path: Path) -> tuple[Path, ...]:
    """Where the mapping of a log may lie; the first is where a new one is put."""
    if is_pattern(path):
        return (path.parent / FOLDER_MAPPING,)
    return path.with_name(f"{path.name}.toml"), path.with_suffix(".toml")


def paste_into(path: Path, columns: Columns) -> str:
    """The mapping file that lines are to be pasted into, there or not."""
    return columns.origin or str(beside(path)[0])


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files."""
    return any(sign in path.name for sign in "*?[") and not path.exists()


def files_of(path: Path, columns: Columns) -> list[Path]:
    """The files that a path stands for, in order of name: itself, those that fit its name as a
    pattern, or those that it names as a mapping.
    """
    named = path.suffix.lower() == ".toml"
    if not named and not is_pattern(path):
        return [path]
    patterns = columns.files if named else (path.name,)
    try:
        found = {f for pattern in patterns for f in path.parent.glob(pattern) if f.is_file()}
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"`files`: {error}.", where=str(path)) from error
    if not found:
        raise UserError(
            f"no file beside it is called {_listed(patterns)}."
            if patterns
            else "it names no `files`, so it is no dataset of its own.",
            where=str(path),
            fix='Add the log\'s files: files = ["*.csv"].' if named else "",
        )
    if len({f.suffix.lower() for f in found}) > 1:
        raise UserError("its `files` are of several kinds.", where=str(path))
    return sorted(found)


def same_columns(files: Sequence[Path], headers: Sequence[Sequence[str]]) -> None:
    """Refuse files of one log whose columns differ, and say how."""
    first = headers[0]
    for file, header in zip(files, headers, strict=True):
        missing = [name for name in first if name not in header]
        added = [name for name in header if name not in first]
        if missing or added:
            lacks = f"lacks {_listed(missing)}" if missing else ""
            has = f"has {_listed(added)} besides" if added else ""
            difference = " and ".join(filter(None, (lacks, has)))
            raise UserError(
                f"its columns are not those of {files[0]}: it {difference}.",
                where=str(file),
                fix="Give every file of a log the same columns, or name these files apart.",
            )


def read_columns(path: str | Path, needed: Names = REQUIRED) -> Columns:
    """Read a mapping file; a fault is named by its key."""
    source = str(path)
    try:
        table = tomllib.loads(read_small(Path(path)).decode())
    except OSError as error:
        raise UserError(f"it cannot be read ({error.strerror}).", where=source) from error
    except (ValueError, RecursionError) as error:  # no text, no TOML, nested without end
        raise UserError(f"it is not TOML ({error}).", where=source) from error
    known = [f.name for f in fields(Columns) if f.name != "origin"]
    for key in table:
        if key not in known:
            raise UserError(f"there is no setting {key!r}.", where=source, fix=nearest(key, known))
    for key in needed:
        if key not in table:
            raise UserError(f"`{key}` is missing.", where=source, fix=f'Add: {key} = "COLUMN".')
    given: dict[str, Any] = dict.fromkeys(KEYS)
    given |= {key: _value(key, value, f"{source}: {key}") for key, value in table.items()}
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
    chosen = replace(columns, **found | single)  # type: ignore[arg-type]
    _check_named(chosen)
    return chosen


def _check_named(columns: Columns) -> None:
    """Refuse settings of columns that are not what the setting is for."""
    used, acted = columns.names(*KEYS), columns.names("action")
    fitting: dict[str, tuple[Any, Names]] = {
        "categories": (columns.categories, columns.names("observation", "action")),
        "flags": (columns.flags, columns.names(*VECTORS, *FLAGS)),
        "units": (columns.units, used),
        "gaps": (columns.gaps, columns.names(*VECTORS, "reward")),
        "action_bounds": (columns.action_bounds, acted),
    }
    for key, (given, known) in fitting.items():
        for name in given if isinstance(given, Mapping) else ():
            if name not in known:
                where = f"{columns.origin}: {key}"
                raise UserError(
                    f"column {name!r} is in no place where this has a meaning.",
                    where=where,
                    fix=nearest(name, [*known]),
                )
    chosen = [name for name in acted if name in columns.categories]
    if chosen and (len(acted) > 1 or columns.action_bounds is not None):
        raise UserError(
            f"{chosen[0]!r} is a choice, which goes with no other action and has no bounds.",
            where=f"{columns.origin}: categories",
            fix="Name one column of choices as the action, or its combinations.",
        )
    for name, rule in columns.gaps.items() if isinstance(columns.gaps, Mapping) else ():
        if rule in (HOLD, INTERPOLATE) and name not in columns.names("observation", "action"):
            raise UserError(
                f"{name!r} cannot be made up.",
                where=f"{columns.origin}: gaps",
                fix=f'Give "{DROP}" or "{REFUSE}".',
            )


def _value(key: str, value: Any, where: str) -> Any:
    """A value of the mapping file in the type that `Columns` has for it."""
    if key in _TABLES:
        return _TABLES[key](value, where)
    if key in (*VECTORS, "missing", "files") and isinstance(value, list):
        if not value or not all(isinstance(name, str) for name in value):
            raise UserError("must list names of columns.", where=where)
        return tuple(value)
    if not isinstance(value, str):
        raise UserError(f"must be text, not {value!r}.", where=where)
    if not value:
        raise UserError("is empty.", where=where, fix="Name a column.")
    if key == "separator" and (len(value) != 1 or not value.isascii() or value in '"\r\n'):
        raise UserError(f"must be one character, not {value!r}.", where=where)
    if key == "decimal" and value not in (".", ","):
        raise UserError(f"must be '.' or ',', not {value!r}.", where=where)
    return (value,) if key in ("missing", "files") else value


def _float32(numbers: Any, where: str) -> Floats:
    try:
        with np.errstate(over="ignore"):  # infinite then, which is refused in words
            return np.atleast_1d(np.asarray(numbers, np.float32))
    except OverflowError:
        raise UserError("a number is too large.", where=where) from None


def _bounds(value: Any, where: str) -> Bounds:
    def number(*values: Any) -> bool:
        return all(type(x) in (int, float) for x in values)

    match value:
        case [low, high] if number(low, high):
            return low, high
        case [[*low], [*high]] if number(*low, *high):
            return tuple(low), tuple(high)
        case dict() if all(
            isinstance(pair, list) and len(pair) == 2 and number(*pair) for pair in value.values()
        ):
            return {name: (low, high) for name, (low, high) in value.items()}
    raise UserError(
        "must be [low, high], each a number or a list with one number per action, or a table such "
        "as {valve = [0, 100]}.",
        where=where,
    )


def _gaps(value: Any, where: str) -> str | dict[str, str]:
    for rule in value.values() if isinstance(value, dict) else (value,):
        if rule not in GAPS:
            raise UserError(
                f"must be one of {_listed(GAPS)}, or a table of them by column, not {rule!r}.",
                where=where,
            )
    return value


def _categories(value: Any, where: str) -> dict[str, Names]:
    """Column → levels, of which a list of columns has none yet."""
    levels = dict.fromkeys(value, ()) if _texts(value) else value
    if isinstance(levels, dict):
        for name, given in levels.items():
            if given and (not _texts(given) or len({*given}) < len(given)):
                raise UserError(f"the levels of {name!r} must be different texts.", where=where)
        return {name: tuple(given) for name, given in levels.items()}
    raise UserError(
        'must list columns, or be a table such as {mode = ["auto", "manual"]}.', where=where
    )


def _flags(value: Any, where: str) -> dict[str, Names]:
    if isinstance(value, dict) and all(
        _texts(words) and len({*words}) == len(words) == 2 for words in value.values()
    ):
        return {name: tuple(words) for name, words in value.items()}
    raise UserError(
        'must be a table of words for yes and no: {pump = ["ein", "aus"]}.', where=where
    )


def _units(value: Any, where: str) -> dict[str, str]:
    if isinstance(value, dict) and _texts([*value.values()]):
        return value
    raise UserError('must be a table such as {pressure = "Pa"}.', where=where)


_TABLES = {
    "action_bounds": _bounds,
    "gaps": _gaps,
    "categories": _categories,
    "flags": _flags,
    "units": _units,
}


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:8]) + (" …" if len(names) > 8 else "")


def _found(columns: Columns, key: str, header: Sequence[str], source: str) -> Names:
    """The columns of one meaning, all of them there; a default name may be missing."""
    wanted, names = getattr(columns, key), columns.names(key)
    if isinstance(wanted, str) and wanted not in header:
        fitting = [name for name in header if key in VECTORS and fnmatchcase(name, wanted)]
        if not fitting and not columns.origin and key not in REQUIRED:
            return ()
        names = tuple(sorted(fitting, key=by_number)) or names
    for name in names:
        if name not in header:
            said = f"which {columns.origin} names as `{key}`" if columns.origin else f"the {key}"
            fix = nearest(name, [*header])
            if not columns.origin:
                fix = _example(source, header)
            raise UserError(f"it has no column {name!r}, {said}.", where=source, fix=fix)
    return names


def _example(source: str, header: Sequence[str]) -> str:
    """How to write a mapping for a log that has none, with its own columns."""
    from icql.data.formats.guess import by_name

    place = beside(Path(source))[0]
    return (
        f"Say which columns are what in {place} or with --columns. 'icql data init {source}' "
        f"writes one that looks into the columns; by their names alone:\n{by_name(header)}"
    )


def by_number(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts names by the numbers in them: x_2 before x_10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
