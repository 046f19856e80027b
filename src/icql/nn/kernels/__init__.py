"""GPU kernels for what XLA leaves in many pieces, each with its own gradient and a plain twin.

They are written in Pallas for Triton. Elsewhere the plain forms run; tests hold the kernels' code
against these in Pallas' interpreter.
"""

from __future__ import annotations

import jax
from jax.sharding import AxisType

from icql.nn.kernels import features
from icql.nn.kernels.norm import norm_dropout
from icql.nn.kernels.td import fused

__all__ = ["features", "fused", "norm_dropout", "on_gpu"]


def on_gpu() -> bool:
    """Whether programs are compiled for a GPU that runs these kernels.

    Not where several share the rows of a batch: the compiler cannot split what it cannot look into.
    """
    return jax.default_backend() == "gpu" and not _rows_are_split()


def _rows_are_split() -> bool:
    """Whether several devices share the rows of the batch in the program that is being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return any(
        size > 1 and kind is AxisType.Auto
        for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    )
