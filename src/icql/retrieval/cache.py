"""Neighbour tables on disk, one folder per content of data and settings.

The folder's name is a hash of everything the tables depend on, so a changed row leads elsewhere.
Each file's checksum is in `meta.json`: an entry that does not fit it is removed, never read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
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
Tables = tuple[NDArray[np.int32], NDArray[np.int32], SearchReport]


def default_cache_dir() -> Path:
    """$ICQL_CACHE, or the folder `icql` in the platform's cache folder of the user."""
    if given := os.environ.get("ICQL_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "icql"


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
        meta = json.loads((folder / "meta.json").read_text())
        state, next_state = (
            _read(folder / name, meta["sha256"][name]) for name in ("state.npy", "next_state.npy")
        )
        report = meta["report"]
        for name in ("mean_distance", "next_mean_distance"):
            report[name] = tuple(report[name])
        return state, next_state, SearchReport(**report)
    except FileNotFoundError:
        if folder.exists():
            _remove(folder)
    except (ValueError, KeyError, TypeError):  # cut short or altered: rebuilt
        _remove(folder)
    return None


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
            for name, table in (("state.npy", state), ("next_state.npy", next_state)):
                np.save(folder / name, table, allow_pickle=False)
                checksums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            meta = {"key": key, "sha256": checksums, "report": asdict(report)}
            (folder / "meta.json").write_text(json.dumps(meta, indent=1))
            _publish(folder, parent / key)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot keep the neighbour tables: {error.strerror or error}.",
            where=str(parent),
            fix="Free space there or set ICQL_CACHE to another folder.",
        ) from error


def _publish(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        # Another process was first. The same key means the same tables: keep theirs.
        if not target.is_dir():
            raise


def _read(path: Path, checksum: str) -> NDArray[np.int32]:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ValueError(f"{path} is damaged")
    table: NDArray[np.int32] = np.load(io.BytesIO(content), allow_pickle=False)
    return table


def _remove(folder: Path) -> None:
    """Take a damaged entry away; moved aside first, so that nobody reads half of it."""
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:
        pass  # another process has removed it
    finally:
        shutil.rmtree(aside, ignore_errors=True)
