"""One compiled loop for every algorithm.

Many updates run per compiled call, several seeds side by side, with the data on the device and no
host work in between. The number of updates per call is an argument, not a constant: one compiled
program serves every chunk, so nothing is recompiled and a chunk of any length computes the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from icql.algos.base import Algorithm
from icql.training.device import DeviceData


class Loop:
    """Runs updates of `algorithm` for several seeds at once."""

    def __init__(self, algorithm: Algorithm[Any], data: DeviceData, seeds: Sequence[int]) -> None:
        self.algorithm, self.data = algorithm, data
        self.keys = jnp.stack([jax.random.key(s) for s in seeds])
        self._updates = eqx.filter_jit(self._run, donate="all-except-first")

    def init(self) -> Any:
        """Fresh states of every seed, stacked along a leading axis."""
        # one fixed stream per purpose: 0 starts the networks, 1 drives the updates
        starts = jax.vmap(lambda k: jax.random.fold_in(k, 0))(self.keys)
        return eqx.filter_jit(eqx.filter_vmap(self.algorithm.init))(starts)

    def advance(self, states: Any, step: int, updates: int) -> tuple[Any, dict[str, np.ndarray]]:
        """Run `updates` updates from `step` on; returns the states and each metric's mean (S,).

        The states passed in are consumed.
        """
        streams = jax.vmap(lambda k: jax.random.fold_in(k, 1))(self.keys)
        inputs = (self.data, streams, jnp.asarray(step), jnp.asarray(step + updates))
        states, metrics = self._updates(inputs, states)
        return states, {name: np.asarray(value) for name, value in metrics.items()}

    def _run(
        self, inputs: tuple[DeviceData, PRNGKeyArray, Array, Array], states: Any
    ) -> tuple[Any, dict[str, Array]]:
        data, streams, begin, end = inputs
        rows = self.algorithm.settings.batch_size * self.algorithm.needs.batches

        def one_seed(state: Any, stream: PRNGKeyArray) -> tuple[Any, dict[str, Array]]:
            arrays, static = eqx.partition(state, eqx.is_array)

            def update(step: Array, arrays: Any) -> tuple[Any, dict[str, Array]]:
                sample_key, update_key = jax.random.split(jax.random.fold_in(stream, step))
                batch = data.sample(sample_key, rows)
                state, metrics = self.algorithm.update(
                    eqx.combine(arrays, static), batch, update_key
                )
                return eqx.filter(state, eqx.is_array), metrics

            def body(step: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                arrays, sums = carry
                arrays, metrics = update(step, arrays)
                return arrays, jax.tree.map(jnp.add, sums, metrics)

            shapes = jax.eval_shape(update, begin, arrays)[1]
            zeros = jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), shapes)
            arrays, sums = jax.lax.fori_loop(begin, end, body, (arrays, zeros))
            means = jax.tree.map(lambda m: m / (end - begin).astype(m.dtype), sums)
            return eqx.combine(arrays, static), means

        return eqx.filter_vmap(one_seed, in_axes=(eqx.if_array(0), 0))(states, streams)
