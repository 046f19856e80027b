"""Tables in the making: in memory, or in a folder from which a killed build goes on.

A block of rows is finished once its part of both tables is written; until then, where the dataset
is searched in several parts, the nearest found so far are kept. Every mark is written whole and
after what it stands for, so a build can be killed at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icql.retrieval import cache
from icql.retrieval.approximate import Calibration
from icql.retrieval.metric import Ids, Rows
from icql.retrieval.plan import Plan
from icql.retrieval.report import SearchReport

Table = NDArray[np.int32]
Kept = tuple[int, Ids, Rows]  # rows of the dataset that were searched; ids; distances


class Draft:
    """Both tables (rows, k), in memory, filled block by block; a block is named by its first row.

    `finished` has the sums over a block of the distances from s (k,) and from s' (k,);
    `calibrations` those of the parts of the dataset that were searched.
    """

    def __init__(self, plan: Plan, k: int) -> None:
        self._tables = tuple(np.empty((plan.rows, k), np.int32) for _ in cache.FILES)
        self.finished: dict[int, list[list[float]]] = {}
        self.calibrations: dict[int, Calibration] = {}
        self._kept: dict[int, Kept] = {}

    def finish(self, rows: slice, tables: tuple[Table, Table], away: tuple[Rows, Rows]) -> None:
        """Write the contexts of `rows` and sum up their distances."""
        for whole, part in zip(self._tables, tables, strict=True):
            whole[rows] = part
        self.finished[rows.start] = [part.sum(axis=0).tolist() for part in away]
        self._kept.pop(rows.start, None)

    def keep(self, block: int, kept: Kept) -> None:
        """Remember what was found so far for a block."""
        self._kept[block] = kept

    def kept(self, block: int) -> Kept | None:
        """What was found so far for a block."""
        return self._kept.get(block)

    def calibrate(self, chunk: int, calibration: Calibration) -> None:
        """Remember the recall in the part of the dataset that begins with row `chunk`."""
        self.calibrations[chunk] = calibration

    def publish(self, identity: cache.Identity, report: SearchReport) -> tuple[Table, Table]:
        """The finished tables."""
        return self._tables[0], self._tables[1]


class StoredDraft(Draft):
    """The same in a folder of the cache, named by the key of the tables and the plan.

    Two processes that build the same tables may share it: they write the same.
    """

    def __init__(self, cache_dir: Path, key: str, plan: Plan, k: int) -> None:
        self._entry = cache_dir / "neighbours" / key
        name = hashlib.sha256(repr(plan).encode()).hexdigest()[:8]
        self._folder = self._entry.with_name(f".part-{key}-{name}")
        self.finished, self.calibrations = {}, {}
        with cache.usable(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._offsets = [_create(self._folder / f, (plan.rows, k)) for f in cache.FILES]
            for path in self._folder.glob("rows-*.json"):
                self.finished[int(path.stem[5:])] = json.loads(path.read_text())
            for path in self._folder.glob("chunk-*.json"):
                found = Calibration(**json.loads(path.read_text()))
                self.calibrations[int(path.stem[6:])] = found

    def finish(self, rows: slice, tables: tuple[Table, Table], away: tuple[Rows, Rows]) -> None:
        """Write the contexts of `rows` and sum up their distances."""
        with cache.usable(self._folder):
            for file, offset, part in zip(cache.FILES, self._offsets, tables, strict=True):
                with (self._folder / file).open("r+b") as stream:
                    stream.seek(offset + rows.start * part[0].nbytes)
                    stream.write(np.ascontiguousarray(part).data)
                    stream.flush()
                    os.fsync(stream.fileno())
            sums = [part.sum(axis=0).tolist() for part in away]
            self._write(f"rows-{rows.start}.json", json.dumps(sums).encode())
            self._file(rows.start).unlink(missing_ok=True)
        self.finished[rows.start] = sums

    def keep(self, block: int, kept: Kept) -> None:
        """Write what was found so far for a block."""
        stop, ids, away = kept
        path = self._file(block)
        with cache.usable(self._folder):
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            with temporary.open("wb") as stream:
                np.savez(stream, stop=np.int64(stop), ids=ids.astype(np.int32), away=away)
            temporary.replace(path)

    def kept(self, block: int) -> Kept | None:
        """Read what was found so far for a block."""
        path = self._file(block)
        with cache.usable(self._folder):
            if not path.exists():
                return None
            with np.load(path, allow_pickle=False) as file:
                return int(file["stop"]), file["ids"].astype(np.int64), file["away"]

    def calibrate(self, chunk: int, calibration: Calibration) -> None:
        """Write the recall in the part of the dataset that begins with row `chunk`."""
        self.calibrations[chunk] = calibration
        with cache.usable(self._folder):
            self._write(f"chunk-{chunk}.json", json.dumps(asdict(calibration)).encode())

    def publish(self, identity: cache.Identity, report: SearchReport) -> tuple[Table, Table]:
        """Make the finished tables an entry of the cache and open it as mapped files."""
        with cache.usable(self._folder):
            cache.write_meta(self._folder, identity, report)
            for mark in (*self._folder.glob("rows-*"), *self._folder.glob("chunk-*")):
                mark.unlink(missing_ok=True)
            cache.publish(self._folder, self._entry)
            for other in self._entry.parent.glob(f".part-{identity.key}-*"):
                shutil.rmtree(other, ignore_errors=True)
            state, next_state = (
                np.load(self._entry / file, mmap_mode="r", allow_pickle=False)
                for file in cache.FILES
            )
        return state, next_state

    def _file(self, block: int) -> Path:
        return self._folder / f"rows-{block}.npz"

    def _write(self, name: str, content: bytes) -> None:
        temporary = self._folder / f"{name}.{os.getpid()}"
        temporary.write_bytes(content)
        temporary.replace(self._folder / name)


def _create(path: Path, shape: tuple[int, int]) -> int:
    """Make an empty table file if there is none; where its numbers begin."""
    head = {"descr": "<i4", "fortran_order": False, "shape": shape}
    if not path.exists():
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        with temporary.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, head)
            stream.truncate(stream.tell() + 4 * shape[0] * shape[1])
        temporary.replace(path)
    with path.open("rb") as stream:
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        return stream.tell()
