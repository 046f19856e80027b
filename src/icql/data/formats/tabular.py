"""Logs as tables, one row per step, in pieces: one that holds everything, or batches of a file.

A log may lie in several files. Its rows count from 0 in each of them, as messages say it, and go on
from file to file in the table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError

Column = Callable[[str], Any]  # name → pyarrow.Array or ChunkedArray
Piece = tuple[slice, Column]  # the rows, and their columns
Files = tuple[tuple[Path, int], ...]  # the files of a log, each with its first row


@dataclass(frozen=True)
class LogTable:
    """Columns of a log, to be gone through as often as needed."""

    path: Path  # the file, or the pattern that names several
    files: Files
    rows: int
    pieces: Callable[[], Iterator[Piece]]

    @classmethod
    def whole(cls, path: Path, files: Files, rows: int, column: Column) -> LogTable:
        """A table in one piece."""
        return cls(path, files, rows, lambda: iter([(slice(0, rows), column)]))

    @classmethod
    def spooled(
        cls, path: Path, batches: Iterable[tuple[Path, Iterable[Any]]], folder: Path
    ) -> LogTable:
        """Every file's batches as one file in `folder` that is mapped, and read batch by batch."""
        pa, ipc = import_module("pyarrow"), import_module("pyarrow.ipc")
        spool, ends, files = folder / "table.arrow", [0], []
        with ExitStack() as opened:
            written: Any = None
            for file, some in batches:
                files.append((file, ends[-1]))
                for batch in some:
                    plain = pa.RecordBatch.from_arrays(
                        [decoded(column) for column in batch], names=batch.schema.names
                    )
                    if written is None:
                        schema = plain.schema
                        written = opened.enter_context(ipc.new_file(spool, schema))
                    written.write_batch(plain if plain.schema == schema else plain.cast(schema))
                    ends.append(ends[-1] + plain.num_rows)
        if len(ends) == 1:
            return cls(path, tuple(files), 0, lambda: iter(()))
        mapped = ipc.open_file(pa.memory_map(str(spool)))

        def pieces() -> Iterator[Piece]:
            for number, (begin, end) in enumerate(pairwise(ends)):
                yield slice(begin, end), mapped.get_batch(number).column

        return cls(path, tuple(files), ends[-1], pieces)

    def __iter__(self) -> Iterator[Piece]:
        for rows, column in self.pieces():
            yield rows, partial(self._values, rows, column)

    def locate(self, row: int) -> tuple[str, int]:
        """The file of a row, and the row's number there."""
        at = bisect_right([first for _, first in self.files], row) - 1
        file, first = self.files[at]
        return str(file), row - first

    def error(self, what: str, fix: str = "") -> UserError:
        """A fault of this log."""
        return UserError(what, where=str(self.path), fix=fix)

    def _values(self, rows: slice, column: Column, name: str) -> Any:
        values = decoded(column(name))
        if len(values) != rows.stop - rows.start:  # only a damaged file
            raise self.error(f"column {name!r} has {len(values)} of {rows.stop - rows.start} rows.")
        return values


def arrow(module: str, path: Path) -> Any:
    """A module of PyArrow, which only these logs need."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            "PyArrow is needed for CSV and Parquet and is not installed.",
            where=str(path),
            fix="pip install 'icql[logs]'",
        ) from error


def decoded(values: Any) -> Any:
    """A column without a dictionary of its values."""
    has = import_module("pyarrow").types.is_dictionary(values.type)
    return values.cast(values.type.value_type) if has else values


def plain(values: Any) -> NDArray[Any]:
    """A column as NumPy has it."""
    # an Array, unlike a ChunkedArray, must be told that a copy is fine
    chunked = hasattr(values, "chunks")
    array: NDArray[Any] = values.to_numpy() if chunked else values.to_numpy(zero_copy_only=False)
    return array


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds text."""
    types = import_module("pyarrow").types
    return types.is_string(kind) or types.is_large_string(kind)


def is_number(kind: Any) -> bool:
    """Whether a column of this type holds numbers, or true and false."""
    types = import_module("pyarrow").types
    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)


def distinct(values: Any) -> tuple[list[Any], NDArray[np.int64]]:
    """The different values of a column, in order of appearance, and which of them each row has.

    An empty cell has the number of the value None.
    """
    pa = import_module("pyarrow")
    chunks = getattr(values, "chunks", [values])
    encoded = pa.concat_arrays(chunks) if chunks else pa.array([], values.type)
    encoded = encoded.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
