"""Several devices: which ones, and what lies where on them.

They form a mesh of two axes. Along `members` each device trains seeds and settings of its own, and
none needs to hear of the others. Along `batch` devices share the rows of every batch: the compiler
splits the work and sums the gradients; it pads rows that do not divide evenly, and the padding
counts nowhere. Data is on every device; rows are drawn as on a single one.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from icql.errors import UserError

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
            where="devices",
            fix="Ask for fewer, or 0 for all.",
        )
    if grouped and count != len(devices):
        raise UserError(
            f"a group of processes trains on all of its {len(devices)} devices, not on {count}.",
            where="devices",
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


def gather(tree: Any, mesh: Mesh | None) -> Any:
    """Return `tree` whole on one device of this process; every process of a group must ask."""
    if mesh is None:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array)
    whole = jax.jit(_same, out_shardings=NamedSharding(mesh, WHOLE))(arrays)
    return eqx.combine(jax.tree.map(lambda x: x.addressable_data(0), whole), rest)


def _from_all(x: Array, sharding: NamedSharding) -> Array:
    """Each process puts its part of the same values; none asks whether the others have them."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data: Array = jax.random.wrap_key_data(_from_all(jax.random.key_data(x), sharding))
        return data
    values = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda part: values[part])


def _same(tree: Any) -> Any:
    return tree
