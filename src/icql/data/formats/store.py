"""Transitions on disk, for data larger than memory: a folder `NAME.icql` of plain NPY files.

One file for each array of `Transitions` and for what is known of each episode, and `store.json`
with the rest. The arrays are mapped into memory when the store is opened: a row is read when it is
asked for, and its page belongs to the system's cache, not to the process. `store.json` has the
hash of every file, and one of itself; `verify_store` reads all and compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import IN_MEMORY, Room
from icql.data.sealed_arrays import DAMAGE
from icql.data.signals import Signals
from icql.data.tasks import Task
from icql.data.transitions import DataInfo, Source, Transitions
from icql.data.validation.findings import Finding
from icql.data.validation.rules import validate
from icql.errors import UserError
from icql.files import atomic_folder, file_hash, read_json, write_json

FORMAT = 1
# type and number of axes
ARRAYS = dict.fromkeys(("states", "actions", "next_states", "next_actions"), ("<f4", 2))
ARRAYS |= {"rewards": ("<f4", 1), "mask": ("<f4", 1), "episode": ("<i4", 1), "step": ("<i4", 1)}
EPISODES = dict.fromkeys(("episode_returns", "episode_scores"), ("<f8", 1))
EPISODES |= {"episode_lengths": ("<i8", 1)}


def write_store(path: str | Path, source: Source, *, force: bool = False) -> None:
    """Validate a log and write its transitions and findings as a store, all or nothing.

    Raises:
        UserError: if the log has errors, or something is there already, unless it is a store and
            `force` is given.
    """
    path = Path(path)
    check_free(path, force=force)
    with atomic_folder(path) as made:
        findings = validate(source, Room(made))
        _describe(made, findings.usable(source.info.source), findings.warnings)


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a place that is taken, unless by a store that may be replaced."""
    if path.exists() and not ((path / "store.json").is_file() and force):
        fix = "Add --force to replace it." if (path / "store.json").is_file() else "Name another."
        raise UserError("it exists already.", where=str(path), fix=fix)


def _describe(folder: Path, data: Transitions, findings: Sequence[Finding]) -> None:
    """Write what the arrays in `folder`, which are those of `data`, do not say themselves."""
    info = data.info
    for name, (dtype, _) in EPISODES.items():
        np.save(folder / f"{name}.npy", np.asarray(getattr(info, name), dtype), allow_pickle=False)
    content = {
        "format": FORMAT,
        "name": info.name,
        "made_of": info.source,
        "task": info.task,
        "dropped": info.dropped,
        "warnings": list(info.warnings),
        "signals": info.signals.as_json(),
        "findings": [asdict(finding) for finding in findings],
        "transitions": len(data),
        "data_hash": data.content_hash(),
        "sha256": {name: file_hash(folder / f"{name}.npy") for name in (*ARRAYS, *EPISODES)},
    }
    write_json(folder / "store.json", content | {"seal": _seal(content)})


def open_store(path: str | Path, task: Task | None = None, room: Room = IN_MEMORY) -> Transitions:
    """Open a store: transitions whose arrays are mapped files, whatever the room.

    `task` is by default what the store says.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError("there is no such store.", where=str(path))
    content = _description(folder)
    arrays = {name: _load(folder, name, *kind, mapped=True) for name, kind in ARRAYS.items()}
    for name, array in arrays.items():
        if len(array) != content["transitions"]:
            raise UserError(
                f"has {len(array):,} rows, but the store {content['transitions']:,}.",
                where=str(folder / f"{name}.npy"),
                fix="Make the store anew with icql data convert.",
            )
    for first, second in (("states", "next_states"), ("actions", "next_actions")):
        if arrays[first].shape != arrays[second].shape:
            raise UserError(
                f"does not have the shape of {first}.npy.", where=str(folder / f"{second}.npy")
            )
    episodes = {name: _load(folder, name, *kind) for name, kind in EPISODES.items()}
    signals = Signals.from_json(content.get("signals"), str(folder / "store.json"))
    if not signals.fits(arrays["states"].shape[1], arrays["actions"].shape[1]):
        raise UserError("`signals` names other columns.", where=str(folder / "store.json"))
    info = DataInfo(
        content["name"],
        source=str(path),
        task=content["task"],
        dropped=content["dropped"],
        warnings=tuple(content["warnings"]),
        signals=signals,
        episode_returns=tuple(episodes["episode_returns"].tolist()),
        episode_lengths=tuple(episodes["episode_lengths"].tolist()),
        episode_scores=tuple(episodes["episode_scores"].tolist()),
    )
    if task is not None and task.name != info.task:
        info = replace(info, task=task.name, episode_scores=())
    return Transitions(**arrays, info=info)


def verify_store(data: Transitions) -> tuple[Finding, ...]:
    """What was found in the log that an open store was made of, rows being those of the log.

    Raises:
        UserError: if the store's arrays are not those that were written; all of it is read once.
    """
    path = Path(data.info.source)
    content = _description(path)
    if "sha256" not in content:  # made before its files had hashes
        wrong = [] if data.content_hash() == content["data_hash"] else ["a file"]
    else:
        hashes = {name: file_hash(path / f"{name}.npy") for name in (*ARRAYS, *EPISODES)}
        wrong = [f"{name}.npy" for name in hashes if hashes[name] != content["sha256"].get(name)]
    if wrong:
        raise UserError(
            f"its arrays are not those that were written: {', '.join(wrong)} was changed or is "
            "damaged.",
            where=str(path),
            fix="Make the store anew with icql data convert.",
        )
    try:
        return tuple(Finding(**finding) for finding in content["findings"])
    except TypeError as error:
        raise UserError(f"`findings`: {error}.", where=str(path / "store.json")) from error


def _description(folder: Path) -> dict[str, Any]:
    path = folder / "store.json"
    content = read_json(path)
    kinds: dict[str, Any] = {"name": str, "task": str | None, "dropped": int, "warnings": list}
    kinds |= {"transitions": int, "data_hash": str, "made_of": str, "findings": list}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"does not describe a store of format {FORMAT}.", where=str(path))
    for key, kind in kinds.items():
        if not isinstance(content.get(key, ...), kind):
            raise UserError(f"`{key}` is missing or of the wrong kind.", where=str(path))
    if "sha256" in content and content.get("seal") != _seal(content):
        raise UserError(
            "was changed or is damaged: it does not match its seal.",
            where=str(path),
            fix="Make the store anew with icql data convert.",
        )
    return content


def _seal(content: Mapping[str, Any]) -> str:
    """SHA-256 of all that a description says, but for this."""
    rest = {key: value for key, value in content.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _load(folder: Path, name: str, dtype: str, axes: int, *, mapped: bool = False) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise UserError("is missing.", where=str(path)) from None
    # what NumPy raises for a header or a length that is not right
    except DAMAGE as error:
        raise UserError(
            f"cannot be read as NPY ({error}).",
            where=str(path),
            fix="It may be truncated or damaged: make the store anew with icql data convert.",
        ) from error
    if array.dtype != np.dtype(dtype) or array.ndim != axes or not array.flags.c_contiguous:
        raise UserError(
            f"holds {array.dtype} of shape {array.shape}, but {axes} axes of {dtype} are needed.",
            where=str(path),
        )
    return array
