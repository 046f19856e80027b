"""Batches whose rows several devices share: what the compiler cannot guess about them."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float


def rows_are_split() -> bool:
    """Whether several devices share the rows of the batch in the program that is being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return any(
        size > 1 and kind is AxisType.Auto
        for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    )


def split_rows(x: Float[Array, "... size"]) -> Float[Array, "... size"]:
    """Keep the rows of `x` split over the devices that share the batch; unchanged without any.

    Left to itself the compiler gives up splitting where two splits are concatenated.
    """
    if x.ndim < 2 or not rows_are_split():
        return x
    axes: list[object] = [PartitionSpec.UNCONSTRAINED] * x.ndim
    axes[int(np.argmax(x.shape[:-1]))] = "batch"
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))
