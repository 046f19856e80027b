"""Neighbour tables, in the making and on disk: one folder per content of data and settings.

The folder's name is a hash of everything the tables depend on, so a changed row leads elsewhere.
Each file's checksum is in `meta.json`: an entry that does not fit it is removed, never read.

Until they are whole, tables lie in a folder beside it. A block of rows is finished once its part of
both tables is written; until then, where the dataset is searched in several parts, the nearest
found so far are kept. Every mark is written whole and after what it stands for, so a build can be
killed at any time and goes on where it stopped. A mark has the hash of its block: a draft with one
that does not fit is discarded, and nothing is published before all of them fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.sealed_arrays import read_arrays, write_arrays
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.files import atomic, file_hash, make_folder, move, scratch_folder
from icql.locks import queued
from icql.retrieval.approximate import Calibration
from icql.retrieval.metric import Fitted, Ids, Rows, Space
from icql.seals import DIGEST, agrees, write_sealed
from icql.settings.contexts import ContextSettings

FORMAT = 3  # raise it when the same data and settings would give other tables or files
FILES = ("state.npy", "next_state.npy")
# what reading a file that was cut short or altered raises
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, UserError)
RowIds = NDArray[np.int32]
Kept = tuple[int, Ids, Rows]  # rows of the dataset that were searched; ids; distances


@dataclass(frozen=True)
class SearchReport:
    """How neighbours were found. `recall` is measured on `sample` queries (exact: 1 by proof)."""

    engine: str  # exact, accelerator (exact too), approximate or random
    states: int
    queries: int
    recall: float = 1.0
    sample: int = 0
    probes: int = 0  # cells looked at per query, where approximate
    seconds: float = 0.0
    mean_distance: tuple[float, ...] = ()  # of the 1st … k-th context state from s
    next_mean_distance: tuple[float, ...] = ()  # the same from s'
    cached: bool = False
    space: str = "raw"  # what distances are measured on

    def __str__(self) -> str:
        recall = f"recall {self.recall:.4f} against {self.sample} exact queries"
        how = {
            "accelerator": "exact on the accelerator",
            "approximate": f"approximate ({self.probes} cells), {recall}",
        }.get(self.engine, self.engine)
        cost = "from the cache" if self.cached else f"{self.seconds:.1f} s"
        where = "" if self.space == "raw" else f", {self.space} space"
        return f"{how}, {self.queries:,} queries in {self.states:,} states{where}, {cost}"


@dataclass(frozen=True)
class Neighbours:
    """Rows of the context Ω_s of each transition's s, and of the context Ω_s' of its s'.

    From the cache they are read-only mapped files. `key` is a hash of the data and the settings,
    `space` where their distances are measured.
    """

    state: RowIds  # (N, k), nearest first
    next_state: RowIds  # (N, k), nearest first
    report: SearchReport
    key: str = ""
    space: Space | None = None


@dataclass(frozen=True)
class Identity:
    """All that tables depend on: settings, space, the kind of the data, and a hash of its rows."""

    head: dict[str, Any]
    rows: int
    content: str

    @property
    def key(self) -> str:
        """One hash of it all."""
        text = json.dumps([self.head, self.rows, self.content], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def identify(
    transitions: Transitions,
    settings: ContextSettings,
    engine: str,
    counts: Sequence[int],
    space: Space,
) -> list[Identity]:
    """What the tables of the first n rows depend on, for each n in `counts`.

    Exact tables are the same whichever engine finds them. More rows have another space, unless it
    is that of the columns as they are: tables of the first rows are then other tables.
    """
    arrays: list[NDArray[Any]] = [transitions.states, transitions.next_states, transitions.rewards]
    if settings.exclude == "episode":
        arrays.append(transitions.episode)
    kind = "approximate" if engine == "approximate" else "exact"
    named = asdict(settings) | {"engine": kind, "space": f"{settings.space} {space.digest}"}
    if settings.space == "raw":
        del named["space"]  # it was the only one once
    head = {
        "format": FORMAT,
        "settings": named,
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


def load(cache_dir: Path, key: str) -> Neighbours | None:
    """The tables stored under `key`; None if there are none, or none that are whole."""
    folder = _entry(cache_dir, key)
    with _usable(folder):
        if not folder.exists():
            return None
        try:
            meta = json.loads((folder / "meta.json").read_text())
            if DIGEST in meta and not agrees(meta):  # those made before have none
                raise ValueError(f"{folder} is damaged")
            whole = {name: file_hash(folder / name) for name in FILES} == meta["sha256"]
            if not whole or meta["key"] != key:
                raise ValueError(f"{folder} is damaged")
            report = meta["report"] | {"cached": True}
            for name in ("mean_distance", "next_mean_distance"):
                report[name] = tuple(report[name])
            return Neighbours(*_mapped(folder), SearchReport(**report), key)
        except (FileNotFoundError, *_DAMAGE):  # cut short or altered
            _remove(folder)
            return None


@contextlib.contextmanager
def building(cache_dir: Path, key: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Be the only process that builds the tables of `key`; while another does, `tell` hears who."""
    entry = _entry(cache_dir, key)
    with contextlib.ExitStack() as held:
        with _usable(entry):
            held.enter_context(queued(entry.with_name(f".lock-{key}"), tell))
        yield


def earlier(
    cache_dir: Path,
    transitions: Transitions,
    settings: ContextSettings,
    engine: str,
    space: Space,
) -> Neighbours | None:
    """The stored tables of the most rows that this dataset begins with, if there are any."""
    rows: set[int] = set()
    [like] = identify(transitions, settings, engine, [0], space)
    for path in _entry(cache_dir, "").glob("[!.]*/meta.json"):
        try:
            meta = json.loads(path.read_text())
            if meta["head"] == like.head and 0 < meta["rows"] < len(transitions):
                rows.add(meta["rows"])
        except (OSError, *_DAMAGE):
            continue  # not an entry; `load` deals with damage where it matters
    for identity in reversed(identify(transitions, settings, engine, sorted(rows), space)):
        if (found := load(cache_dir, identity.key)) is not None:
            return found
    return None


class Draft:
    """Both tables (rows, k), filled block by block; a block is named by its first row.

    `finished` has the sums over a block of the distances from s (k,) and from s' (k,);
    `calibrations` those of the parts of the dataset that were searched.

    Without a cache they are in memory; else in a folder named by their key and by how they are
    `cut`. Where processes cannot wait for each other (`building`) they may share it: they write the
    same.
    """

    def __init__(
        self, identity: Identity, shape: tuple[int, int], cache_dir: Path | None, cut: str
    ) -> None:
        self._identity, self._folder, self._width = identity, None, shape[1]
        self.finished: dict[int, list[list[float]]] = {}
        self.calibrations: dict[int, Calibration] = {}
        self._kept: dict[int, Kept] = {}
        self._hashes: dict[int, tuple[int, str]] = {}  # rows of a finished block, and its hash
        if cache_dir is None:
            self._tables = [np.empty(shape, np.int32) for _ in FILES]
            return
        self._entry = _entry(cache_dir, identity.key)
        name = hashlib.sha256(cut.encode()).hexdigest()[:8]
        self._folder = folder = self._entry.with_name(f".part-{identity.key}-{name}")
        with _usable(folder):
            try:
                self._go_on(folder, shape)
            except _DAMAGE:
                _remove(folder)
                self.finished, self.calibrations, self._hashes = {}, {}, {}
                self._go_on(folder, shape)

    def _go_on(self, folder: Path, shape: tuple[int, int]) -> None:
        """Take up what the folder holds; anything in it that does not fit is an error."""
        make_folder(folder)
        self._offsets = [_create(folder / file, shape) for file in FILES]
        for path in folder.glob("rows-*.json"):
            start, mark = int(path.stem[5:]), _read_mark(path)
            self._hashes[start] = int(mark["rows"]), str(mark["sha256"])
            self.finished[start] = np.asarray(mark["sums"], np.float64).reshape(2, -1).tolist()
        for path in folder.glob("chunk-*.json"):
            self.calibrations[int(path.stem[6:])] = Calibration(**_read_mark(path))
        for path in folder.glob("rows-*.npz"):
            _read_kept(path)
        self._check_blocks(folder, 4 * self._width)

    def _check_blocks(self, folder: Path, width: int) -> None:
        """Compare every finished block, of rows of `width` bytes, with its hash."""
        with contextlib.ExitStack() as opened:
            tables = [opened.enter_context((folder / file).open("rb")) for file in FILES]
            for start, (rows, expected) in self._hashes.items():
                digest = hashlib.sha256()
                for table, offset in zip(tables, self._offsets, strict=True):
                    table.seek(offset + start * width)
                    digest.update(table.read(rows * width))
                if digest.hexdigest() != expected:
                    raise ValueError(f"the block of row {start} in {folder} is damaged")

    def finish(self, rows: slice, ids: Ids, away: Rows) -> None:
        """Write the contexts of s, then of s', of `rows` and sum up their distances."""
        parts = np.split(np.ascontiguousarray(ids, np.dtype("<i4")), 2)
        sums = [part.sum(axis=0).tolist() for part in np.split(away, 2)]
        if self._folder is None:
            for whole, part in zip(self._tables, parts, strict=True):
                whole[rows] = part
            self._kept.pop(rows.start, None)
        else:
            with _usable(self._folder):
                for file, offset, part in zip(FILES, self._offsets, parts, strict=True):
                    with (self._folder / file).open("r+b") as stream:
                        stream.seek(offset + rows.start * part[0].nbytes)
                        stream.write(part.data)
                        stream.flush()
                        os.fsync(stream.fileno())
                digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
                mark = {"rows": len(parts[0]), "sha256": digest, "sums": sums}
                _write_mark(self._folder / f"rows-{rows.start}.json", mark)
                self._hashes[rows.start] = len(parts[0]), digest
                (self._folder / f"rows-{rows.start}.npz").unlink(missing_ok=True)
        self.finished[rows.start] = sums

    def keep(self, block: int, kept: Kept) -> None:
        """Remember what was found so far for a block."""
        if self._folder is None:
            self._kept[block] = kept
            return
        stop, ids, away = kept
        path = self._folder / f"rows-{block}.npz"
        arrays: Fitted = {
            "stop": np.array(stop, np.int64),
            "ids": ids.astype(np.int32),
            "away": away,
        }
        with _usable(self._folder):
            write_arrays(path, arrays, _place(path))

    def kept(self, block: int) -> Kept | None:
        """What was found so far for a block."""
        if self._folder is None:
            return self._kept.get(block)
        path = self._folder / f"rows-{block}.npz"
        if not path.exists():
            return None
        with _usable(self._folder):
            try:
                return _read_kept(path)
            except _DAMAGE as error:
                raise self._discarded() from error

    def calibrate(self, chunk: int, found: Calibration) -> None:
        """Remember the recall in the part of the dataset that begins with row `chunk`."""
        if self._folder is not None and self.calibrations.get(chunk) != found:
            with _usable(self._folder):
                _write_mark(self._folder / f"chunk-{chunk}.json", asdict(found))
        self.calibrations[chunk] = found

    def publish(self, report: SearchReport) -> Neighbours:
        """The finished tables; those in a folder become an entry of the cache, mapped."""
        folder, identity = self._folder, self._identity
        if folder is None:
            return Neighbours(self._tables[0], self._tables[1], report, identity.key)
        with _usable(folder):
            try:
                self._check_blocks(folder, 4 * self._width)
            except ValueError as error:
                raise self._discarded() from error
            meta = {
                "key": identity.key,
                "head": identity.head,
                "rows": identity.rows,
                "sha256": {name: file_hash(folder / name) for name in FILES},
                "report": asdict(report),
            }
            write_sealed(folder / "meta.json", meta)
            for mark in folder.iterdir():
                if mark.name not in (*FILES, "meta.json"):
                    mark.unlink(missing_ok=True)
            try:
                move(folder, self._entry)
            except OSError:
                # Another process was first. The same key means the same tables: keep theirs.
                if not self._entry.is_dir():
                    raise
            for rest in self._entry.parent.glob(f".part-{identity.key}-*"):
                shutil.rmtree(rest, ignore_errors=True)
            return Neighbours(*_mapped(self._entry), report, identity.key)

    def _discarded(self) -> UserError:
        """What to say once the draft is gone, because a part of it is not what was written."""
        assert self._folder is not None
        _remove(self._folder)
        return UserError(
            "unfinished neighbour tables were damaged while they were built, and are discarded.",
            where=str(self._folder),
            fix="Run the same again; if it comes back, set ICQL_CACHE to another disk.",
        )


def write_fitted(path: Path, fitted: Fitted) -> None:
    """Keep what a space takes from the data as one NPZ file, whole or not at all."""
    with _usable(path):
        write_arrays(path, fitted, path.name)


def read_fitted(path: Path) -> Fitted:
    """What `write_fitted` has kept; a UserError where it is absent or damaged."""
    return read_arrays(path, path.name)


def _read_kept(path: Path) -> Kept:
    found = read_arrays(path, _place(path))
    return int(found["stop"]), found["ids"].astype(np.int64), found["away"]


def _place(path: Path) -> str:
    """Where a file of a draft belongs: to these tables, and this part of them."""
    return f"{path.parent.name}/{path.name}"


def _write_mark(path: Path, mark: dict[str, Any]) -> None:
    write_sealed(path, mark | {"of": _place(path)})


def _read_mark(path: Path) -> dict[str, Any]:
    """A mark of a draft; a ValueError where it is damaged, or that of another."""
    mark: dict[str, Any] = json.loads(path.read_text())
    if not agrees(mark) or mark.pop("of", None) != _place(path):
        raise ValueError(f"{path} is damaged")
    del mark[DIGEST]
    return mark


def _entry(cache_dir: Path, key: str) -> Path:
    return cache_dir / "neighbours" / key


def _mapped(folder: Path) -> tuple[RowIds, RowIds]:
    state, next_state = (
        np.load(folder / file, mmap_mode="r", allow_pickle=False) for file in FILES
    )
    return state, next_state


def _create(path: Path, shape: tuple[int, int]) -> int:
    """Make an empty table file if there is none; where its numbers begin."""
    if not path.exists():
        head = {"descr": "<i4", "fortran_order": False, "shape": shape}
        with atomic(path) as temporary, temporary.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, head)
            stream.truncate(stream.tell() + 4 * shape[0] * shape[1])
    with path.open("rb") as stream:
        np.lib.format.read_magic(stream)
        found, _, dtype = np.lib.format.read_array_header_1_0(stream)
        size = stream.tell() + 4 * shape[0] * shape[1]
        if found != shape or dtype != np.dtype("<i4") or path.stat().st_size != size:
            raise ValueError(f"{path} is damaged")
        return stream.tell()


def _remove(folder: Path) -> None:
    """Take a damaged entry away; moved aside first, so that nobody reads half of it."""
    with scratch_folder(folder.parent) as aside, contextlib.suppress(FileNotFoundError):
        folder.rename(aside / folder.name)  # unless another process has removed it


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Say which folder is the matter where the disk or the rights to it are."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the cache of neighbour tables cannot be used: {error.strerror or error}.",
            where=str(folder),
            fix="Make room there or set ICQL_CACHE to another folder.",
        ) from error
