"""GPU kernels for what XLA leaves in many pieces, each with its own gradient and a plain twin.

They are written in Pallas for Triton. Elsewhere the plain forms run; tests hold the kernels' code
against these in Pallas' interpreter.
"""

from __future__ import annotations

import jax

from icql.nn.kernels.norm import norm_dropout
from icql.nn.kernels.td import fused
from icql.nn.split import rows_are_split

__all__ = ["fused", "norm_dropout", "on_gpu"]


def on_gpu() -> bool:
    """Whether programs are compiled for a GPU that runs these kernels.

    Not where several share the rows of a batch: the compiler cannot split what it cannot look into.
    """
    return jax.default_backend() == "gpu" and not rows_are_split()
