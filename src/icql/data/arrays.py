"""Arrays that may be larger than memory: gone through in blocks, checked, put where there is room.

The block size is fixed, so a result never depends on how much memory there is. A memory budget
counts what only this process holds (anonymous memory); pages of mapped files are the system's
cache, which takes them away when memory is short. Checks raise a `UserError` that names the file,
the array, and where it applies row and column.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from icql.errors import UserError
from icql.files import scratch_folder

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]
Read = Callable[[slice], NDArray[Any]]  # rows start … stop - 1 → what stands there
Test = Callable[[slice], Bools]  # the same → which of them pass

BLOCK = 2**18  # numbers of a block: 1 MB as float32
NUMBERS = "fiub"  # dtype kinds that can be read as real numbers
COPIES = 3  # in memory: the steps, and the states and next states made of them
PER_ROW = 12  # bytes of marks that reading and checking a log keep for each of its rows
WORKING = 12 * 2**20  # bytes that the blocks being worked on take
MOST_PACKED = 1100  # times smaller: deflate, of the usual ways the strongest, ends at 1032
SMALL = 2**26  # bytes that do no harm whatever is claimed
_UNKNOWN_MEMORY = 8 * 2**30  # where the system does not say how much memory it has
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


# --- Blocks -----------------------------------------------------------------------------------


def blocks(rows: int, width: int = 1, *, multiple: int = 1) -> Iterator[slice]:
    """Cut `rows` rows of `width` numbers each into slices of about `BLOCK` numbers.

    They begin at multiples of `multiple` rows, unless that would make them far larger.
    """
    size = max(1, BLOCK // max(1, width))
    if 1 < multiple <= 8 * size:
        size = -(-size // multiple) * multiple
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def groups(starts: Rows) -> Iterator[slice]:
    """Cut episodes, given by their first rows, into runs that start within `BLOCK` rows."""
    edges = np.flatnonzero(np.diff(starts // BLOCK)) + 1
    for begin, end in pairwise([0, *edges.tolist(), len(starts)]):
        yield slice(begin, end)


def tally(rows: int, test: Test, *, width: int = 1) -> tuple[int | None, int]:
    """The first row that passes (None: none does), and how many do."""
    first: int | None = None
    count = 0
    for block in blocks(rows, width):
        passing = test(block)
        number = int(np.count_nonzero(passing))
        if number and first is None:
            first = block.start + int(passing.argmax())
        count += number
    return first, count


def pick(rows: int, test: Test, most: int) -> Rows:
    """At most `most` of the rows that pass, evenly spaced among them."""
    counts = [int(np.count_nonzero(test(block))) for block in blocks(rows)]
    count = sum(counts)
    wanted = np.linspace(0, count - 1, min(count, most)).astype(np.int64)
    found, before = [np.empty(0, np.int64)], 0
    for block, number in zip(blocks(rows), counts, strict=True):
        here = wanted[np.searchsorted(wanted, before) : np.searchsorted(wanted, before + number)]
        if here.size:
            found.append(block.start + np.flatnonzero(test(block))[here - before])
        before += number
    return np.concatenate(found)


def moments(array: NDArray[np.floating], keep: Bools | None = None) -> tuple[Doubles, Doubles]:
    """Mean and standard deviation (columns,) of the rows to `keep`, in float64; 0 without rows."""

    def rows() -> Iterator[Doubles]:
        for block in blocks(*array.shape):
            part = array[block] if keep is None else array[block][keep[block]]
            yield part.astype(np.float64)

    count = max(1, len(array) if keep is None else int(np.count_nonzero(keep)))
    mean = sum((part.sum(0) for part in rows()), np.zeros(array.shape[1])) / count
    square = sum((((part - mean) ** 2).sum(0) for part in rows()), np.zeros(array.shape[1]))
    return mean, np.sqrt(square / count)


# --- Checks -----------------------------------------------------------------------------------


def check_kind(name: str, dtype: np.dtype[Any], source: str) -> None:
    """Refuse arrays that do not hold real numbers (objects, strings, records)."""
    if dtype.kind not in NUMBERS:
        raise UserError(
            f"`{name}` holds values of type {dtype}, not numbers.",
            where=source,
            fix="Store it as a plain numeric array.",
        )


def matrix(name: str, values: Any, source: str) -> Floats:
    """`values` as float32 of shape (T, columns); non-finite numbers pass."""
    array = np.asarray(values)
    check_kind(name, array.dtype, source)
    if array.ndim != 2 or array.shape[1] == 0:
        raise UserError(
            f"`{name}` has shape {array.shape}, but (steps, columns) is needed.",
            where=source,
            fix="Flatten each observation and each action into one row of numbers.",
        )
    return float32(array)


def vector(name: str, values: Any, source: str) -> Floats:
    """`values` as float32 of shape (T,); a single column is taken as a vector."""
    return float32(_one_column(name, values, source))


def flags(name: str, values: Any, source: str, *, offset: int = 0) -> Bools:
    """`values` as booleans of shape (T,); anything but 0 and 1 is refused.

    `offset` is the row of the first value, for the message.
    """
    array = _one_column(name, values, source)
    odd, _ = tally(len(array), lambda rows: (array[rows] != 0) & (array[rows] != 1))
    if odd is not None:
        raise UserError(
            f"`{name}` is {array[odd]} at row {offset + odd}, but only 0 and 1 have a meaning.",
            where=source,
            fix="Write 1 where the flag is set and 0 elsewhere.",
        )
    return array.astype(np.bool_, copy=False)


def float32(array: NDArray[Any]) -> Floats:
    """`array` in the type that data has here; what is beyond float32 becomes Inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32, copy=False)


def not_finite(array: Floats, valid: Bools | None) -> tuple[int | None, int, int]:
    """First row with NaN or Inf (None: none), its column, and how many rows have some.

    Rows that are marked as not `valid` may hold anything.
    """

    def bad(rows: slice) -> Bools:
        fine = np.isfinite(array[rows]).reshape(rows.stop - rows.start, -1).all(axis=1)
        return np.logical_not(fine) if valid is None else np.logical_not(fine) & valid[rows]

    row, count = tally(len(array), bad, width=array[:1].size)
    return row, 0 if row is None else int(np.isfinite(array[row]).argmin()), count


@contextmanager
def reading(kind: str, path: Path, *reasons: type[BaseException]) -> Iterator[None]:
    """Refuse a file that is not there, and name one whose damage shows by one of `reasons`."""
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    try:
        yield
    except reasons as error:
        text = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"it cannot be read as {kind} ({text}).",
            where=str(path),
            fix="It may be truncated or damaged: write or fetch it again.",
        ) from error


def _one_column(name: str, values: Any, source: str) -> NDArray[Any]:
    array = np.asarray(values)
    check_kind(name, array.dtype, source)
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise UserError(
            f"`{name}` has shape {array.shape}, but one number per step is needed.", where=source
        )
    return array


# --- Room -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Room:
    """A place for arrays: memory without a `folder`, otherwise one mapped NPY file for each.

    `memory` is the budget in bytes; by default half of what the machine has.
    """

    folder: Path | None = None
    memory: int | None = None

    @property
    def budget(self) -> int:
        """Bytes that may be taken."""
        return memory_limit() if self.memory is None else self.memory

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
        self, name: str, shape: tuple[int, ...], dtype: Any, read: Read, *, multiple: int = 1
    ) -> NDArray[Any]:
        """An array made of what `read` gives, all at once or, in a folder, block by block.

        Blocks begin at multiples of `multiple` rows, where that many are not too many.
        """
        if self.folder is None:
            return read(slice(0, shape[0]))
        array = self.empty(name, shape, dtype)
        for block in blocks(shape[0], math.prod(shape[1:]), multiple=multiple):
            array[block] = float32(read(block)) if dtype == np.float32 else read(block)
        return array

    def check(self, nbytes: int, rows: int, source: str, stored: int | None = None) -> None:
        """Refuse arrays of `nbytes` and `rows` before they are read, if they would not fit.

        `stored` are the bytes of the file, where they are packed in it (see `check_packed`).
        """
        if self.folder is None and COPIES * nbytes > self.budget:
            raise UserError(
                f"its arrays need {COPIES * nbytes / 2**30:,.1f} GB of memory, over the limit of "
                f"{self.budget / 2**30:,.1f} GB (half of this machine's memory, where nothing else "
                "was said).",
                where=source,
                fix="Convert it once to a store that is read in blocks: icql data convert FILE "
                "FILE.icql; then use FILE.icql.",
            )
        if self.folder is not None and rows * PER_ROW + WORKING > self.budget:
            raise UserError(
                f"its {rows:,} rows need at least {say_size(rows * PER_ROW + WORKING)} of memory "
                f"to be read in blocks, over the budget of {say_size(self.budget)}.",
                where=source,
                fix="Allow more with --memory.",
            )
        if stored is not None:
            check_packed(nbytes, stored, source)


IN_MEMORY = Room()


def check_packed(nbytes: int, stored: int, source: str) -> None:
    """Refuse a file of `stored` bytes that claims arrays of `nbytes`, far more than it can hold.

    It is a trap, or damaged: its claim is not acted on, in memory or on disk.
    """
    if nbytes > MOST_PACKED * stored + SMALL:
        raise UserError(
            f"it claims arrays of {say_size(nbytes)} in a file of {say_size(stored)}, more than "
            "any compression gives.",
            where=source,
            fix="It may be damaged, or made to fill memory: write or fetch it again.",
        )


@contextmanager
def scratch(beside: Path, memory: int | None = None) -> Iterator[Room]:
    """A room in a folder of its own within `beside`, which is gone afterwards."""
    with scratch_folder(beside) as folder:
        yield Room(folder, memory)


def memory_limit() -> int:
    """Bytes a dataset may take in memory: half of what the machine has."""
    if not hasattr(os, "sysconf"):
        return _UNKNOWN_MEMORY
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def bytes_in_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Memory an array takes while it is read and turned into float32."""
    return math.prod(shape) * max(int(dtype.itemsize), np.dtype(np.float32).itemsize)


def read_size(text: str | int, *, where: str = "memory") -> int:
    """Bytes from a number or a text such as "500MB", "2GiB" or "1e9".

    Raises:
        UserError: if it is no size, or below one byte.
    """
    number = r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-z]*)\s*"
    found = re.fullmatch(number, str(text), re.IGNORECASE)
    unit = _UNITS.get(found[3].upper(), math.nan) if found else math.nan
    size = float(found[1] + (found[2] or "")) * unit if found else math.nan
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
