"""Which form of a computation runs: the one place that tells a GPU from the rest.

The kernels are imported where one is called: they need Pallas, which nothing else here does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.sharding import AxisType

from icql.settings.run import Precision
from icql.settings.shared import Form

if TYPE_CHECKING:
    from icql.nn.mlp import MLP


def on_gpu() -> bool:
    """Whether programs are compiled for a GPU that runs our kernels.

    Not where several share the rows of a batch: the compiler cannot split what it cannot look into.
    """
    if jax.default_backend() != "gpu":
        return False
    mesh = jax.sharding.get_abstract_mesh()
    return not any(
        size > 1 and kind is AxisType.Auto
        for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    )


def td_form(asked: Form) -> Form:
    """How the linear module computes its TD steps."""
    if asked != "auto":
        return asked
    return "fused" if on_gpu() else "reduced"


def critics_at_once() -> bool:
    """Whether an ensemble's products are one batch: a CPU is faster with one after the other."""
    return on_gpu()


def context_with_query() -> bool:
    """Whether φ takes both in one pass: copying them together costs a CPU more than a pass."""
    return on_gpu()


def half_activations(precision: Precision) -> bool:
    """Whether what lies between the products is bfloat16 too: it gains on a GPU."""
    return precision == "bfloat16" and on_gpu()


def norm_in_kernel(net: MLP) -> bool:
    """Whether bias, ReLU, LayerNorm and dropout of its hidden layers are one kernel."""
    return bool(net.norms) and net.activation == "relu" and on_gpu()


def network_in_kernel(net: MLP) -> bool:
    """Whether a network is one kernel as a whole, where no gradient is asked for."""
    if not (norm_in_kernel(net) and half_activations(net.layers[0].precision)):
        return False
    from icql.nn.kernels import features

    sizes = [layer.weight.shape for layer in net.layers]
    known = net.final_activation in features.FINAL
    return known and features.fits(sizes[0][0], [outputs for _, outputs in sizes])
