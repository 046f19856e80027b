"""D4RL's HDF5 files, read by D4RL's own rules so that the paper's transition counts come out."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import IN_MEMORY, Bools, Room, bytes_in_memory, check_kind, flags, reading
from icql.data.choices import are_choices, as_choices
from icql.data.signals import Signals
from icql.data.tasks import Task, find_task, get_task
from icql.data.transitions import DataInfo, Source, Steps
from icql.errors import UserError
from icql.files import atomic

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations", "valid")
OWN = "metadata/icql"  # JSON: the task's name and what the numbers are; D4RL's readers pass over it
MOST_NOTES = 2**24  # bytes
HASH = "sha256"  # its name in there
FLAGS = ("terminals", "timeouts", "valid")
# h5py reports damage as any of these, depending on where in the file it is.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def read_d4rl(path: str | Path, task: Task | None = None, room: Room = IN_MEMORY) -> Source:
    """Read a D4RL HDF5 file; groups such as `infos` are ignored, and `metadata` but for ours.

    D4RL's rules that differ from plain logs: a file without `timeouts` is cut at the task's
    episode limit, a step that is both terminal and timed out counts as timed out, and the very
    last row is no transition.
    """
    source, path = str(path), Path(path)
    arrays, own = _read_arrays(path, room)
    if task is None and own.get("task") is not None:
        task = get_task(str(own["task"]))
    task = task or find_task(path.name)
    signals = Signals.from_json(own.get("signals"), source)
    if are_choices(arrays["actions"]):
        arrays["actions"], signals = as_choices(arrays["actions"], room, source)
    terminals = flags("terminals", arrays["terminals"], source)
    if "timeouts" in arrays:
        timeouts = flags("timeouts", arrays["timeouts"], source)
    elif task is not None:
        timeouts = timeouts_by_limit(terminals, task.max_episode_steps)
    else:
        timeouts = np.zeros_like(terminals)
    if len(terminals) == len(timeouts):  # else `checked` names the lengths
        terminals = terminals & ~timeouts
    steps = Steps(**arrays | {"terminals": terminals, "timeouts": timeouts}, drop_last=True)
    steps = steps.checked(source)
    if not signals.fits(steps.observations.shape[1], steps.actions.shape[1]):
        raise UserError(f"`{OWN}` names other columns than it has.", where=source)
    return Source(steps, DataInfo(path.stem, source=source, signals=signals), task)


def write_d4rl(path: Path, source: Source) -> None:
    """Write steps in D4RL's layout, all or nothing; the task and what the numbers are, beside them.

    D4RL's rules apply when it is read again: the very last row is then no transition.
    """
    import h5py  # here and below: help texts name this format without it

    steps = source.steps.checked(str(path))
    marks = {"timeouts": steps.timeouts & ~steps.terminals}  # with both, D4RL sees a timeout
    arrays = steps.arrays() | marks
    # from HDF5 1.8 on, what describes the arrays has checksums as well
    with atomic(path) as temporary, _Patient(temporary, "w+b") as disk:
        with h5py.File(disk, "w", libver=("v108", "v108")) as file:
            for name, array in arrays.items():
                # what a damaged disk gives back is then refused, not believed
                file.create_dataset(
                    name, data=array, compression="gzip", compression_opts=1, fletcher32=True
                )
                disk.check()  # before hours of writing nowhere
            own: dict[str, Any] = {"task": source.task.name} if source.task else {}
            if source.info.signals:
                own["signals"] = source.info.signals.as_json()
            own[HASH] = _digest(arrays, own)
            file[OWN] = json.dumps(own, sort_keys=True, ensure_ascii=False)
        disk.check()


class _Patient(io.FileIO):
    """A file that keeps its errors for later: HDF5 crashes if it cannot write while it closes."""

    failure: OSError | None = None

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self.failure is not None:
            raise self.failure

    def write(self, data: Any) -> int:
        """Write all of it; nothing any more after the first failure."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self.failure is None and len(rest):
                rest = rest[super().write(rest) :]
        except OSError as failure:
            self.failure = failure
        return size

    def truncate(self, size: int | None = None) -> int:
        """Cut or lengthen, if that can be done."""
        try:
            return super().truncate(size) if self.failure is None else size or 0
        except OSError as failure:
            self.failure = failure
            return size or 0


def timeouts_by_limit(terminals: Bools, limit: int) -> Bools:
    """The steps (T,) that D4RL takes as timed out in a file that does not mark them.

    D4RL's step counter starts at 0, at 0 again after a timeout, but at 1 after a terminal: kept,
    for its rows are the paper's rows.
    """
    timeouts = np.zeros(len(terminals), np.bool_)
    start, count = 0, 0
    for end in [*np.flatnonzero(terminals).tolist(), len(terminals) - 1]:
        timeouts[start + limit - 1 - count : end + 1 : limit] = True
        start, count = end + 1, 0 if timeouts[end] else 1
    return timeouts


def _read_arrays(path: Path, room: Room) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The numeric arrays of the file, checked for kind and size before any is read; our notes."""
    import h5py

    with reading("HDF5", path, *_DAMAGE), h5py.File(path, "r") as file:
        present = [key for key in REQUIRED + OPTIONAL if _holds(file, key)]
        for key in REQUIRED:
            if key not in present:
                raise UserError(
                    f"`{key}` is missing; it has {', '.join(sorted(file)) or 'nothing'}.",
                    where=str(path),
                    fix=f"A D4RL file holds {', '.join(REQUIRED)} at its top level.",
                )
        for key in present:
            if not isinstance(file[key], h5py.Dataset) or file[key].shape is None:
                raise UserError(f"`{key}` is not an array.", where=str(path))
            check_stored_here(key, file[key], str(path))
            check_kind(key, file[key].dtype, str(path))
        nbytes = sum(bytes_in_memory(file[key].shape, file[key].dtype) for key in present)
        room.check(nbytes, (file["rewards"].shape or (0,))[0], str(path), path.stat().st_size)
        arrays, own = {key: _read(key, file[key], room) for key in present}, _own(file)
        if HASH in own and own[HASH] != _digest(arrays, own):  # of others, nothing is known
            raise ValueError("its numbers are not those that were written")
        return arrays, own


def _holds(file: Any, key: str) -> bool:
    """Whether a group has something of that name, which must lie in this very file.

    A link may lead to any other file of this machine that can be read, so none is followed, not
    even to see whether it leads anywhere.
    """
    import h5py

    if not file.id.links.exists(key.encode()):
        return False
    if file.id.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
        raise UserError(
            f"`{key}` is a link to somewhere else, and links are not followed.",
            where=str(file.file.filename),
            fix="Store the array itself in the file.",
        )
    return True


def check_stored_here(key: str, item: Any, source: str) -> None:
    """Refuse arrays whose numbers are taken from other files."""
    if item.external is not None or item.is_virtual:
        raise UserError(
            f"the numbers of `{key}` lie in other files, which are not read.",
            where=source,
            fix="Store the array itself in the file.",
        )


def stored_bytes(path: Path) -> int:
    """Bytes that all arrays of an HDF5 file claim; one that takes any from elsewhere is refused."""
    import h5py

    def claimed(group: Any) -> int:
        total = 0
        for key in group:  # names alone: nothing is opened by listing them
            _holds(group, key)
            item = group[key]
            if isinstance(item, h5py.Group):
                total += claimed(item)
            elif isinstance(item, h5py.Dataset):
                check_stored_here(f"{group.name.rstrip('/')}/{key}", item, str(path))
                total += bytes_in_memory(item.shape or (), item.dtype)
        return total

    with reading("HDF5", path, *_DAMAGE), h5py.File(path, "r") as file:
        return claimed(file)


def _own(file: Any) -> dict[str, Any]:
    """What a file of ours says about itself; of others, nothing."""
    import h5py

    group, name = OWN.split("/")
    if not _holds(file, group) or not isinstance(file[group], h5py.Group):
        return {}
    if not _holds(file[group], name):
        return {}
    text = file[OWN]
    if not isinstance(text, h5py.Dataset):
        raise ValueError(f"`{OWN}` is not one text")
    check_stored_here(OWN, text, file.filename)
    if text.shape != () or text.dtype.itemsize > MOST_NOTES:
        raise ValueError(f"`{OWN}` is not one text")
    own = json.loads(text.asstr()[()])
    if not isinstance(own, dict):
        raise ValueError(f"`{OWN}` is no JSON object")
    return own


def _digest(arrays: Mapping[str, NDArray[Any]], own: Mapping[str, Any]) -> str:
    """SHA-256 of a file's arrays and of what it says about itself."""
    said = {key: value for key, value in own.items() if key != HASH}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _read(key: str, item: Any, room: Room) -> NDArray[Any]:
    if not item.shape:
        return item[()]
    stored = key in FLAGS or (key == "actions" and item.dtype.kind in "iu")
    dtype = item.dtype if stored else np.float32
    chunk = item.chunks[0] if item.chunks else 1
    return room.fill(key, item.shape, dtype, item.__getitem__, multiple=chunk)
