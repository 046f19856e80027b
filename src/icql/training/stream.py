"""Training from data that does not fit: each part of the updates gets the rows it will ask for.

Which rows an update draws follows from (seed, step) alone, so they are known before it runs. For
some updates at a time their rows, contexts and windows are read from the mapped files, packed as
the whole data would be, and put on the device in tables of fixed size. The compiled loop draws as
ever and looks up where its rows stand: it computes the same bits as with all the data there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray
from numpy.typing import NDArray

from icql.algos.base import Algorithm, Batch
from icql.data.arrays import memory_limit, say_size, scratch
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.files import default_cache_dir
from icql.retrieval import Neighbours
from icql.training.corrective import Corrective
from icql.training.device import (
    DeviceData,
    Episodes,
    Keys,
    Normaliser,
    find_episodes,
    pack,
    row_width,
    tables_of,
    to_device,
)
from icql.training.draws import Alias, draw

Ids = NDArray[np.integer]

HELD = 5  # parts in memory: on the device those of now and next, the one being made, its rows' ids
DEVICE_SHARE = 0.5  # of a device's memory that data may take; networks and batches need the rest
NOWHERE = np.iinfo(np.int32).max


def rows_per_update(algorithm: Algorithm[Any]) -> int:
    """Transitions that one update draws."""
    return algorithm.settings.batch_size * algorithm.needs.batches


def keys_of(stream: PRNGKeyArray, step: Array) -> Key[Array, "2"]:
    """Return the keys of an update: one draws its rows, the other drives the algorithm."""
    return jax.random.split(jax.random.fold_in(stream, step))


def feed(
    algorithm: Algorithm[Any],
    data: Transitions,
    normaliser: Normaliser,
    neighbours: Neighbours | None,
    *,
    alias: Alias | None = None,
    corrective: Corrective | None = None,
    seeds: int,
    memory: int | None,
) -> DeviceData | Streamed:
    """Put the data on the device if it fits, and otherwise make ready to stream it.

    Args:
        algorithm: says what a batch consists of.
        data: the transitions.
        normaliser: what is done to states and rewards.
        neighbours: tables of contexts, where the algorithm needs them.
        alias: how rows are drawn, where not uniformly.
        corrective: what is done to drawn rows.
        seeds: how many are trained side by side.
        memory: bytes that data may take, if the device has them; by default half of the machine's.

    Raises:
        UserError: if what a single update needs is beyond `memory`.
    """
    stats = jax.local_devices()[0].memory_stats() or {}  # a device may not say what it has
    device = DEVICE_SHARE * stats.get("bytes_limit", math.inf)
    limit = min(memory_limit() if memory is None else memory, device)
    length, near = algorithm.needs.length, sum(t.shape[1] for t in tables_of(neighbours))
    extra = near + 4 * bool(length)  # numbers of a row beside the packed ones
    if 8 * len(data) * (row_width(data) + extra) <= limit:  # while it is packed and on the device
        return to_device(
            data, normaliser, neighbours, length=length, alias=alias, corrective=corrective
        )
    rows = seeds * rows_per_update(algorithm)
    asked, behind = rows * (length or 1), rows * near
    nbytes = HELD * 4 * ((asked + behind) * row_width(data) + asked * (extra + 1))
    updates = int(limit) // nbytes
    if not updates:
        raise UserError(
            f"what one update needs at a time takes {say_size(nbytes)}, over the budget of "
            f"{say_size(int(limit))}.",
            where="memory",
            fix="Allow more, or take fewer seeds, a smaller batch or a smaller context.",
        )
    episodes = None
    if length is not None:
        with scratch(default_cache_dir()) as room:  # what is mapped outlives its folder
            episodes = find_episodes(data, normaliser, length, room)
    sizes = updates * asked, updates * behind
    drawn = alias, corrective
    return Streamed(data, normaliser, tables_of(neighbours), episodes, *drawn, updates, sizes)


@dataclass
class Streamed:
    """Data that stays on disk; `at` fetches what some updates need (see the top of this file)."""

    data: Transitions
    normaliser: Normaliser
    tables: tuple[NDArray[np.int32], ...]
    episodes: Episodes | None
    alias: Alias | None
    corrective: Corrective | None
    updates: int  # that are served at a time
    sizes: tuple[int, int]  # rows that they can ask for, and rows behind those
    _part: tuple[int, DeviceData] | None = None

    def at(self, streams: Keys, step: int, size: int) -> tuple[DeviceData, int]:
        """Return the data that update `step` needs, and the update up to which it serves."""
        begin = step - step % self.updates
        if self._part is None or self._part[0] != begin:
            steps = jnp.arange(begin, begin + self.updates)
            drawn = np.asarray(_draws(streams, steps, size, len(self.data), self.alias))
            self._part = begin, self.load(drawn.ravel(), *self.sizes)
        return self._part[1], begin + self.updates

    def probe(self, size: int) -> Batch:
        """Return the first `size` transitions, or all, as a batch."""
        index = np.arange(min(size, len(self.data)))
        return self.load(index).batch(jnp.asarray(index))

    def load(self, index: Ids, asked: int | None = None, behind: int | None = None) -> DeviceData:
        """Read the rows at `index` with their contexts or windows, padded to the given sizes."""
        ids = np.unique(index)
        if self.episodes is not None:
            last = self.episodes.last[ids][:, None]
            ids = np.unique(np.minimum(ids[:, None] + np.arange(self.episodes.length), last))
        near = [table[ids] for table in self.tables]
        rest = np.setdiff1d(np.concatenate([ids[:0], *(table.ravel() for table in near)]), ids)
        asked, behind = asked or len(ids), len(rest) if behind is None else behind
        rows = np.zeros((asked + behind, row_width(self.data)), np.float32)
        pack(self.data, self.normaliser, ids, rows[: len(ids)])
        pack(self.data, self.normaliser, rest, rows[asked : asked + len(rest)])
        return DeviceData(
            jnp.asarray(rows),
            tuple(_padded(_places(table, ids, rest, asked), asked, 0) for table in near),
            self.data.observation_dim,
            self.data.action_dim,
            len(self.data),
            self._windows(ids, asked),
            _padded(ids, asked, NOWHERE),
            self.alias,
            self.corrective,
        )

    def _windows(self, ids: Ids, asked: int) -> Episodes | None:
        """Rows of an episode that are all here stand side by side, for `ids` ascend."""
        e = self.episodes
        if e is None:
            return None
        last = np.arange(len(ids)) + np.minimum(np.asarray(e.last[ids]) - ids, e.length - 1)
        return Episodes(
            last=_padded(last, asked, 0),
            step=_padded(np.asarray(e.step[ids]), asked, 0),
            to_go=_padded(np.asarray(e.to_go[ids]), asked, 0),
            episode=_padded(np.asarray(e.episode[ids]), asked, 0),
            length=e.length,
        )


@partial(jax.jit, static_argnums=(2, 3))
def _draws(streams: Keys, steps: Array, size: int, total: int, alias: Alias | None) -> Array:
    """Rows that each seed's updates draw: (seeds, steps, size)."""

    def one(stream: PRNGKeyArray, step: Array) -> Array:
        return draw(keys_of(stream, step)[0], size, total, alias)

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(streams, steps)


def _places(table: NDArray[np.int32], ids: Ids, rest: Ids, asked: int) -> Ids:
    """Where the rows named in `table` stand: among the first, `ids`, or behind them."""
    first = np.minimum(np.searchsorted(ids, table), len(ids) - 1)
    return np.where(ids[first] == table, first, asked + np.searchsorted(rest, table))


def _padded(array: NDArray[Any], rows: int, value: int) -> Array:
    """`array` on the device with `rows` rows."""
    dtype = np.float32 if array.dtype.kind == "f" else np.int32
    padded = np.full((rows, *array.shape[1:]), value, dtype)
    padded[: len(array)] = array
    return jnp.asarray(padded)
