"""Neighbour tables on disk, one folder per content of data and settings.

The folder's name is a hash of everything the tables depend on, so a changed row leads elsewhere.
Each file's checksum is in `meta.json`: an entry that does not fit it is removed, never read.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval.report import SearchReport
from icql.retrieval.settings import ContextSettings

FORMAT = 1  # raise it when the same data and settings would give other tables
FILES = ("state.npy", "next_state.npy")
Tables = tuple[NDArray[np.int32], NDArray[np.int32], SearchReport]


def key(transitions: Transitions, settings: ContextSettings) -> str:
    """A hash of all that the tables depend on."""
    arrays = (transitions.states, transitions.next_states, transitions.rewards)
    head = {
        "format": FORMAT,
        "settings": asdict(settings),
        "arrays": [(array.dtype.str, array.shape) for array in arrays],
    }
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load(cache_dir: Path, key: str) -> Tables | None:
    """The tables stored under `key`; None if there are none, or none that are whole."""
    folder = cache_dir / "neighbours" / key
    try:
        if not folder.exists():
            return None
        try:
            return _read(folder, key)
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # cut short or altered
            _remove(folder)
            return None
    except OSError as error:
        raise _unusable(folder, error) from error


def store(
    cache_dir: Path,
    key: str,
    state: NDArray[np.int32],
    next_state: NDArray[np.int32],
    report: SearchReport,
) -> None:
    """Write the tables under `key`, whole or not at all."""
    parent = cache_dir / "neighbours"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
        try:
            checksums = {}
            for name, table in zip(FILES, (state, next_state), strict=True):
                np.save(folder / name, table, allow_pickle=False)
                checksums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            meta = {"key": key, "sha256": checksums, "report": asdict(report)}
            (folder / "meta.json").write_text(json.dumps(meta, indent=1))
            _publish(folder, parent / key)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise _unusable(parent, error) from error


def _publish(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        # Another process was first. The same key means the same tables: keep theirs.
        if not target.is_dir():
            raise


def _read(folder: Path, key: str) -> Tables:
    meta = json.loads((folder / "meta.json").read_text())
    if meta["key"] != key:
        raise ValueError(f"{folder} holds the tables of other data")
    tables: list[NDArray[np.int32]] = []
    for name in FILES:
        content = (folder / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != meta["sha256"][name]:
            raise ValueError(f"{folder / name} is damaged")
        tables.append(np.load(io.BytesIO(content), allow_pickle=False))
    report = meta["report"]
    for name in ("mean_distance", "next_mean_distance"):
        report[name] = tuple(report[name])
    return tables[0], tables[1], SearchReport(**report)


def _remove(folder: Path) -> None:
    """Take a damaged entry away; moved aside first, so that nobody reads half of it."""
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:
        pass  # another process has removed it
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _unusable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"the cache of neighbour tables cannot be used: {error.strerror or error}.",
        where=str(folder),
        fix="Make room there or set ICQL_CACHE to another folder.",
    )
