"""Candidates for exact search on an accelerator, in blocks: no N × N matrix is ever in memory.

Squared distances of a block of queries and a tile of states are one matrix product. Sorting them
is what would cost, so groups of `GROUP` states are reduced to their least distance at once: the m
groups with the least ones hold the m nearest states. Among the minima the same is done again until
few enough are left to sort, and on the way back only the members of m groups are looked at.

The queries are split over the devices, each of which has all states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from icql.retrieval.exact import Proposal
from icql.retrieval.index import Floats
from icql.retrieval.metric import Points, Rows, pieces

GROUP = 32  # states, or minima, that are reduced to their least distance
QUERIES = 8192  # queries of one device at once, a little over 1/8 of `plan.BLOCK`
TILE = 32_768  # states in one matrix product


class Accelerator:
    """Centred float32 states (N, D) on every device, ready to propose neighbours.

    Args:
        near: the states, as in `Index.near`.
        devices: the devices that share the queries; None: all of this process.
        queries: how many queries one device takes at once; None: `QUERIES`.
        tile: how many states are multiplied with them at once; None: `TILE`.
    """

    def __init__(
        self,
        near: Floats,
        devices: Sequence[jax.Device] | None = None,
        *,
        queries: int | None = None,
        tile: int | None = None,
    ) -> None:
        devices = jax.local_devices() if devices is None else devices
        self._mesh = Mesh(np.array(devices), ("queries",))
        self._rows, columns = near.shape
        tile = min(tile or TILE, -(-len(near) // GROUP) * GROUP)
        tiles = -(-len(near) // tile)
        states = np.zeros((tiles * tile, columns), np.float32)
        norms = np.full(tiles * tile, np.inf, np.float32)  # rows that only fill up are far away
        states[: len(near)] = near
        for piece in pieces(near):
            norms[: len(near)][piece] = np.square(near[piece], dtype=np.float64).sum(axis=1)
        everywhere = NamedSharding(self._mesh, P())
        self._states = jax.device_put(states.reshape(tiles, tile, columns), everywhere)
        self._norms = jax.device_put(norms.reshape(tiles, tile), everywhere)
        self.most = (queries or QUERIES) * len(devices)

    def propose(self, queries: Points, asked: Rows, k: int, m: int) -> Proposal:
        """The m nearest states of centred queries, as `exact.Proposer`; returns at once.

        The arrays may be longer than the queries: an uneven last block is filled up.
        """
        devices = self._mesh.size
        whole = self.most // devices
        sizes = (devices * max(1, whole // part) for part in (64, 8, 1))  # few programs to compile
        size = next(size for size in sizes if size >= len(asked))
        filled = np.zeros((size, asked.shape[1]), np.float32)
        filled[: len(asked)] = asked
        split = jax.device_put(filled, NamedSharding(self._mesh, P("queries")))
        program = _program(self._mesh, m, self._rows)
        return program(self._states, self._norms, split)


@cache
def _program(mesh: Mesh, m: int, rows: int) -> jax.stages.Wrapped:
    """The compiled proposal for `m` candidates among `rows` states."""
    split = P("queries")
    return jax.jit(
        jax.shard_map(
            partial(_propose, m=m, rows=rows),
            mesh=mesh,
            in_specs=(P(), P(), split),
            out_specs=(split, split),
            check_vma=False,
        )
    )


def _propose(
    states: jax.Array, norms: jax.Array, asked: jax.Array, *, m: int, rows: int
) -> tuple[jax.Array, jax.Array]:
    """m candidates (Q, m) and the least squared distance (Q,) of all other states.

    Takes states (tiles, T, D) with squared norms (tiles, T), infinite beyond `rows`, and queries
    (Q, D).
    """
    minima = _group_minima(states, norms, asked)
    groups = _smallest(minima, min(m, minima.shape[1]))
    members = states.reshape(-1, GROUP, states.shape[-1])[groups]
    squared = jnp.square(members - asked[:, None, None, :]).sum(-1).reshape(len(asked), -1)
    ids = _members_of(groups)
    squared = jnp.where(ids < rows, squared, jnp.inf)
    least, place = lax.top_k(-squared, m)
    candidates = jnp.take_along_axis(ids, place, 1)
    if m == rows:
        return candidates, jnp.full(len(asked), jnp.inf, asked.dtype)
    unseen = -least[:, -1]
    if m < minima.shape[1]:
        # Never below the m-th distance but for rounding, which the certificate must know of.
        other_groups = jnp.take_along_axis(minima, groups[:, -1:], 1)[:, 0]
        unseen = jnp.minimum(unseen, other_groups + jnp.square(asked).sum(1))
    return candidates, unseen


def _group_minima(states: jax.Array, norms: jax.Array, asked: jax.Array) -> jax.Array:
    """The least |x - q|² - |q|² in every group of states: (Q, groups)."""
    tiles, tile, _ = states.shape
    groups = tile // GROUP

    def one_tile(i: jax.Array, minima: jax.Array) -> jax.Array:
        product = jnp.matmul(asked, states[i].T, precision=lax.Precision.HIGHEST)
        squared = norms[i][None] - 2 * product
        least = squared.reshape(len(asked), groups, GROUP).min(-1)
        return lax.dynamic_update_slice(minima, least, (0, i * groups))

    start = jnp.zeros((len(asked), tiles * groups), asked.dtype)
    return lax.fori_loop(0, tiles, one_tile, start)


def _smallest(values: jax.Array, m: int) -> jax.Array:
    """Columns of the m smallest values in every row (Q, width), in ascending order."""
    rows, width = values.shape
    if width <= 2 * GROUP * m:
        return lax.top_k(-values, m)[1]
    fill = -width % GROUP
    filled = jnp.pad(values, ((0, 0), (0, fill)), constant_values=jnp.inf)
    columns = _members_of(_smallest(filled.reshape(rows, -1, GROUP).min(-1), m))
    candidates = jnp.take_along_axis(filled, columns, 1)
    return jnp.take_along_axis(columns, lax.top_k(-candidates, m)[1], 1)


def _members_of(groups: jax.Array) -> jax.Array:
    """The members (Q, m · GROUP) of groups (Q, m)."""
    members = groups[:, :, None] * GROUP + jnp.arange(GROUP, dtype=groups.dtype)[None, None]
    return members.reshape(len(groups), -1)
