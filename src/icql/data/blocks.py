"""Whole-array questions answered block by block, so that data may be larger than memory.

The block size is fixed: a result never depends on how much memory there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Test = Callable[[slice], Bools]  # rows start … stop - 1 → which of them pass

BLOCK = 2**18  # numbers of a block: 1 MB as float32


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


def moments(array: NDArray[np.floating], keep: Bools | None = None) -> tuple[Floats, Floats]:
    """Mean and standard deviation (columns,) of the rows to `keep`, in float64; 0 without rows."""

    def rows() -> Iterator[Floats]:
        for block in blocks(*array.shape):
            part = array[block] if keep is None else array[block][keep[block]]
            yield part.astype(np.float64)

    count = max(1, len(array) if keep is None else int(np.count_nonzero(keep)))
    mean = sum((part.sum(0) for part in rows()), np.zeros(array.shape[1])) / count
    square = sum((((part - mean) ** 2).sum(0) for part in rows()), np.zeros(array.shape[1]))
    return mean, np.sqrt(square / count)
