"""Many gradient steps of many small networks per compiled call, the data on the device.

Every network has a key of its own and rows of its own to draw from: a bootstrap draw of episodes,
so that the networks differ by as much as the log's being this one and not another matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.judging.log import Log, Rows

Told = Callable[[int, Any], bool]  # updates done, the states → whether to go on
PIECES = 40  # how often progress is told


class Update(Protocol):
    """One gradient step of one network on some rows; hashable, because it is compiled."""

    def __call__(self, state: Any, given: Any, rows: Int[Array, " batch"]) -> Any:
        """Return the state after the step; `given` is what the network learns from."""


class Drawn(eqx.Module):
    """Rows that each of S networks draws from, uniformly: those of its own draw of episodes."""

    rows: Int[Array, "nets longest"]
    count: Int[Array, " nets"]
    stream: Int[Array, " nets"]  # networks of one stream see the same rows in the same order

    @classmethod
    def of(cls, log: Log, episodes: Rows, nets: int, seed: int) -> Drawn:
        """As many episodes as there are, drawn with replacement, for each network."""
        found = []
        for net in range(nets):
            rng = np.random.default_rng([seed, 2, net])
            found.append(log.rows_of(np.sort(rng.choice(episodes, len(episodes)))))
        return cls.from_rows(found)

    @classmethod
    def from_rows(cls, found: Sequence[Rows]) -> Drawn:
        """Given rows for each network."""
        nets = len(found)
        table = np.zeros((nets, max(map(len, found))), np.int32)
        for net, rows in enumerate(found):
            table[net, : len(rows)] = rows
        count = np.asarray([len(rows) for rows in found], np.int32)
        return cls(jnp.asarray(table), jnp.asarray(count), jnp.arange(nets))

    def repeated(self, times: int) -> Drawn:
        """The same draws for several groups of networks, one group after the other."""
        return jax.tree.map(lambda x: jnp.tile(x, (times, *[1] * (x.ndim - 1))), self)


def fit(
    update: Update,
    states: Any,
    given: Any,
    drawn: Drawn,
    *,
    batch: int,
    updates: int,
    seed: int,
    told: Told,
) -> Any:
    """Run `updates` steps of every network and return their states.

    Args:
        update: one step of one network.
        states: of all networks, stacked along a leading axis.
        given: what they learn from: a pair of what each has of its own, arrays stacked along a
            leading axis, and what all share.
        drawn: the rows of each network.
        batch: rows per step.
        updates: how many steps.
        seed: of the draws.
        told: hears of progress; where it returns False, the fit stops.
    """
    streams = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(drawn.stream)
    piece, step = max(1, updates // PIECES), 0
    while step < updates:
        # the first piece compiles; its length, like that of all, is an argument
        end = min(updates, step + (piece if step else 1))
        bounds = jnp.asarray(step), jnp.asarray(end)
        states = _advance(update, states, given, drawn, streams, bounds, batch)
        step = end
        if not told(step, states):
            break
    return states


@eqx.filter_jit
def _advance(
    update: Update,
    states: Any,
    given: tuple[Any, Any],
    drawn: Drawn,
    streams: Any,
    bounds: tuple[Array, Array],
    batch: int,
) -> Any:
    own, shared = given
    arrays, static = eqx.partition(states, eqx.is_array)

    def one(arrays: Any, own: Any, drawn: Drawn, stream: PRNGKeyArray) -> Any:
        def body(step: Array, arrays: Any) -> Any:
            key = jax.random.fold_in(stream, step)
            rows = drawn.rows[jax.random.randint(key, (batch,), 0, drawn.count)]
            state = update(eqx.combine(arrays, static), (own, shared), rows)
            return eqx.filter(state, eqx.is_array)

        return jax.lax.fori_loop(*bounds, body, arrays)

    apart = (arrays, own, drawn, streams)
    if jax.default_backend() == "cpu":
        # one after the other: a network and its optimiser stay in the cache
        return eqx.combine(jax.lax.map(lambda each: one(*each), apart), static)
    return eqx.combine(jax.vmap(one)(*apart), static)


def standardise(x: Float[np.ndarray, "n d"]) -> tuple[Any, Any]:
    """Mean and spread of each column; a constant column is only centred."""
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    return mean.astype(np.float32), np.where(std > 1e-6, std, 1.0).astype(np.float32)
