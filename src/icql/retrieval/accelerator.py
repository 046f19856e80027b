"""Candidates for exact search on an accelerator, in blocks: no N × N matrix is ever in memory.

Squared distances of a chunk of queries and some tiles of states are one matrix product. Sorting
them is what would cost, so groups of `GROUP` states are reduced to their least distance at once:
the m groups with the least ones hold the m nearest states. Among the minima the same is done again
until few enough are left to sort, and on the way back only the members of m groups are looked at.

States lie in tiles: boxes of about equally many near ones. Turned to their principal directions,
which leaves all distances as they are, they are halved again and again across the column in which
they spread most. Chunks are of queries near each other, and the tiles nearest to them come first.
The m-th least minimum so far is the most that the m-th nearest state can be away, so tiles whose
box is farther than that from every query of the chunk are never looked at.

The queries are split over the devices, each of which has all states.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from icql.retrieval.exact import Proposal
from icql.retrieval.index import MOST_THREADS, Floats
from icql.retrieval.metric import PASS, Ids, Points, Rows, pieces

GROUP = 32  # states, or minima, that are reduced to their least distance
QUERIES = 65_536  # queries of one device at once, a little over `neighbours.BLOCK`
CHUNK = 1024  # queries that look at the same tiles
WIDE = 512  # candidates from which on a chunk has fewer queries: it takes no more memory
TILE = 2048  # states in one tile
PRODUCT = 32_768  # states in one matrix product
PRODUCTS = 16  # of which the minima are kept before the least ones are picked
UNTHREADED = 2**17  # multiplications for which BLAS starts no threads: they would wait for ours
SPREAD = 1024  # states from which the spread of a part is told

T = TypeVar("T")
R = TypeVar("R")

Looked = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Tiles (tiles,) to look at, those looked at, the least minima so far (Q, m) and their groups."""

Found = tuple[jax.Array, jax.Array, jax.Array]
"""Candidates (Q, m), the least squared distance (Q,) of all others, tiles looked at (Q,)."""


class Tiles(NamedTuple):
    """States in tiles of at most C rows; one more tile, the last, is empty.

    Rows that only fill up a tile are infinitely far away by their norm, and their id is -1.
    """

    states: Floats  # (tiles + 1, C, D)
    norms: Floats  # (tiles + 1, C) |x|²
    ids: NDArray[np.int32]  # (tiles + 1, C) which row it was
    low: Floats  # (tiles, D) the boxes
    high: Floats  # (tiles, D)


class Accelerator:
    """Centred float32 states (N, D), as in `Index.near`, on every device, to propose neighbours."""

    def __init__(self, near: Floats) -> None:
        devices = jax.local_devices()
        self._mesh = Mesh(np.array(devices), ("queries",))
        self._rows = len(near)
        tiles, self._rotation = tiled(near, TILE, GROUP)
        self._tiles = jax.device_put(tiles, NamedSharding(self._mesh, P()))
        self._chunk = min(CHUNK, QUERIES)
        self._chunks = QUERIES // self._chunk
        self.most = self._chunks * self._chunk * len(devices)

    def propose(self, queries: Points, asked: Rows, k: int, m: int) -> Proposal:
        """The m nearest states of centred queries, as `exact.Proposer`.

        The arrays may be longer than the queries: an uneven last block is filled up.
        """
        return self.search(asked, m)[:2]

    def search(self, asked: Rows, m: int) -> Found:
        """The same with the number of tiles (Q,) that were looked at for each query."""
        chunk = self._chunk
        while chunk % 2 == 0 and chunk * m > CHUNK * WIDE:
            chunk //= 2
        at_least = self._mesh.size * self._chunk
        sizes = (at_least * max(1, self._chunks // part) for part in (64, 8, 1))
        size = next(size for size in sizes if size >= len(asked))  # few programs to compile
        filled = np.zeros((size, asked.shape[1]), np.float32)
        filled[: len(asked)] = turn(asked, self._rotation)
        real = np.arange(size) < len(asked)
        split = jax.device_put((filled, real), NamedSharding(self._mesh, P("queries")))
        found: Found = _program(self._mesh, m, self._rows, chunk)(self._tiles, *split)
        return found


@cache
def _program(mesh: Mesh, m: int, rows: int, chunk: int) -> jax.stages.Wrapped:
    """The compiled proposal for `m` candidates among `rows` states."""
    split = P("queries")
    return jax.jit(
        jax.shard_map(
            partial(_propose, m=m, rows=rows, chunk=chunk),
            mesh=mesh,
            in_specs=(P(), split, split),
            out_specs=(split, split, split),
            check_vma=False,
        )
    )


def _propose(
    tiles: Tiles, asked: jax.Array, real: jax.Array, *, m: int, rows: int, chunk: int
) -> Found:
    """m candidates (Q, m), the least squared distance (Q,) of all other states, tiles seen (Q,).

    Takes queries (Q, D), Q a multiple of `chunk`, and which of them (Q,) do not only fill up. They
    are cut into chunks by their nearest tile.
    """
    queries, columns = asked.shape
    parts = asked.reshape(-1, chunk, columns)
    nearest = lax.map(lambda part: _bounds(tiles, part).argmin(1), parts).reshape(-1)
    order = jnp.argsort(jnp.where(real, nearest, len(tiles.low)))
    count = real.sum()
    # The last chunk is filled up with its last query: no tile is looked at for that.
    asked = asked[order[jnp.clip(jnp.arange(queries), 0, jnp.maximum(count, 1) - 1)]]

    def one_chunk(i: jax.Array, found: Found) -> Found:
        part = lax.dynamic_slice(asked, (i * chunk, 0), (chunk, columns))
        put = partial(lax.dynamic_update_slice_in_dim, start_index=i * chunk, axis=0)
        return jax.tree.map(put, found, _search(tiles, part, m=m, rows=rows))

    nothing = (
        jnp.zeros((queries, m), jnp.int32),
        jnp.zeros(queries, asked.dtype),
        jnp.zeros(queries, jnp.int32),
    )
    found = lax.fori_loop(0, -(-count // chunk), one_chunk, nothing)
    back = jnp.argsort(order)
    return jax.tree.map(lambda part: part[back], found)


def _bounds(tiles: Tiles, asked: jax.Array) -> jax.Array:
    """The least squared distance (Q, tiles) that a state of each tile can have.

    Not above what is computed as Σ(x - q)² for any of its states, since rounding keeps the order:
    what the certificate allows for that sum is enough for this one.
    """
    query = asked[:, None]
    gap = jnp.maximum(jnp.maximum(tiles.low[None] - query, query - tiles.high[None]), 0)
    return jnp.square(gap).sum(-1)


def _search(tiles: Tiles, asked: jax.Array, *, m: int, rows: int) -> Found:
    """`_propose` for one chunk of queries."""
    least, groups, seen = _nearest_groups(tiles, asked, m=m, rows=rows)
    members = tiles.states.reshape(-1, GROUP, asked.shape[1])[groups]
    ids = tiles.ids.reshape(-1, GROUP)[groups]
    squared = jnp.square(members - asked[:, None, None, :]).sum(-1)
    # A group that is infinitely far was never looked at, or is empty.
    squared = jnp.where((ids < 0) | jnp.isinf(least)[:, :, None], jnp.inf, squared)
    squared, ids = (part.reshape(len(asked), -1) for part in (squared, ids))
    nearest, place = lax.top_k(-squared, m)
    candidates = jnp.take_along_axis(ids, place, 1)
    seen = jnp.full(len(asked), seen, jnp.int32)
    if m == rows:
        return candidates, jnp.full(len(asked), jnp.inf, asked.dtype), seen
    unseen = -nearest[:, -1]
    if groups.shape[1] < tiles.low.shape[0] * tiles.ids.shape[1] // GROUP:
        # Never below the m-th distance but for rounding, which the certificate must know of. The
        # tiles that were not looked at are farther than this.
        unseen = jnp.minimum(unseen, least[:, -1] + jnp.square(asked).sum(1))
    return candidates, unseen, seen


def _nearest_groups(
    tiles: Tiles, asked: jax.Array, *, m: int, rows: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The m groups with the least minima |x - q|² - |q|² (Q, m), ascending: minima and numbers.

    Also how many tiles were looked at. Fewer than m where there are fewer; infinite minima are
    those of no group.
    """
    count, per_tile = tiles.low.shape[0], tiles.ids.shape[1] // GROUP
    m = min(m, count * per_tile)
    at_once = min(count, max(1, PRODUCT // tiles.ids.shape[1]))
    window = at_once * min(PRODUCTS, -(-count // at_once))
    bounds, norms = _bounds(tiles, asked), jnp.square(asked).sum(1)
    by_bound = bounds.min(0)
    # The nearest tiles that certainly hold m groups, one with fewer rows than others too.
    enough = min(count, -(-m // -(-(rows // count) // GROUP)))
    start = -lax.top_k(-bounds, enough)[0][:, -1] if enough > 1 else bounds.min(1)

    def needed(seen: jax.Array, limit: jax.Array) -> jax.Array:
        return ~seen & (bounds <= limit[:, None]).any(0)

    def look(state: Looked) -> Looked:
        wanted, seen, least, groups = state
        chosen = jnp.argsort(jnp.where(wanted, by_bound, jnp.inf))[:window]
        chosen = jnp.where(wanted[chosen], chosen, count).astype(groups.dtype)  # the empty tile
        chosen = jnp.pad(chosen, (0, window - len(chosen)), constant_values=count)
        minima = _group_minima(tiles, asked, chosen, wanted.sum(), at_once)
        columns = _smallest(minima, min(m, minima.shape[1]))
        numbers = chosen[columns // per_tile] * per_tile + (columns % per_tile).astype(groups.dtype)
        both = jnp.concatenate((least, jnp.take_along_axis(minima, columns, 1)), 1)
        negative, place = lax.top_k(-both, m)
        groups = jnp.take_along_axis(jnp.concatenate((groups, numbers), 1), place, 1)
        seen = seen.at[chosen].set(True, mode="drop")
        farthest = -negative[:, -1]
        limit = jnp.where(jnp.isinf(farthest), start, farthest + norms)
        return needed(seen, limit), seen, -negative, groups

    seen = jnp.zeros(count, bool)
    least = jnp.full((len(asked), m), jnp.inf, asked.dtype)
    groups = jnp.zeros((len(asked), m), jnp.int32)
    state = (needed(seen, start), seen, least, groups)
    _, seen, least, groups = lax.while_loop(lambda state: state[0].any(), look, state)
    return least, groups, seen.sum()


def _group_minima(
    tiles: Tiles, asked: jax.Array, chosen: jax.Array, count: jax.Array, at_once: int
) -> jax.Array:
    """The least |x - q|² - |q|² in every group of the first `count` chosen tiles: (Q, groups)."""
    size = tiles.ids.shape[1]
    groups = at_once * size // GROUP

    def some(i: jax.Array, minima: jax.Array) -> jax.Array:
        these = lax.dynamic_slice(chosen, (i * at_once,), (at_once,))
        states = tiles.states[these].reshape(at_once * size, -1)
        product = jnp.matmul(asked, states.T, precision=lax.Precision.HIGHEST)
        squared = tiles.norms[these].reshape(1, -1) - 2 * product
        least = squared.reshape(len(asked), groups, GROUP).min(-1)
        return lax.dynamic_update_slice(minima, least, (0, i * groups))

    products = len(chosen) // at_once
    nothing = jnp.full((len(asked), products * groups), jnp.inf, asked.dtype)
    return lax.fori_loop(0, jnp.minimum(-(-count // at_once), products), some, nothing)


def _smallest(values: jax.Array, m: int) -> jax.Array:
    """Columns of the m smallest values in every row (Q, width), in ascending order."""
    rows, width = values.shape
    if width <= 2 * GROUP * m:
        return lax.top_k(-values, m)[1]
    fill = -width % GROUP
    filled = jnp.pad(values, ((0, 0), (0, fill)), constant_values=jnp.inf)
    groups = _smallest(filled.reshape(rows, -1, GROUP).min(-1), m)
    members = groups[:, :, None] * GROUP + jnp.arange(GROUP, dtype=groups.dtype)[None, None]
    columns = members.reshape(rows, -1)
    candidates = jnp.take_along_axis(filled, columns, 1)
    return jnp.take_along_axis(columns, lax.top_k(-candidates, m)[1], 1)


def tiled(near: Floats, tile: int, multiple: int) -> tuple[Tiles, Rows]:
    """Sort states (N, D) into tiles of about `tile` rows, C a multiple of `multiple`.

    Also gives the rotation (D, D) by which queries must be turned.
    """
    rows, columns = near.shape
    count = -(-rows // tile)
    starts = np.arange(count + 1) * rows // count  # all are equally full but for one row
    size = -(-int(np.diff(starts).max()) // multiple) * multiple
    rotation = _principal(near)
    turned = np.empty_like(near)

    _each(lambda piece: np.copyto(turned[piece], turn(near[piece], rotation)), pieces(near))
    order = _sorted(turned, starts)
    out = Tiles(
        np.zeros((count + 1, size, columns), np.float32),
        np.full((count + 1, size), np.inf, np.float32),
        np.full((count + 1, size), -1, np.int32),
        np.empty((count, columns), np.float32),
        np.empty((count, columns), np.float32),
    )

    def fill(i: int) -> None:
        ids = order[starts[i] : starts[i + 1]]
        inside = turned[ids]
        out.states[i, : len(ids)], out.ids[i, : len(ids)] = inside, ids
        out.norms[i, : len(ids)] = np.square(inside, dtype=np.float64).sum(axis=1)
        out.low[i], out.high[i] = inside.min(axis=0), inside.max(axis=0)

    _each(fill, range(count))
    return out, rotation


def turn(rows: Points, rotation: Rows) -> Floats:
    """Rows (N, D) times the rotation, rounded only once."""
    turned = np.empty(rows.shape, np.float32)
    size = max(64, UNTHREADED // rotation.size)
    for start in range(0, len(rows), size):
        turned[start : start + size] = rows[start : start + size].astype(np.float64) @ rotation
    return turned


def _principal(near: Floats) -> Rows:
    """The principal directions (D, D) of some of the states, as columns."""
    sample = near[:: max(1, near.size // (16 * PASS))].astype(np.float64)
    sample -= sample.mean(axis=0)
    directions: Rows = np.linalg.eigh(sample.T @ sample)[1]
    return directions


def _sorted(rows: Floats, starts: Ids) -> Ids:
    """The order of the rows in which tile i has those from starts[i] to starts[i + 1]."""
    order = np.arange(len(rows))

    def halve(part: tuple[int, int]) -> list[tuple[int, int]]:
        first, last = part
        if last - first < 2:
            return []
        middle = (first + last) // 2
        own = order[starts[first] : starts[last]]
        column = rows[own[:: max(1, len(own) // SPREAD)]].var(axis=0).argmax()
        own[:] = own[np.argpartition(rows[own, column], starts[middle] - starts[first])]
        return [(first, middle), (middle, last)]

    parts = [(0, len(starts) - 1)]
    while parts:
        parts = [half for halves in _each(halve, parts) for half in halves]
    return order


def _each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What `work` gives for each item, many at once."""
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items))
