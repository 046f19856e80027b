"""Neighbour tables on disk, one folder per content of data and settings, opened as mapped files.

The folder's name is a hash of everything the tables depend on, so a changed row leads elsewhere.
Each file's checksum is in `meta.json`: an entry that does not fit it is removed, never read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval.report import SearchReport
from icql.settings.data import ContextSettings

FORMAT = 2  # raise it when the same data and settings would give other tables or files
FILES = ("state.npy", "next_state.npy")
Tables = tuple[NDArray[np.int32], NDArray[np.int32], SearchReport]


@dataclass(frozen=True)
class Identity:
    """All that tables depend on: the settings, the kind of the data, and a hash of its rows."""

    head: dict[str, Any]
    rows: int
    content: str

    @property
    def key(self) -> str:
        """One hash of it all."""
        text = json.dumps([self.head, self.rows, self.content], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def identify(
    transitions: Transitions, settings: ContextSettings, engine: str, counts: Sequence[int]
) -> list[Identity]:
    """What the tables of the first n rows depend on, for each n in `counts`.

    Exact tables are the same whichever engine finds them.
    """
    arrays = (transitions.states, transitions.next_states, transitions.rewards)
    kind = "approximate" if engine == "approximate" else "exact"
    head = {
        "format": FORMAT,
        "settings": asdict(settings) | {"engine": kind},
        "arrays": [[array.dtype.str, *array.shape[1:]] for array in arrays],
    }
    digests = {count: hashlib.sha256() for count in counts}
    for array in arrays:
        running, start = hashlib.sha256(), 0
        for count in sorted(digests):
            running.update(np.ascontiguousarray(array[start:count]).data)
            digests[count].update(running.digest())
            start = count
    return [Identity(head, count, digests[count].hexdigest()) for count in counts]


def load(cache_dir: Path, key: str) -> Tables | None:
    """The tables stored under `key`; None if there are none, or none that are whole."""
    folder = cache_dir / "neighbours" / key
    with usable(folder):
        if not folder.exists():
            return None
        try:
            return _read(folder, key)
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # cut short or altered
            _remove(folder)
            return None


def earlier(
    cache_dir: Path, transitions: Transitions, settings: ContextSettings, engine: str
) -> tuple[Identity, Tables] | None:
    """The stored tables of the most rows that this dataset begins with, if there are any."""
    rows: set[int] = set()
    [like] = identify(transitions, settings, engine, [0])
    for path in (cache_dir / "neighbours").glob("[!.]*/meta.json"):
        try:
            meta = json.loads(path.read_text())
            if meta["head"] == like.head and 0 < meta["rows"] < len(transitions):
                rows.add(meta["rows"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not an entry; `load` deals with damage where it matters
    for identity in reversed(identify(transitions, settings, engine, sorted(rows))):
        if (found := load(cache_dir, identity.key)) is not None:
            return identity, found
    return None


def write_meta(folder: Path, identity: Identity, report: SearchReport) -> None:
    """Complete the tables in `folder` by what they are, and their checksums."""
    meta = {
        "key": identity.key,
        "head": identity.head,
        "rows": identity.rows,
        "sha256": {name: _checksum(folder / name) for name in FILES},
        "report": asdict(report),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def publish(folder: Path, target: Path) -> None:
    """Make a finished folder an entry."""
    try:
        folder.rename(target)
    except OSError:
        # Another process was first. The same key means the same tables: keep theirs.
        if not target.is_dir():
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Say which folder is the matter where the disk or the rights to it are."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the cache of neighbour tables cannot be used: {error.strerror or error}.",
            where=str(folder),
            fix="Make room there or set ICQL_CACHE to another folder.",
        ) from error


def _read(folder: Path, key: str) -> Tables:
    meta = json.loads((folder / "meta.json").read_text())
    if meta["key"] != key:
        raise ValueError(f"{folder} holds the tables of other data")
    tables: list[NDArray[np.int32]] = []
    for name in FILES:
        if _checksum(folder / name) != meta["sha256"][name]:
            raise ValueError(f"{folder / name} is damaged")
        tables.append(np.load(folder / name, mmap_mode="r", allow_pickle=False))
    report = meta["report"]
    for name in ("mean_distance", "next_mean_distance"):
        report[name] = tuple(report[name])
    return tables[0], tables[1], SearchReport(**report)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(folder: Path) -> None:
    """Take a damaged entry away; moved aside first, so that nobody reads half of it."""
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:
        pass  # another process has removed it
    finally:
        shutil.rmtree(aside, ignore_errors=True)
