"""One compiled loop for every algorithm.

Many updates run per compiled call, several seeds and settings side by side, with the data that they
need on the device and no host work in between. The number of updates per call is an argument, not a
constant: one compiled program serves every chunk, so nothing is recompiled and a chunk of any
length computes the same bits.

Several devices form a mesh of two axes. Along `members` each device trains seeds and settings of
its own, and none needs to hear of the others. Along `batch` devices share the rows of every batch:
the compiler splits the work and sums the gradients; it pads rows that do not divide evenly, and the
padding counts nowhere. Data is on every device; rows are drawn as on a single one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PRNGKeyArray

from icql.algos.base import Algorithm, Batch
from icql.data.arrays import say_size
from icql.errors import UserError
from icql.training.device import DeviceData, Keys
from icql.training.processes import wait_for_all
from icql.training.stream import Streamed, keys_of, rows_per_update
from icql.training.vary import vary

WHOLE, MEMBERS, BATCH = PartitionSpec(), PartitionSpec("members"), PartitionSpec("batch")


def make_mesh(count: int | None, members: int) -> Mesh | None:
    """Return the devices that train `members` side by side; None where it is a single one.

    Args:
        count: how many devices, 0 for all; None for one or, in a group of processes, for all.
        members: seeds times settings; as many devices as divide them evenly form that axis.

    Raises:
        UserError: there are not so many, or a group of processes was to leave some out.
    """
    devices = jax.devices()
    grouped = jax.process_count() > 1
    if count is None:
        count = 0 if grouped else 1
    count = count or len(devices)
    if not 0 < count <= len(devices):
        raise UserError(
            f"{count} were asked for, and there are {len(devices)} ({devices[0].device_kind}).",
            where="--devices",
            fix="Ask for fewer, or 0 for all.",
        )
    if grouped and count != len(devices):
        raise UserError(
            f"a group of processes trains on all of its {len(devices)} devices, not on {count}.",
            where="--devices",
            fix="Leave it out, or start fewer processes.",
        )
    if count == 1:
        return None
    apart = math.gcd(members, count)
    return jax.make_mesh(
        (apart, count // apart),
        ("members", "batch"),
        axis_types=(AxisType.Auto,) * 2,
        devices=devices[:count],
    )


def strict(states: Any) -> Any:
    """Fresh states with the types that updates return: compiled for once, not twice.

    What is made of Python's numbers has a weak type, and its update a strict one.
    """

    def typed(x: Any) -> Any:
        return x.astype(x.dtype) if eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.number) else x

    return jax.tree.map(typed, states)


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
            mesh: the devices, if there are several.
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
        states = eqx.filter_jit(lambda *given: strict(begin(*given)))(starts, self.varied)
        return self.place(states)

    def place(self, states: Any) -> Any:
        """Put the states of all members where they are trained."""
        return place(states, self.mesh, MEMBERS)

    def gather(self, states: Any) -> Any:
        """Return the states of all members on one device of this process; all processes ask."""
        wait_for_all()
        if self.mesh is None:
            return states
        arrays, rest = eqx.partition(states, eqx.is_array)
        whole = jax.jit(_same, out_shardings=NamedSharding(self.mesh, WHOLE))(arrays)
        return eqx.combine(jax.tree.map(lambda x: x.addressable_data(0), whole), rest)

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

    def batch_shape(self) -> Batch:
        """Shapes of the batch that one update gets."""
        data, _ = self.data.at(self._streams(), 0, self.rows)
        rows = jax.ShapeDtypeStruct((self.rows,), jnp.int32)
        shapes: Batch = jax.eval_shape(data.batch, rows)
        return shapes

    def compile(self, states: Any) -> jax.stages.Compiled:
        """Compile what `advance` runs for such states, and run nothing; `advance` reuses it."""
        streams = self._streams()
        data, _ = self.data.at(streams, 0, self.rows)
        lowered = self._updates.lower(  # type: ignore[attr-defined]
            self._inputs(data, streams, 0, 1), states
        )
        program: jax.stages.Compiled = lowered.compile().compiled
        return program

    def _streams(self) -> Keys:
        return jax.vmap(lambda k: jax.random.fold_in(k, 1))(self.keys)

    def _inputs(self, data: DeviceData, streams: Keys, begin: int, end: int) -> Any:
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


def place(tree: Any, mesh: Mesh | None, spec: PartitionSpec) -> Any:
    """Put the arrays of `tree` on the mesh, every process its own part of the same values."""
    if mesh is None:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array)
    sharding = NamedSharding(mesh, spec)
    if jax.process_count() == 1:
        placed = jax.device_put(arrays, sharding)
    else:
        placed = jax.tree.map(lambda x: _from_all(x, sharding), arrays)
    return eqx.combine(placed, rest)


def _from_all(x: Array, sharding: NamedSharding) -> Array:
    """Each process puts its part of the same values; none asks whether the others have them."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data: Array = jax.random.wrap_key_data(_from_all(jax.random.key_data(x), sharding))
        return data
    values = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda part: values[part])


def _same(tree: Any) -> Any:  # by name, so that it is compiled once
    return tree


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on the device at the peak of an update, all seeds together."""

    data: int  # transitions and neighbour tables, or the part of them that is held
    states: int  # networks and optimiser states
    work: int  # batches, activations, gradients, code: what comes and goes

    @property
    def beyond_data(self) -> int:
        """Networks and work: what the paper's memory tables count."""
        return self.states + self.work

    @property
    def total(self) -> int:
        """Everything."""
        return self.data + self.beyond_data


def memory_of(loop: Loop, states: Any) -> MemoryNeed:
    """Predict what `loop` will take for such `states`, from its compiled program; nothing runs."""
    needs = loop.compile(states).memory_analysis()
    assert needs is not None  # CPU, GPU and TPU all say
    arrays = jax.tree.leaves(eqx.filter(states, eqx.is_array))
    own = sum(x.addressable_shards[0].data.nbytes for x in arrays)  # of one device, as all here is
    return MemoryNeed(
        data=needs.argument_size_in_bytes - own,
        states=own,
        work=needs.temp_size_in_bytes
        + needs.generated_code_size_in_bytes
        + needs.output_size_in_bytes
        - needs.alias_size_in_bytes,  # states are updated in place
    )


def check_memory(loop: Loop, states: Any) -> MemoryNeed:
    """Refuse a run that does not fit, before its first update.

    Data and states are on the device already; what else is needed must be free there.

    Raises:
        UserError: if it is not.
    """
    needed, free = memory_of(loop, states), free_memory(next(iter(loop.keys.devices())))
    if free is not None and needed.work > free:
        raise UserError(
            f"an update needs {say_size(needed.work)} beside the data and the networks "
            f"({say_size(needed.total)} in all); the device has {say_size(free)} free.",
            where=f"memory, {len(loop.keys)} seed(s)",
            fix="Take fewer seeds (--seeds), a smaller --batch-size or a shorter context.",
        )
    return needed


def free_memory(device: Any) -> int | None:
    """Bytes that can still be taken on a device; None where it cannot be known."""
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats["bytes_in_use"])
    listing = Path("/proc/meminfo")
    if device.platform != "cpu" or not listing.exists():
        return None
    lines = (line.split() for line in listing.read_text().splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), None)
