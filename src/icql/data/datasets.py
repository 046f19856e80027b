"""From a name or a file to transitions, findings or another file: the door for all data.

A new source is one file in `icql.data.formats` and one line in `FORMATS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from icql.data.arrays import IN_MEMORY, Room, scratch
from icql.data.download import cached_file, check_fetched
from icql.data.faults import LogError
from icql.data.formats.bounds import with_bounds
from icql.data.formats.csv_log import read_csv
from icql.data.formats.d4rl import read_d4rl, write_d4rl
from icql.data.formats.mapping import Given, files_of, read_columns
from icql.data.formats.minari_source import PREFIX, is_minari, read_minari, write_minari
from icql.data.formats.npz import read_source, write_source
from icql.data.formats.parquet_log import read_parquet, write_parquet
from icql.data.formats.store import check_free, open_store, verify_store, write_store
from icql.data.tasks import get_task, is_task, list_tasks
from icql.data.transitions import Source, Transitions
from icql.data.validation.findings import Finding, Findings
from icql.data.validation.rules import validate
from icql.errors import UserError, nearest
from icql.files import from_home

D4RL_DIR = "ICQL_D4RL_DIR"  # environment variable: the folder with D4RL's HDF5 files
EMBEDDED = ("hopper-mini",)  # shipped inside the package
Looked = tuple[Findings, Source | None]  # what was found, and the log it was found in


@dataclass(frozen=True)
class Format:
    """One kind of file or folder."""

    suffixes: tuple[str, ...]
    read: Callable[..., Source | Transitions]  # (path, task, room), where it has them (…, columns)
    write: Callable[..., None] | None = None  # (path, source, force=…)
    columns: bool = False  # whether one says which columns are what


class Meant(TypedDict, total=False):
    """What data is, where neither it nor its name says so: as in `load_dataset`."""

    task: str | None
    columns: Given


def _file(write: Callable[[Path, Source], None]) -> Callable[..., None]:
    """A writer of one file that refuses what is there and names what the system refuses."""

    def written(path: Path, source: Source, *, force: bool) -> None:
        if path.is_dir():
            raise UserError("it is a folder.", where=str(path), fix="Name a file.")
        if path.exists() and not force:
            raise UserError("it exists already.", where=str(path), fix="Add --force to replace it.")
        try:
            write(path, source)
        except OSError as error:
            raise UserError(f"it cannot be written ({error.strerror}).", where=str(path)) from error

    return written


STORE = Format((".icql",), open_store, write_store)
MINARI = Format((), read_minari, write_minari)  # by id or folder
FORMATS = (
    Format((".hdf5", ".h5"), read_d4rl, _file(write_d4rl)),
    Format((".npz",), read_source, _file(write_source)),
    Format((".csv",), read_csv, columns=True),
    Format((".parquet",), read_parquet, _file(write_parquet), columns=True),
    STORE,
    MINARI,
)


def suffixes(*, written: bool = False) -> list[str]:
    """The suffixes of all that can be read, or `written`."""
    return [s for form in FORMATS if form.write or not written for s in form.suffixes]


def mapped_suffixes() -> list[str]:
    """The suffixes of logs whose columns a mapping names."""
    return [suffix for form in FORMATS if form.columns for suffix in form.suffixes]


def kinds(*, written: bool = False) -> str:
    """The kinds of data that can be read, or `written`, for messages."""
    return f"{', '.join(suffixes(written=written))} and {PREFIX}ID"


def is_store(name: str | Path) -> bool:
    """Whether a name is that of a store, there or not."""
    return _format(str(name)) is STORE


def load_dataset(
    name_or_path: str | Path, *, task: str | None = None, columns: Given = None
) -> Transitions:
    """Load transitions (s, a, r, s', a') from wherever `name_or_path` points.

    Args:
        name_or_path: a dataset shipped with the package (`hopper-mini`), a file (`.hdf5`, `.h5`,
            `.npz`, `.csv`, `.parquet`; a pattern such as `logs/*.csv`, or a mapping that names its
            `files`, for several), a store (`.icql`, whose arrays stay on disk and are mapped
            into memory), the folder of a Minari dataset, a Minari id (`minari:ID`, or an id with a
            namespace), or a D4RL name, whose file is looked for in `$ICQL_D4RL_DIR` and among the
            fetched ones (`icql data fetch`).
        task: name in the task table; by default what the file says or its name tells.
        columns: which columns of a CSV or Parquet log are what, or the file that says so; by
            default the mapping beside the log (`icql.data.formats.mapping`). Of other logs, the
            file with their `action_bounds` (`icql.data.formats.bounds`).

    Raises:
        UserError: if there is no such data, or something is wrong with it.
    """
    found = _open(name_or_path, task=task, columns=columns)
    return found if isinstance(found, Transitions) else found.transitions()  # if it is sound


def load_steps(name_or_path: str | Path, room: Room = IN_MEMORY, **meant: Unpack[Meant]) -> Source:
    """Load steps as they were logged into `room`; takes what `load_dataset` takes, less stores."""
    found = _open(name_or_path, room, **meant)
    if isinstance(found, Transitions):
        raise UserError(
            "a store holds transitions, not the log they come from.",
            where=str(name_or_path),
            fix="Name the file it was made of.",
        )
    return found.sound()


def examine(name_or_path: str | Path, **meant: Unpack[Meant]) -> Looked:
    """Load and validate whatever `load_dataset` would load: what was found, and the log.

    A store has the findings of the log that it was made of, and no log any more.

    Raises:
        UserError: if the data cannot be read.
    """
    found = _open(name_or_path, **meant)
    if isinstance(found, Transitions):
        return Findings(warnings=verify_store(found), transitions=found), None
    return validate(found), found


def validate_dataset(name_or_path: str | Path, **meant: Unpack[Meant]) -> Looked:
    """As `examine`, but data that cannot be read has one finding, mostly `unreadable`."""
    try:
        return examine(name_or_path, **meant)
    except LogError as error:
        return Findings(errors=tuple(map(Finding.of, error.faults))), None
    except UserError as error:
        # The readers say the row and the column in words.
        row = re.search(r"\brow (\d+)", error.what)
        column = re.search(r"`(\w+)`|column '([^']+)'", error.what)
        unreadable = Finding(
            "non_finite" if "not a finite number" in error.what else "unreadable",
            error.where or str(name_or_path),
            int(row[1]) if row else None,
            (column[1] or column[2]) if column else None,
            f"{error.what} {error.fix}".strip(),
        )
        return Findings(errors=(unreadable,)), None


def write_dataset(source: Source, destination: str, *, force: bool = False) -> None:
    """Write what `load_steps` gave to a file, store or `minari:ID`, all or nothing.

    Raises:
        UserError: if the kind is unknown, the format cannot hold the steps, or something is there
            already that `force` does not say to replace.
    """
    form = _format(destination)
    if form is None or form.write is None:
        raise UserError(
            "data of this kind cannot be written.",
            where=destination,
            fix=f"Known kinds: {kinds(written=True)}.",
        )
    place = destination if form is MINARI else from_home(destination)
    form.write(place, source, force=force)


def make_store(
    name_or_path: str | Path,
    destination: str | Path,
    *,
    force: bool = False,
    memory: int | None = None,
    **meant: Unpack[Meant],
) -> Transitions:
    """Turn any log into a store (`icql.data.formats.store`), block by block, all or nothing.

    The log is validated on the way. Its steps lie on disk meanwhile, beside the destination, in
    about the room that the store itself takes.

    Args:
        name_or_path: what `load_steps` takes.
        destination: the store to make, `NAME.icql`.
        force: replace a store that is there.
        memory: bytes to get along with; by default half of what the machine has.
        **meant: `task` and `columns` as in `load_dataset`.

    Raises:
        UserError: if the data cannot be read or has errors, or the memory does not suffice.
    """
    path = from_home(destination)
    check_free(path, force=force)
    with scratch(path.parent, memory) as room:
        write_store(path, load_steps(name_or_path, room, **meant), force=force)
    return open_store(path)


def convert(
    name_or_path: str | Path,
    destination: str,
    *,
    force: bool = False,
    memory: int | None = None,
    **meant: Unpack[Meant],
) -> dict[str, Any]:
    """Write a dataset in another format, read it again and compare; arguments as in `make_store`.

    Returns:
        What was written: its task, the number and hash of its transitions, whether they are
        `identical` to those of the source, and warnings.

    Raises:
        UserError: if it cannot be read or written, or `memory` is given for anything but a store.
    """
    if is_store(destination):
        data = make_store(name_or_path, destination, force=force, memory=memory, **meant)
        expected, warnings = data, [finding.message for finding in verify_store(data)]
    elif memory is not None:
        raise UserError("only stores (.icql) are made with a budget.", where="--memory")
    else:
        source = load_steps(name_or_path, **meant)
        expected = source.transitions()
        warnings = list(expected.info.warnings)
        write_dataset(source, destination, force=force)
        data = load_dataset(destination, task=source.task.name if source.task else None)
    identical = data.content_hash() == expected.content_hash()
    if not identical:
        warnings.append(
            f"{destination} gives {len(data):,} transitions instead of {len(expected):,}: "
            "its format has other rules at the end of the data."
        )
    return {
        "source": str(name_or_path),
        "destination": destination,
        "task": data.info.task,
        "transitions": len(data),
        "data_hash": data.content_hash(),
        "identical": identical,
        "warnings": warnings,
    }


def find_d4rl(name: str) -> Path | None:
    """The file of a D4RL dataset, in `$ICQL_D4RL_DIR` or among the fetched ones; None if none."""
    folder = os.environ.get(D4RL_DIR)
    places = [from_home(folder) / f"{name}.hdf5"] if folder else []
    return next((path for path in (*places, cached_file(name)) if path.is_file()), None)


def _format(name: str) -> Format | None:
    """The format that a name's prefix or suffix speaks of, whether or not anything is there."""
    suffix = Path(name).suffix.lower()
    fitting = (form for form in FORMATS if suffix in form.suffixes)
    return MINARI if name.startswith(PREFIX) else next(fitting, None)


def _open(
    name_or_path: str | Path, room: Room = IN_MEMORY, **meant: Unpack[Meant]
) -> Source | Transitions:
    """Find the data that is meant and read it."""
    name, task, columns = str(name_or_path), meant.get("task"), meant.get("columns")
    path, form = from_home(name), _format(name)
    chosen = None if task is None else get_task(task)
    if path.suffix.lower() == ".toml" and path.is_file():
        if columns is not None:
            raise UserError("it is a mapping itself.", where=name, fix="Leave --columns out.")
        columns = read_columns(path)
        form = _format(files_of(path, columns)[0].name)
    if form is None and is_task(name):
        path = _own_file(name)
        form, chosen = _format(path.name), chosen or get_task(name)
    elif form is None and is_minari(name):
        form = MINARI
    if columns is not None and form is STORE:
        raise UserError("a store knows its columns already.", where=name, fix="Leave it out.")
    if form is None and path.exists():
        raise UserError(
            "data of this kind cannot be read.",
            where=name,
            fix=f"Known kinds: {kinds()}, and folders of Minari datasets.",
        )
    if form is None:
        raise UserError(f"there is no dataset or file {name!r}.", fix=nearest(name, list_tasks()))
    if form.columns:
        return form.read(path, chosen, room, columns)
    found = form.read(name if form is MINARI else path, chosen, room)
    beside = path.with_name(f"{path.name}.toml")
    bounds = columns if columns is not None else beside if beside.is_file() else None
    if bounds is None or isinstance(found, Transitions):
        return found
    return with_bounds(found, bounds, room)


def _own_file(name: str) -> Path:
    """The file of a task's own dataset."""
    if name in EMBEDDED:
        return Path(__file__).with_name("embedded") / f"{name}.npz"
    if (path := find_d4rl(name)) is not None:
        if path == cached_file(name):
            check_fetched(name)
        return path
    folder = os.environ.get(D4RL_DIR)
    looked = f"{Path(folder) / name}.hdf5 does not exist" if folder else f"{D4RL_DIR} is not set"
    known = get_task(name).d4rl_file is not None
    fetch = f"Fetch it with `icql data fetch {name}`, set" if known else "Set"
    raise UserError(
        f"the file of dataset {name!r} was not found: {looked}, and it was not fetched.",
        fix=f"{fetch} {D4RL_DIR} to the folder that holds {name}.hdf5, or give the path of a file.",
    )
