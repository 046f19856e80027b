"""Our own file format: one compressed NPZ of plain arrays, never a pickle.

Arrays: observations (T, obs), actions (T, act), rewards, terminals, timeouts (T,); where known,
`final_observations` (E, obs), the true successor of each of the E episode ends in time order;
`valid` (T,) where rows are marked; `meta`, a JSON object as UTF-8 bytes. Equal steps give equal
bytes. A file of one's own may have `next_observations` (T, obs) instead of the final ones.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from icql.data.arrays import IN_MEMORY, Floats, Room, bytes_in_memory, check_kind, matrix, reading
from icql.data.choices import are_choices, as_choices
from icql.data.sealed_arrays import DAMAGE
from icql.data.signals import Signals
from icql.data.tasks import Task, find_task, get_task
from icql.data.transitions import DataInfo, Source, Steps
from icql.errors import UserError
from icql.files import atomic

REQUIRED = ("observations", "actions", "rewards", "terminals", "timeouts")
OPTIONAL = ("next_observations", "final_observations", "valid", "drop_last", "meta")
LONGEST_HEADER = 2**16  # bytes; NumPy's own have about a hundred
MOST_NOTES = 2**26  # bytes in memory of a description, at four for each
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def write_npz(path: str | Path, steps: Steps, meta: dict[str, Any] | None = None) -> None:
    """Write steps and a JSON-serialisable `meta` to `path`, all or nothing.

    A `meta["task"]` names the task of the data for `load_dataset`. A recorded successor inside an
    episode must be the episode's next row.
    """
    steps = steps.checked(str(path)).finite(str(path))
    arrays = steps.arrays()
    if (following := arrays.pop("next_observations", None)) is not None:
        check_chain(steps, str(path))
        arrays["final_observations"] = following[steps.ends]
    if steps.drop_last:
        arrays["drop_last"] = np.array(True)
    text = json.dumps(meta or {}, sort_keys=True, ensure_ascii=False)
    arrays["meta"] = np.frombuffer(text.encode(), np.uint8)
    with atomic(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def write_source(path: Path, source: Source) -> None:
    """Write a log, the name of its task and what its numbers are, as `write_npz` does."""
    meta: dict[str, Any] = {"task": source.task.name} if source.task else {}
    if source.info.signals:
        meta["signals"] = source.info.signals.as_json()
    write_npz(path, source.steps, meta)


def check_chain(steps: Steps, where: str) -> None:
    """Refuse recorded successors that are not the next row, unless an episode ends there.

    Formats that keep each observation of an episode once can hold no others.
    """
    assert steps.next_observations is not None
    inside = np.flatnonzero(~steps.ends[:-1])
    jumps = (steps.next_observations[inside] != steps.observations[inside + 1]).any(axis=1)
    if steps.valid is not None:
        jumps &= steps.valid[inside] & steps.valid[inside + 1]
    if jumps.any():
        raise UserError(
            f"the next observation of row {inside[jumps][0]} is not row "
            f"{inside[jumps][0] + 1}, yet no episode ends there.",
            where=where,
            fix="Mark the ends of episodes in `terminals` or `timeouts`.",
        )


def read_npz(path: str | Path, room: Room = IN_MEMORY) -> tuple[Steps, dict[str, Any]]:
    """Read what `write_npz` wrote: the steps and their `meta`; pickled objects are refused."""
    source = str(path)
    arrays = _read_arrays(Path(path), room)
    meta, final = _meta(arrays, source), arrays.pop("final_observations", None)
    if final is not None and "next_observations" in arrays:
        raise UserError(
            "it has both `next_observations` and `final_observations`.",
            where=source,
            fix="Keep one of them.",
        )
    if are_choices(arrays["actions"]):
        arrays["actions"], signals = as_choices(arrays["actions"], room, source)
        meta.setdefault("signals", signals.as_json())
    drop_last = bool(arrays.pop("drop_last", False))
    steps = Steps(**arrays, drop_last=drop_last).checked(source)
    if final is not None:
        steps = _with_successors(steps, matrix("final_observations", final, source), source, room)
    return steps, meta


def read_source(path: Path, task: Task | None = None, room: Room = IN_MEMORY) -> Source:
    """Read a log; its `meta` may name the task."""
    steps, meta = read_npz(path, room)
    if task is None and "task" in meta:
        task = get_task(str(meta["task"]))
    signals = Signals()
    if "signals" in meta:
        signals = Signals.from_json(meta["signals"], str(path))
        if not signals.fits(steps.observations.shape[1], steps.actions.shape[1]):
            raise UserError("`meta` names other columns than it has.", where=str(path))
    info = DataInfo(path.stem, source=str(path), signals=signals)
    return Source(steps, info, task or find_task(path.name))


def _with_successors(steps: Steps, final: Floats, source: str, room: Room) -> Steps:
    """Steps whose successors are the next row or, at an episode end, the row of `final`."""
    ends = steps.ends
    expected = (int(ends.sum()), steps.observations.shape[1])
    if final.shape != expected:
        raise UserError(
            f"`final_observations` has shape {final.shape}, but its episode ends need {expected}.",
            where=source,
        )
    successors = room.empty("next_observations", steps.observations.shape, np.float32)
    successors[:-1] = steps.observations[1:]
    successors[-1] = steps.observations[-1]  # left out later unless an episode ends here
    successors[ends] = final
    return replace(steps, next_observations=successors)


def _meta(arrays: dict[str, NDArray[Any]], source: str) -> dict[str, Any]:
    """The description among the arrays, which is taken out of them."""
    raw = arrays.pop("meta", np.frombuffer(b"{}", np.uint8))
    try:
        meta = json.loads(raw.astype(np.uint8).tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"`meta` is not JSON ({error}).", where=source) from error
    if not isinstance(meta, dict):
        raise UserError("`meta` is not a JSON object.", where=source)
    return meta


def _read_arrays(path: Path, room: Room) -> dict[str, NDArray[Any]]:
    """The known arrays of the file; declared sizes are checked before anything is unpacked."""
    with reading("NPZ", path, *DAMAGE), zipfile.ZipFile(path) as archive:
        found = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
        for name in REQUIRED:
            if name not in found:
                listed = ", ".join(sorted(found)) or "nothing"
                raise UserError(f"`{name}` is missing; it has {listed}.", where=str(path))
        for member in archive.infolist():  # an array whose name is damaged must not go unnoticed
            archive.open(member).close()
        names = [name for name in REQUIRED + OPTIONAL if name in found]
        headers = {name: _header(archive, name, path) for name in names}
        nbytes = sum(bytes_in_memory(*header) for header in headers.values())
        room.check(nbytes, (headers["rewards"][0] or (0,))[0], str(path), path.stat().st_size)
        if "meta" in headers and bytes_in_memory(*headers["meta"]) > MOST_NOTES:
            raise ValueError("`meta` is too large for a description")
        return {name: _read(archive, name, room) for name in names}


def _read(archive: zipfile.ZipFile, name: str, room: Room) -> NDArray[Any]:
    """One array, unpacked in pieces where it goes to a file."""
    with archive.open(f"{name}.npy") as file:
        if room.folder is None:
            return npy.read_array(file, allow_pickle=False)
        shape, fortran, dtype = _HEADERS[npy.read_magic(file)](file)
        if not shape or fortran:  # a single value, or columns first: not in row blocks
            values = np.frombuffer(file.read(), dtype)
            return values.reshape(shape, order="F" if fortran else "C")

        def read(rows: slice) -> NDArray[Any]:
            size = (rows.stop - rows.start) * math.prod(shape[1:]) * dtype.itemsize
            return np.frombuffer(file.read(size), dtype).reshape(-1, *shape[1:])

        floats = name == "rewards" or name.endswith("observations")
        floats |= name == "actions" and dtype.kind not in "iu"
        return room.fill(name, shape, np.float32 if floats else dtype, read)


def _header(
    archive: zipfile.ZipFile, name: str, path: Path
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, and that it has the size which they claim."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as stream:
        # NumPy would unpack as much as a header says that it is long
        file = io.BytesIO(stream.read(LONGEST_HEADER))
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"`{name}` has the unknown NPY version {version}")
        shape, _, dtype = _HEADERS[version](file)
        check_kind(name, dtype, str(path))  # pickled objects stop here
        # NumPy reserves what the header claims, so the claim must match what is there.
        if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError(f"`{name}` does not have the size its header claims")
    return shape, dtype
