"""One compiled loop for every algorithm.

Many updates run per compiled call, several seeds and settings side by side, with the data that they
need on the device and no host work in between. The number of updates per call is an argument, not a
constant: one compiled program serves every chunk, so nothing is recompiled and a chunk of any
length computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key, PRNGKeyArray

from icql.algos.base import Algorithm
from icql.training.device import DeviceData
from icql.training.grid import vary
from icql.training.group import wait_for_all
from icql.training.mesh import BATCH, MEMBERS, WHOLE, gather, place
from icql.training.stream import Streamed, keys_of, rows_per_update


class Loop:
    """Runs updates of `algorithm` for several members at once: seeds, and settings of a grid."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        data: DeviceData | Streamed,
        seeds: Sequence[int],
        *,
        varied: Mapping[str, Array] | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        """Make ready; nothing is compiled yet.

        Args:
            algorithm: what is trained.
            data: on the device, or streamed to it.
            seeds: one for each member.
            varied: settings that differ between members, by dotted name, one value for each.
            mesh: the devices, if there are several (`icql.training.mesh`).
        """
        self.algorithm, self.mesh = algorithm, mesh
        self.splits = mesh is not None and mesh.shape["batch"] > 1
        self.data = place(data, mesh, WHOLE) if isinstance(data, DeviceData) else data
        self.rows = rows_per_update(algorithm)
        self.keys = jnp.stack([jax.random.key(s) for s in seeds])
        self.varied = dict(varied or {})
        self._updates = eqx.filter_jit(self._run, donate="all-except-first")

    def init(self) -> Any:
        """Fresh states of every member, stacked along a leading axis."""
        # one fixed stream per purpose: 0 starts the networks, 1 drives the updates
        starts = jax.vmap(lambda k: jax.random.fold_in(k, 0))(self.keys)
        begin = eqx.filter_vmap(lambda key, values: vary(self.algorithm, values).init(key))
        return self.place(eqx.filter_jit(begin)(starts, self.varied))

    def place(self, states: Any) -> Any:
        """Put the states of all members where they are trained."""
        return place(states, self.mesh, MEMBERS)

    def gather(self, states: Any) -> Any:
        """Return the states of all members on one device of this process."""
        wait_for_all()
        return gather(states, self.mesh)

    def each(self, function: Callable[[Any, Any], Any], states: Any) -> Any:
        """Return `function(algorithm, state)` of every member, for gathered states."""
        return eqx.filter_vmap(
            lambda state, values: function(vary(self.algorithm, values), state),
            in_axes=(eqx.if_array(0), 0),
        )(states, self.varied)

    def advance(self, states: Any, step: int, updates: int) -> tuple[Any, dict[str, np.ndarray]]:
        """Run `updates` updates from `step` on; returns the states and each metric's mean (S,).

        The states passed in are consumed.
        """
        streams, end = self._streams(), step + updates
        pieces, lengths = list[dict[str, Array]](), list[int]()
        while step < end:
            # fetched while the updates before are still running; then they are waited for, so
            # that no more than two parts of the data are held
            data, until = self.data.at(streams, step, self.rows)
            jax.block_until_ready(pieces)
            stop = int(min(end, until))
            states, metrics = self._updates(self._inputs(data, streams, step, stop), states)
            pieces.append(metrics)
            lengths.append(stop - step)
            step = stop
        return states, {
            name: np.average([piece[name] for piece in pieces], axis=0, weights=lengths)
            for name in pieces[0]
        }

    def compile(self, states: Any) -> jax.stages.Compiled:
        """Compile what `advance` runs for such states, and run nothing; `advance` reuses it."""
        streams = self._streams()
        data, _ = self.data.at(streams, 0, self.rows)
        lowered = self._updates.lower(  # type: ignore[attr-defined]
            self._inputs(data, streams, 0, 1), states
        )
        program: jax.stages.Compiled = lowered.compile().compiled
        return program

    def _streams(self) -> Key[Array, " members"]:
        return jax.vmap(lambda k: jax.random.fold_in(k, 1))(self.keys)

    def _inputs(
        self, data: DeviceData, streams: Key[Array, " members"], begin: int, end: int
    ) -> Any:
        """What `_run` gets beside the states, on the devices where it is needed."""
        if data is not self.data:  # a part of streamed data
            data = place(data, self.mesh, WHOLE)
        members = place((streams, self.varied), self.mesh, MEMBERS)
        return data, members, *place((jnp.asarray(begin), jnp.asarray(end)), self.mesh, WHOLE)

    def _run(self, inputs: Any, states: Any) -> tuple[Any, dict[str, Array]]:
        """Run the updates begin … end − 1 of every member."""
        if self.mesh is None:
            return self._run_members(inputs, states)
        data, members, begin, end = inputs
        arrays, static = eqx.partition(states, eqx.is_array)

        def on_its_devices(inputs: Any, arrays: Any) -> tuple[Any, dict[str, Array]]:
            states, means = self._run_members(inputs, eqx.combine(arrays, static))
            return eqx.filter(states, eqx.is_array), means

        arrays, means = jax.shard_map(
            on_its_devices,
            mesh=self.mesh,
            in_specs=((WHOLE, MEMBERS, WHOLE, WHOLE), MEMBERS),
            out_specs=MEMBERS,
            axis_names={"members"} if self.splits else {"members", "batch"},
            check_vma=False,
        )((data, members, begin, end), arrays)
        means = jax.lax.with_sharding_constraint(means, NamedSharding(self.mesh, WHOLE))
        return eqx.combine(arrays, static), means

    def _run_members(
        self, inputs: tuple[DeviceData, Any, Array, Array], states: Any
    ) -> tuple[Any, dict[str, Array]]:
        data, members, begin, end = inputs

        def one_member(
            state: Any, stream: PRNGKeyArray, values: dict[str, Array]
        ) -> tuple[Any, dict[str, Array]]:
            algorithm = vary(self.algorithm, values)
            arrays, static = eqx.partition(state, eqx.is_array)

            def update(step: Array, arrays: Any) -> tuple[Any, dict[str, Array]]:
                sample_key, update_key = keys_of(stream, step)
                batch = self._lay(data.sample(sample_key, self.rows), BATCH)
                state = eqx.combine(arrays, static)
                state, metrics = algorithm.update(state, batch, update_key)
                return self._lay(eqx.filter(state, eqx.is_array), WHOLE), metrics

            def body(step: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                arrays, sums = carry
                arrays, metrics = update(step, arrays)
                return arrays, jax.tree.map(jnp.add, sums, metrics)

            shapes = jax.eval_shape(update, begin, arrays)[1]
            zeros = jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), shapes)
            arrays, sums = jax.lax.fori_loop(begin, end, body, (arrays, zeros))
            means = jax.tree.map(lambda m: m / (end - begin).astype(m.dtype), sums)
            return eqx.combine(arrays, static), means

        return eqx.filter_vmap(one_member, in_axes=(eqx.if_array(0), 0, 0))(states, *members)

    def _lay(self, tree: Any, spec: PartitionSpec) -> Any:
        """Tell the compiler how `tree` lies on the devices that share a batch, if any do."""
        return jax.lax.with_sharding_constraint(tree, spec) if self.splits else tree
