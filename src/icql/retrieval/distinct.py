"""Equal rows, found by a hash of their bits and then compared: each is searched only once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icql.retrieval.metric import Ids, Points, pieces

ODD = np.uint64(0x9E3779B97F4A7C15)


def distinct(rows: Points) -> tuple[Ids, Ids]:
    """First row of each group of equal rows, in row order, and the group of each row."""
    _, first, group = np.unique(_hashes(rows), return_index=True, return_inverse=True)
    if not _same(rows, first, group):  # two rows share a hash: compare all of their bits
        bits = np.ascontiguousarray(rows)
        keys = bits.view(np.dtype((np.void, bits.shape[1] * bits.itemsize)))[:, 0]
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return first[order], number[group]


def _hashes(rows: Points) -> NDArray[np.uint64]:
    """64 bits per row; equal rows have equal ones."""
    hashes = np.zeros(len(rows), np.uint64)
    for piece in pieces(rows):
        for column in _bits(rows[piece]).T:
            hashes[piece] = (hashes[piece] ^ column) * ODD
            hashes[piece] ^= hashes[piece] >> np.uint64(29)
    return hashes


def _same(rows: Points, first: Ids, group: Ids) -> bool:
    """Whether every row equals the first of its group."""
    if len(first) == len(rows):
        return True
    return all(
        np.array_equal(_bits(rows[piece]), _bits(rows[first[group[piece]]]))
        for piece in pieces(rows)
    )


def _bits(rows: Points) -> NDArray[np.unsignedinteger]:
    kind = np.uint32 if rows.dtype == np.float32 else np.uint64
    return np.ascontiguousarray(rows).view(kind)
