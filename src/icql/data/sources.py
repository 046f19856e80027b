"""From a name or a file to transitions: the one door through which data comes in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from icql.data.blocks import blocks
from icql.data.columns import Columns
from icql.data.d4rl import read_d4rl
from icql.data.minari_source import read_minari
from icql.data.npz import read_npz
from icql.data.room import IN_MEMORY, Room
from icql.data.store import is_store, open_store
from icql.data.tables import read_table
from icql.data.tasks import Task, find_task, get_task, list_tasks
from icql.data.transitions import ACTION_CLIP, DataInfo, Steps, Transitions
from icql.errors import UserError, nearest

D4RL_DIR = "ICQL_D4RL_DIR"  # environment variable: the folder with D4RL's HDF5 files
EMBEDDED = ("hopper-mini",)  # shipped inside the package
_MINARI_ID = re.compile(r"[\w.-]+(/[\w.-]+)+-v\d+")


@dataclass(frozen=True)
class Source:
    """Steps as they were logged, before they are made transitions."""

    steps: Steps
    info: DataInfo
    task: Task | None = None

    def transitions(self, room: Room = IN_MEMORY) -> Transitions:
        """The transitions (s, a, r, s', a') of these steps, put into `room`."""
        actions = self.steps.actions
        if self.task is not None:
            unit = self.task.unit_actions
        else:
            # Bounds of an unknown task are unknown: only actions that lie in ±1 anyway are clipped.
            unit = not any((abs(actions[rows]) > 1).any() for rows in blocks(*actions.shape))
        clip = ACTION_CLIP if unit else None
        return Transitions.from_steps(
            self.steps, self.info, task=self.task, action_clip=clip, room=room
        )


def load_dataset(
    name_or_path: str | Path,
    *,
    task: str | None = None,
    columns: Columns | str | Path | None = None,
) -> Transitions:
    """Load transitions (s, a, r, s', a') from wherever `name_or_path` points.

    Args:
        name_or_path: a dataset shipped with the package (`hopper-mini`), a file (`.hdf5`, `.h5`,
            `.npz`, `.csv`, `.parquet`), a store (`.icql`, whose arrays stay on disk and are mapped
            into memory), the folder of a Minari dataset, a Minari id (`minari:ID`, or an id with a
            namespace), or a D4RL name, whose file is looked for in `$ICQL_D4RL_DIR` and among the
            fetched ones (`icql data fetch`).
        task: name in the task table; by default what the file says or its name tells.
        columns: which columns of a CSV or Parquet log are what, or the file that says so; by
            default the mapping beside the log (`icql.data.columns`).

    Raises:
        UserError: if there is no such data, or something is wrong with it.
    """
    if is_store(name_or_path):
        return open_store(name_or_path, task=task)
    return load_steps(name_or_path, task=task, columns=columns).transitions()


def load_steps(
    name_or_path: str | Path,
    *,
    task: str | None = None,
    columns: Columns | str | Path | None = None,
    room: Room = IN_MEMORY,
) -> Source:
    """Load steps as they were logged into `room`; takes what `load_dataset` takes, less stores."""
    name = str(name_or_path)
    if is_store(name):
        raise UserError(
            "a store holds transitions, not the log they come from.",
            where=name,
            fix="Name the file it was made of.",
        )
    chosen = None if task is None else get_task(task)
    path = Path(name).expanduser()
    if columns is not None and path.suffix.lower() not in TABLES:
        raise UserError(
            "columns can only be chosen in a CSV or Parquet log.", where=name, fix="Leave it out."
        )
    if name.startswith("minari:"):
        return _minari(name.removeprefix("minari:"), chosen, room)
    if name in EMBEDDED:
        resource = resources.files("icql.data").joinpath("embedded", f"{name}.npz")
        with resources.as_file(resource) as embedded:
            return _file(embedded, chosen or get_task(name), room)
    if name in list_tasks():
        return _file(_d4rl_file(name), chosen or get_task(name), room)
    if path.suffix.lower() in TABLES:
        return _table(path, chosen, columns, room)
    if path.suffix.lower() in _READERS:
        return _file(path, chosen, room)
    if path.exists() and not (path / "data").is_dir():
        raise UserError(
            "data of this kind cannot be read.",
            where=name,
            fix=f"Known kinds: files {', '.join((*_READERS, *TABLES))}, stores (.icql), and "
            "folders of Minari datasets.",
        )
    if path.exists() or _MINARI_ID.fullmatch(name):
        return _minari(name, chosen, room)
    raise UserError(f"there is no dataset or file {name!r}.", fix=nearest(name, list_tasks()))


def find_d4rl(name: str) -> Path | None:
    """The file of a D4RL dataset, in `$ICQL_D4RL_DIR` or among the fetched ones; None if none."""
    from icql.data.download import cached_file

    folder = os.environ.get(D4RL_DIR)
    places = [Path(folder).expanduser() / f"{name}.hdf5"] if folder else []
    return next((path for path in (*places, cached_file(name)) if path.is_file()), None)


def _read_hdf5(path: Path, task: Task | None, room: Room) -> tuple[Steps, Task | None]:
    task = task or find_task(path.name)
    return read_d4rl(path, task, room), task


def _read_npz(path: Path, task: Task | None, room: Room) -> tuple[Steps, Task | None]:
    steps, meta = read_npz(path, room)
    if task is None and "task" in meta:
        task = get_task(str(meta["task"]))
    return steps, task or find_task(path.name)


TABLES = (".csv", ".parquet")
_READERS: dict[str, Callable[[Path, Task | None, Room], tuple[Steps, Task | None]]] = {
    ".hdf5": _read_hdf5,
    ".h5": _read_hdf5,
    ".npz": _read_npz,
}


def _file(path: Path, task: Task | None, room: Room) -> Source:
    steps, task = _READERS[path.suffix.lower()](path, task, room)
    return Source(steps, DataInfo(path.stem, source=str(path)), task)


def _table(
    path: Path, task: Task | None, columns: Columns | str | Path | None, room: Room
) -> Source:
    log = read_table(path, columns, room)
    if task is None and log.task is not None:
        task = get_task(log.task)
    info = DataInfo(path.stem, source=str(path), warnings=log.warnings)
    return Source(log.steps, info, task or find_task(path.name))


def _minari(name: str, task: Task | None, room: Room) -> Source:
    return Source(read_minari(name, room), DataInfo(name, source=f"minari:{name}"), task)


def _d4rl_file(name: str) -> Path:
    from icql.data.download import FILES

    path = find_d4rl(name)
    if path is None:
        folder = os.environ.get(D4RL_DIR)
        looked = (
            f"{Path(folder) / name}.hdf5 does not exist" if folder else f"{D4RL_DIR} is not set"
        )
        fetch = f"Fetch it with `icql data fetch {name}`, set" if name in FILES else "Set"
        raise UserError(
            f"the file of dataset {name!r} was not found: {looked}, and it was not fetched.",
            fix=f"{fetch} {D4RL_DIR} to the folder that holds {name}.hdf5, or give the path of a "
            "file.",
        )
    return path
