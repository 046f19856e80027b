"""From a name or a file to transitions: the one door through which data comes in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from icql.data.d4rl import read_d4rl
from icql.data.minari_source import read_minari
from icql.data.npz import read_npz
from icql.data.tasks import Task, find_task, get_task, list_tasks
from icql.data.transitions import ACTION_CLIP, DataInfo, Steps, Transitions
from icql.errors import UserError, nearest

D4RL_DIR = "ICQL_D4RL_DIR"  # environment variable: the folder with D4RL's HDF5 files
EMBEDDED = ("hopper-mini",)  # shipped inside the package
_MINARI_ID = re.compile(r"[\w.-]+(/[\w.-]+)+-v\d+")


def load_dataset(name_or_path: str | Path, *, task: str | None = None) -> Transitions:
    """Load transitions (s, a, r, s', a') from wherever `name_or_path` points; see `read_steps`.

    Raises:
        UserError: if there is no such data, or something is wrong with it.
    """
    return _transitions(*read_steps(name_or_path, task=task))


def read_steps(
    name_or_path: str | Path, *, task: str | None = None
) -> tuple[Steps, DataInfo, Task | None]:
    """The logged steps as they are in the source, not yet checked for finite numbers.

    Args:
        name_or_path: a dataset shipped with the package (`hopper-mini`), a file (`.hdf5`, `.h5`,
            `.npz`), the folder of a Minari dataset, a Minari id (`minari:ID`, or an id with a
            namespace), or a D4RL name, whose file is looked for in `$ICQL_D4RL_DIR`.
        task: name in the task table; by default what the file says or its name tells.

    Returns:
        The steps, where they come from, and their task where it is known.

    Raises:
        UserError: if there is no such data, or its arrays cannot be read or do not fit together.
    """
    name = str(name_or_path)
    chosen = None if task is None else get_task(task)
    if name.startswith("minari:"):
        return _minari(name.removeprefix("minari:"), chosen)
    if name in EMBEDDED:
        resource = resources.files("icql.data").joinpath("embedded", f"{name}.npz")
        with resources.as_file(resource) as embedded:
            return _file(embedded, chosen or get_task(name))
    if name in list_tasks():
        return _file(_d4rl_file(name), chosen or get_task(name))
    path = Path(name).expanduser()
    if path.suffix.lower() in _READERS:
        return _file(path, chosen)
    if path.exists() and not (path / "data").is_dir():
        raise UserError(
            "data of this kind cannot be read.",
            where=name,
            fix=f"Known kinds: files {', '.join(_READERS)}, and folders of Minari datasets.",
        )
    if path.exists() or _MINARI_ID.fullmatch(name):
        return _minari(name, chosen)
    raise UserError(f"there is no dataset or file {name!r}.", fix=nearest(name, list_tasks()))


def _read_hdf5(path: Path, task: Task | None) -> tuple[Steps, Task | None]:
    task = task or find_task(path.name)
    return read_d4rl(path, task), task


def _read_npz(path: Path, task: Task | None) -> tuple[Steps, Task | None]:
    steps, meta = read_npz(path)
    if task is None and "task" in meta:
        task = get_task(str(meta["task"]))
    return steps, task or find_task(path.name)


_READERS: dict[str, Callable[[Path, Task | None], tuple[Steps, Task | None]]] = {
    ".hdf5": _read_hdf5,
    ".h5": _read_hdf5,
    ".npz": _read_npz,
}


def _file(path: Path, task: Task | None) -> tuple[Steps, DataInfo, Task | None]:
    steps, task = _READERS[path.suffix.lower()](path, task)
    return steps, DataInfo(path.stem, source=str(path)), task


def _minari(name: str, task: Task | None) -> tuple[Steps, DataInfo, Task | None]:
    return read_minari(name), DataInfo(name, source=f"minari:{name}"), task


def _transitions(steps: Steps, info: DataInfo, task: Task | None) -> Transitions:
    # Bounds of an unknown task are unknown: only actions that lie in ±1 anyway are clipped.
    unit = not (abs(steps.actions) > 1).any() if task is None else task.unit_actions
    return Transitions.from_steps(steps, info, task=task, action_clip=ACTION_CLIP if unit else None)


def _d4rl_file(name: str) -> Path:
    folder = os.environ.get(D4RL_DIR)
    path = Path(folder or ".").expanduser() / f"{name}.hdf5"
    if folder is None or not path.is_file():
        looked = f"{path} does not exist" if folder else f"{D4RL_DIR} is not set"
        raise UserError(
            f"the file of dataset {name!r} was not found: {looked}.",
            fix=f"Set {D4RL_DIR} to the folder that holds {name}.hdf5, or give the file's path.",
        )
    return path
