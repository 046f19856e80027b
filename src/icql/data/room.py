"""Where the arrays of a dataset are put: in memory, or in files that are mapped into it.

A memory budget counts what only this process holds (anonymous memory). Pages of mapped files are
the system's cache: it writes them back and takes them away when memory is short.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from icql.data import checks
from icql.data.blocks import blocks
from icql.errors import UserError

PER_ROW = 12  # bytes of marks that reading and checking a log keep for each of its rows
WORKING = 12 * 2**20  # bytes that the blocks being worked on take
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Room:
    """A place for arrays: memory without a `folder`, otherwise one NPY file for each.

    `memory` is the budget in bytes; by default half of what the machine has.
    """

    folder: Path | None = None
    memory: int | None = None

    @property
    def budget(self) -> int:
        """Bytes that may be taken."""
        return checks.memory_limit() if self.memory is None else self.memory

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A new array, to be filled."""
        if self.folder is None or not math.prod(shape):  # nothing cannot be mapped
            return np.empty(shape, dtype)
        path = self.folder / f"{name}.npy"
        mapped: NDArray[Any] = npy.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process later on
            with path.open("r+b") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
                except OSError as error:
                    raise UserError(
                        f"there is no room for {say_size(mapped.nbytes)} ({error.strerror}).",
                        where=str(self.folder),
                    ) from error
        return mapped

    def fill(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        read: Callable[[slice], NDArray[Any]],
        *,
        multiple: int = 1,
    ) -> NDArray[Any]:
        """An array made of what `read` gives, all at once or, in a folder, block by block.

        Blocks begin at multiples of `multiple` rows, where that many are not too many.
        """
        if self.folder is None:
            return read(slice(0, shape[0]))
        array = self.empty(name, shape, dtype)
        width = math.prod(shape[1:])
        for block in blocks(shape[0], width, multiple=multiple):
            array[block] = checks.float32(read(block)) if dtype == np.float32 else read(block)
        return array

    def check(self, nbytes: int, rows: int, source: str) -> None:
        """Refuse arrays of `nbytes` and `rows` before they are read, if they would not fit."""
        if self.folder is None:
            checks.check_size(nbytes, source, self.budget)
        elif rows * PER_ROW + WORKING > self.budget:
            raise UserError(
                f"its {rows:,} rows need at least {say_size(rows * PER_ROW + WORKING)} of memory "
                f"to be read in blocks, over the budget of {say_size(self.budget)}.",
                where=source,
                fix="Allow more with --memory.",
            )


IN_MEMORY = Room()


@contextmanager
def scratch(beside: Path, memory: int | None = None) -> Iterator[Room]:
    """A room in a folder of its own within `beside`, which is gone afterwards."""
    beside.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=beside, prefix=".scratch-", ignore_cleanup_errors=True) as folder:
        yield Room(Path(folder), memory)


def read_size(text: str | int, *, where: str = "memory") -> int:
    """Bytes from a number or a text such as "500MB", "2GiB" or "1e9".

    Raises:
        UserError: if it is no size, or below one byte.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", str(text), re.IGNORECASE)
    unit = _UNITS.get(found[2].upper()) if found else None
    try:
        size = float(found[1]) * unit if found and unit is not None else math.nan
    except ValueError:
        size = math.nan
    if not 1 <= size < 2**63:  # NaN is neither
        raise UserError(
            f"{text!r} is not a size of memory.",
            where=where,
            fix="Give bytes, or a number with MB, GB, MiB or GiB, such as 500MB.",
        )
    return int(size)


def say_size(nbytes: int) -> str:
    """Bytes as people write them."""
    unit, name = next(((u, n) for n, u in (("GB", 10**9), ("MB", 10**6)) if nbytes >= u), (1, "B"))
    return f"{nbytes / unit:,.1f} {name}" if unit > 1 else f"{nbytes:,} B"
