"""How the tables are built in pieces: which rows are searched, and for which, at once."""

from __future__ import annotations

from dataclasses import dataclass

from icql.errors import UserError
from icql.retrieval.index import ROOM

BLOCK = 64_000  # rows whose contexts are found at once: a few seconds of work that may be lost
FIXED = 16_000_000  # bytes of one block of faiss's matrix products
WHOLE = 8  # times `ROOM`, to have room for the candidates of a block's queries
LEAST = 512  # rows; every block is a multiple of it


@dataclass(frozen=True)
class Plan:
    """Contexts are found for `block` rows at once, in `chunk` rows of the dataset at once.

    The first `known` rows have tables already, which say all about these rows.
    """

    rows: int
    known: int
    chunk: int
    block: int
    room: int = ROOM  # float64 numbers that a search may work on at once

    @property
    def chunks(self) -> list[slice]:
        """The parts of the dataset that are searched one after the other."""
        return _cut(0, self.known, self.chunk) + _cut(self.known, self.rows, self.chunk)

    @property
    def blocks(self) -> list[slice]:
        """The rows whose contexts are found together."""
        return _cut(0, self.known, self.block) + _cut(self.known, self.rows, self.block)


def plan(
    rows: int,
    known: int,
    columns: int,
    wanted: int,
    memory: int | None,
    *,
    cosine: bool,
    whole_blocks: bool = False,
) -> Plan:
    """Cut the work so that it takes at most about `memory` bytes; None: as much as is useful.

    With `whole_blocks` that is all queries of a block: an accelerator sorts them by place first.

    Beyond what faiss takes at any size, half is for the part of the dataset that is searched (its
    float32 rows twice, and ids), a quarter for the rows whose contexts are found, a quarter for
    ranking.
    """
    if memory is None:
        return Plan(rows, known, max(rows, 1), BLOCK, WHOLE * ROOM if whole_blocks else ROOM)
    searched = 8 * columns + 80 + (8 * (columns + 2) if cosine else 0)
    found = 16 * columns + 80 + 128 * wanted
    part = (memory - FIXED) // 4
    chunk, block = 2 * part // searched, part // found // LEAST * LEAST
    if chunk < LEAST or block < LEAST:
        least = FIXED + LEAST * max(2 * searched, 4 * found)
        raise UserError(
            f"{memory:,} bytes are too few to find {wanted} neighbours in {columns} columns.",
            where="memory",
            fix=f"Give at least {least:,} bytes.",
        )
    return Plan(rows, known, chunk, min(block, BLOCK), min(ROOM, part // 16))


def _cut(start: int, stop: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]
