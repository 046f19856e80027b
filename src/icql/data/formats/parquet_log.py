"""Parquet logs: the columns that a mapping names, or our own layout with the default names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import Floats, Room, blocks, reading
from icql.data.formats.mapping import KEYS, Given, choose, columns_of
from icql.data.formats.tabular import LogTable, arrow
from icql.data.tasks import Task
from icql.data.transitions import Source
from icql.errors import UserError
from icql.files import atomic

_META = b"icql"  # key of what a Parquet file of ours says about itself


def read_parquet(path: Path, task: Task | None, room: Room, columns: Given) -> Source:
    """Read a Parquet log; `columns` is its mapping or the file that holds it."""
    parquet, pa = arrow("pyarrow.parquet", path), arrow("pyarrow", path)
    mapping = columns_of(path, columns)
    # What Arrow raises depends on where in the file the damage is.
    damage = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, MemoryError)
    with reading("Parquet", path, *damage), parquet.ParquetFile(path, memory_map=True) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        chosen = choose(mapping, schema.names, str(path))
        names = list(chosen.names(*KEYS))
        room.check(rows * len(names) * 4, rows, str(path))
        if room.folder is None or not rows:
            # One column at a time: beside the arrays that stay, memory holds a single column.
            table = LogTable.whole(path, rows, lambda name: file.read([name]).column(name))
        else:
            size = next(blocks(rows, len(names))).stop
            batches = file.iter_batches(size, columns=names)
            table = LogTable.spooled(path, batches, room.folder)
        said = mapping.task or _own_task(schema.metadata or {}, path)
        return table.source(replace(chosen, task=said), task, room)


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
    meta = {_META: json.dumps({"task": source.task and source.task.name})}
    with atomic(path) as temporary:
        parquet.write_table(pa.table(table).replace_schema_metadata(meta), temporary)


def _own_task(metadata: dict[bytes, bytes], path: Path) -> str | None:
    try:
        own = json.loads(metadata.get(_META, b"{}").decode())
    except ValueError as error:
        raise UserError(f"its metadata is not JSON ({error}).", where=str(path)) from error
    task = own.get("task") if isinstance(own, dict) else None
    return task if isinstance(task, str) else None


def _numbered(name: str, matrix: Floats | None) -> dict[str, Floats]:
    return {} if matrix is None else {f"{name}_{i}": col for i, col in enumerate(matrix.T)}
