"""x W of every layer, in the precision that the run asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icql.settings.run import Precision

_precision: ContextVar[Precision] = ContextVar("precision", default="float32")


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Take the products of whatever is traced meanwhile in this precision.

    To be entered inside what is traced: JAX remembers traces, and knows nothing of this.
    """
    token = _precision.set(precision)
    try:
        yield
    finally:
        _precision.reset(token)


def in_half() -> bool:
    """Whether products are taken in bfloat16."""
    return _precision.get() == "bfloat16"


def product(
    x: Float[Array, "... inputs"], weight: Float[Array, "inputs outputs"]
) -> Float[Array, "... outputs"]:
    """x W. In bfloat16 both factors are rounded; the sums, and all around them, stay float32."""
    if in_half() and x.dtype == jnp.float32:
        return _rounded(x, weight)
    return x @ weight


@jax.custom_vjp
def _rounded(x: Array, weight: Array) -> Array:
    """x W of rounded factors. Left to itself, its gradient would be products in float32."""
    return _forward(x, weight)[0]


def _forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    x, weight = _round(x), _round(weight)
    return _dot(x, weight, (x.ndim - 1,), (0,)), (x, weight)


def _backward(kept: tuple[Array, Array], d_y: Array) -> tuple[Array, Array]:
    """dx = dy Wᵀ and dW = xᵀ dy, of rounded factors too."""
    x, weight = kept
    d_y = _round(d_y)
    rows = tuple(range(x.ndim - 1))
    return _dot(d_y, weight, (x.ndim - 1,), (1,)), _dot(x, d_y, rows, rows)


_rounded.defvjp(_forward, _backward)


def _round(x: Array) -> Array:
    return x.astype(jnp.bfloat16)


def _dot(
    left: Array, right: Array, left_axes: tuple[int, ...], right_axes: tuple[int, ...]
) -> Array:
    """Sums of products over the given axes, in float32."""
    axes = ((left_axes, right_axes), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)
