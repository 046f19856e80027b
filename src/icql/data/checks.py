"""Checks that every source shares: kinds, shapes, finite numbers, size.

Each raises a `UserError` that names the file, the array, and where it applies row and column.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.blocks import tally
from icql.errors import UserError

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

NUMBERS = "fiub"  # dtype kinds that can be read as real numbers
COPIES = 3  # the steps, and the states and next states made of them
_UNKNOWN_MEMORY = 8 * 2**30  # where the system does not say how much memory it has


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
    array = _one_column(name, np.asarray(values), source)
    check_kind(name, array.dtype, source)
    return float32(array)


def flags(name: str, values: Any, source: str, *, offset: int = 0) -> Bools:
    """`values` as booleans of shape (T,); anything but 0 and 1 is refused.

    `offset` is the row of the first value, for the message.
    """
    array = _one_column(name, np.asarray(values), source)
    check_kind(name, array.dtype, source)
    odd, _ = tally(len(array), lambda rows: (array[rows] != 0) & (array[rows] != 1))
    if odd is not None:
        raise UserError(
            f"`{name}` is {array[odd]} at row {offset + odd}, but only 0 and 1 have a meaning.",
            where=source,
            fix="Write 1 where the flag is set and 0 elsewhere.",
        )
    return array.astype(np.bool_, copy=False)


def check_finite(name: str, array: Floats, valid: Bools | None, source: str) -> None:
    """Refuse NaN and Inf, except in rows that the source itself marks as invalid."""

    def bad(rows: slice) -> Bools:
        fine = np.isfinite(array[rows]).reshape(rows.stop - rows.start, -1).all(axis=1)
        return np.logical_not(fine) if valid is None else np.logical_not(fine) & valid[rows]

    row, count = tally(len(array), bad, width=array[:1].size)
    if row is None:
        return
    column = "" if array.ndim == 1 else f", column {int(np.isfinite(array[row]).argmin())}"
    more = f" ({count} such rows)" if count > 1 else ""
    raise UserError(
        f"`{name}` is not a finite number at row {row}{column}{more}.",
        where=source,
        fix="Repair these rows, or mark them with 0 in an array `valid` to have them left out.",
    )


def memory_limit() -> int:
    """Bytes a dataset may take in memory: half of what the machine has."""
    if not hasattr(os, "sysconf"):
        return _UNKNOWN_MEMORY
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def bytes_in_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Memory an array takes while it is read and turned into float32."""
    return math.prod(shape) * max(int(dtype.itemsize), np.dtype(np.float32).itemsize)


def check_size(nbytes: int, source: str, limit: int) -> None:
    """Refuse arrays of `nbytes` before they are read, if their transitions would not fit."""
    needed = COPIES * nbytes
    if needed > limit:
        raise UserError(
            f"its arrays need {needed / 2**30:,.1f} GB of memory, "
            f"over the limit of {limit / 2**30:,.1f} GB (half of this machine's memory, where "
            "nothing else was said).",
            where=source,
            fix="Convert it once to a store that is read in blocks: icql data convert FILE "
            "FILE.icql; then use FILE.icql.",
        )


def _one_column(name: str, array: NDArray[Any], source: str) -> NDArray[Any]:
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise UserError(
            f"`{name}` has shape {array.shape}, but one number per step is needed.", where=source
        )
    return array


def float32(array: NDArray[Any]) -> Floats:
    """`array` in the type that data has here."""
    # A float64 beyond float32 becomes Inf here and is then reported by `check_finite`.
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32, copy=False)
