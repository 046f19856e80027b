"""Parquet logs: the columns that a mapping names, or our own layout with the default names."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import Floats, Room, blocks, reading
from icql.data.formats.assemble import assemble
from icql.data.formats.mapping import (
    KEYS,
    Given,
    choose,
    columns_of,
    files_of,
    same_columns,
)
from icql.data.formats.tabular import LogTable, arrow
from icql.data.signals import Signals
from icql.data.tasks import Task
from icql.data.transitions import Source
from icql.errors import UserError
from icql.files import atomic

HOW: dict[str, Any] = {"memory_map": True, "page_checksum_verification": True}
_META = b"icql"  # key of what a Parquet file of ours says about itself
_SEAL, _ABSENT, _BLOCK = "icql.seal", "0" * 64, 2**20
# an entry of the metadata as Thrift writes it: key, then field 2 with 64 bytes
_PLACE = re.compile(re.escape(_SEAL.encode()) + rb"\x18\x40([0-9a-f]{64})")


def read_parquet(path: Path, task: Task | None, room: Room, columns: Given) -> Source:
    """Read a Parquet log; `columns` is its mapping or the file that holds it.

    The name of `path` may be a pattern that stands for several files.
    """
    parquet, pa = arrow("pyarrow.parquet", path), arrow("pyarrow", path)
    mapping = columns_of(path, columns)
    files = files_of(path, mapping)
    # What Arrow raises depends on where in the file the damage is.
    damage = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, MemoryError)
    with ExitStack() as opened:
        parts = []
        for file in files:
            opened.enter_context(reading("Parquet", file, *damage))
            _check_seal(file)
            parts.append(opened.enter_context(parquet.ParquetFile(file, **HOW)))
        same_columns(files, [part.schema_arrow.names for part in parts])
        schema = parts[0].schema_arrow
        chosen = choose(mapping, schema.names, str(path))
        names = list(chosen.names(*KEYS))
        starts = [0, *np.cumsum([part.metadata.num_rows for part in parts]).tolist()]
        rows = starts[-1]
        room.check(rows * len(names) * 4, rows, str(path))
        if room.folder is None or not rows:
            # One column at a time: beside the arrays that stay, memory holds a single column.
            def column(name: str) -> Any:
                kind = schema.field(name).type
                read = [part.read([name]).column(name).cast(kind) for part in parts]
                return pa.chunked_array([chunk for one in read for chunk in one.chunks], kind)

            numbered = tuple(zip(files, starts, strict=False))
            table = LogTable.whole(path, numbered, rows, column)
        else:
            size = next(blocks(rows, len(names))).stop
            batches = (
                (file, part.iter_batches(size, columns=names))
                for file, part in zip(files, parts, strict=True)
            )
            table = LogTable.spooled(path, batches, room.folder)
        own = _own(schema.metadata or {}, path)
        said = own.get("task") if isinstance(own.get("task"), str) else None
        source = assemble(table, replace(chosen, task=mapping.task or said), task, room)
    signals = Signals.from_json(own.get("signals"), str(path))
    steps = source.steps
    if mapping.origin or not signals.fits(steps.observations.shape[1], steps.actions.shape[1]):
        return source
    return replace(source, info=replace(source.info, signals=signals or source.info.signals))


def write_parquet(path: Path, source: Source) -> None:
    """Write steps as a Parquet log with the default column names, all or nothing."""
    pa, parquet = arrow("pyarrow", path), arrow("pyarrow.parquet", path)
    steps = source.steps.checked(str(path)).finite(str(path)).without_last_rule()
    ends = steps.ends
    episode: NDArray[np.int64] = np.cumsum(ends) - ends
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    table: dict[str, NDArray[Any]] = {
        "episode": episode.astype(np.int32),
        "step": (np.arange(len(steps)) - starts[episode]).astype(np.int32),
        **_numbered("observation", steps.observations),
        **_numbered("action", steps.actions),
        "reward": steps.rewards,
        "terminal": steps.terminals,
        "truncated": steps.timeouts & ~steps.terminals,
        **_numbered("next_observation", steps.next_observations),
        **({} if steps.valid is None else {"valid": steps.valid}),
    }
    own = {"task": source.task and source.task.name, "signals": source.info.signals.as_json()}
    meta = {_META: json.dumps(own)}
    with atomic(path) as temporary:
        whole = pa.table(table).replace_schema_metadata(meta)
        with parquet.ParquetWriter(temporary, whole.schema, write_page_checksum=True) as writer:
            writer.write_table(whole)
            writer.add_key_value_metadata({_SEAL: _ABSENT})
        start, digest = _sealed(temporary)
        with temporary.open("r+b") as file:
            file.seek(start)
            file.write(digest)


def _check_seal(path: Path) -> None:
    """Refuse a file of ours that is not as it was written; a ValueError says so.

    Pages have checksums, but what says how to read them has none.
    """
    start, digest = _sealed(path)
    if start:
        with path.open("rb") as file:
            file.seek(start)
            if file.read(len(_ABSENT)) != digest:
                raise ValueError("it is not as it was written")


def _sealed(path: Path) -> tuple[int, bytes]:
    """Where the seal of a file is, and the SHA-256 of all of it but that; 0: it has none."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        tail = min(size, int.from_bytes(file.read(4), "little") + 8)  # its description, at the end
        file.seek(size - tail)
        place = _PLACE.search(file.read(tail))
        if place is None:
            return 0, b""
        start, digest = size - tail + place.start(1), hashlib.sha256()
        file.seek(0)
        for left in (start, size - start - len(_ABSENT)):
            while left and (block := file.read(min(left, _BLOCK))):
                digest.update(block)
                left -= len(block)
            file.seek(start + len(_ABSENT))
    return start, digest.hexdigest().encode()


def _own(metadata: dict[bytes, bytes], path: Path) -> dict[str, Any]:
    """What a file of ours says about itself; of others, nothing."""
    try:
        own = json.loads(metadata.get(_META, b"{}").decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"its metadata is not JSON ({error}).", where=str(path)) from error
    return own if isinstance(own, dict) else {}


def _numbered(name: str, matrix: Floats | None) -> dict[str, Floats]:
    return {} if matrix is None else {f"{name}_{i}": col for i, col in enumerate(matrix.T)}
