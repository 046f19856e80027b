"""From any source to a file or dataset of another kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from icql.data.d4rl import write_d4rl
from icql.data.minari_source import write_minari
from icql.data.npz import write_npz
from icql.data.room import Room, scratch
from icql.data.sources import Source, load_steps
from icql.data.store import describe_store, new_store, open_store
from icql.data.tables import write_parquet
from icql.data.tasks import Task
from icql.data.transitions import Steps, Transitions
from icql.data.validation import inspect
from icql.errors import UserError


def write_dataset(source: Source, destination: str, *, force: bool = False) -> None:
    """Write the steps of `source` to `destination`, all or nothing.

    Args:
        source: what `load_steps` gave.
        destination: a file `.npz`, `.hdf5` or `.h5` (D4RL's layout) or `.parquet`, or
            `minari:ID`.
        force: replace what is there.

    Raises:
        UserError: if the kind is unknown, something is there already, or the format cannot hold
            the steps.
    """
    if destination.startswith("minari:"):
        name = destination.removeprefix("minari:")
        write_minari(name, without_last_rule(source.steps), source.task, force=force)
        return
    path = Path(destination).expanduser()
    if path.suffix.lower() not in _WRITERS:
        raise UserError(
            "data of this kind cannot be written.",
            where=destination,
            fix=f"Known kinds: {', '.join(_WRITERS)}, .icql (a store), and minari:ID.",
        )
    if path.is_dir():
        raise UserError("it is a folder.", where=destination, fix="Name a file.")
    if path.exists() and not force:
        raise UserError("it exists already.", where=destination, fix="Add --force to replace it.")
    try:
        _WRITERS[path.suffix.lower()](path, source.steps, source.task)
    except OSError as error:
        raise UserError(f"it cannot be written ({error.strerror}).", where=destination) from error


def make_store(
    name_or_path: str | Path,
    destination: str | Path,
    *,
    task: str | None = None,
    columns: str | Path | None = None,
    force: bool = False,
    memory: int | None = None,
) -> Transitions:
    """Turn any dataset into a store (`icql.data.store`), block by block, all or nothing.

    The log is validated on the way. Its steps lie on disk meanwhile, beside the destination, in
    about the room that the store itself takes.

    Args:
        name_or_path: what `load_steps` takes.
        destination: the store to make, `NAME.icql`.
        task: the task, where the data does not tell.
        columns: the mapping of a CSV or Parquet log.
        force: replace a store that is there.
        memory: bytes to get along with; by default half of what the machine has.

    Returns:
        The transitions of the new store, mapped.

    Raises:
        UserError: if the data cannot be read or has errors, or the memory does not suffice.
    """
    path = Path(destination).expanduser()
    with new_store(path, force=force) as folder, scratch(folder.parent, memory) as room:
        source = load_steps(name_or_path, task=task, columns=columns, room=room)
        findings = inspect(source.steps, source=source.info.source, task=source.task)
        findings.stop(str(name_or_path))
        data = source.transitions(Room(folder, memory))
        describe_store(folder, data, findings.warnings)
    return open_store(path)


def without_last_rule(steps: Steps) -> Steps:
    """The same transitions without the rule about the log's very last row (`Steps`).

    A terminal last row that is no transition (D4RL's rule, or no recorded successor) is marked as
    cut, for formats that would otherwise make it one.
    """
    unrecorded = steps.next_observations is None
    if steps.terminals[-1] and (steps.drop_last or unrecorded):
        terminals, timeouts = steps.terminals.copy(), steps.timeouts.copy()
        terminals[-1], timeouts[-1] = False, True
        steps = replace(steps, terminals=terminals, timeouts=timeouts)
    return replace(steps, drop_last=False)


def _write_npz(path: Path, steps: Steps, task: Task | None) -> None:
    write_npz(path, steps, {} if task is None else {"task": task.name})


def _write_hdf5(path: Path, steps: Steps, task: Task | None) -> None:
    write_d4rl(path, steps)


def _write_parquet(path: Path, steps: Steps, task: Task | None) -> None:
    write_parquet(path, without_last_rule(steps), None if task is None else task.name)


_WRITERS: dict[str, Callable[[Path, Steps, Task | None], None]] = {
    ".npz": _write_npz,
    ".hdf5": _write_hdf5,
    ".h5": _write_hdf5,
    ".parquet": _write_parquet,
}
