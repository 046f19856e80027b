"""ReLU, layer normalisation and dropout of a linear layer's output, in one pass each way.

    y = dropout(LN(relu(x + b)) · scale + shift)

XLA makes several kernels of it and keeps their results for the gradient; here only x is kept and
the rest is computed again where it is needed, the dropout's random numbers too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu
from jaxtyping import Array, Float, UInt32

from icql.nn.mlp import hashed

EPSILON = 1e-5
WARPS = 4
TILE = 4096  # numbers per program: more do not fit into its registers (at width 1,024, 16 rows took
# 147 µs where 5 × 256 rows should take 10)


def norm_dropout(
    x: Float[Array, "... h"],
    bias: Float[Array, " h"],
    scale: Float[Array, " h"],
    shift: Float[Array, " h"],
    words: UInt32[Array, "2"] | None,
    rate: float,
    *,
    interpret: bool = False,
) -> Float[Array, "... h"]:
    """Apply the block above in one kernel; without random `words` there is no dropout."""
    if words is None:
        words, rate = jnp.zeros(2, jnp.uint32), 0.0
    h = x.shape[-1]
    flat = x.reshape(-1, h)
    y = _block(rate, interpret, flat, bias, scale, shift, words)
    return y.reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _block(rate: float, interpret: bool, *inputs: Array) -> Array:
    return _forward(rate, interpret, *inputs)[0]


def _forward(rate: float, interpret: bool, x: Array, *whole: Array) -> tuple[Array, Any]:
    kernel = partial(_forward_kernel, rate, *x.shape)
    (y,) = _call(kernel, [x], whole, 0, interpret)
    return y, (x, whole)


def _backward(rate: float, interpret: bool, kept: Any, d_y: Array) -> tuple[Any, ...]:
    x, whole = kept
    kernel = partial(_backward_kernel, rate, *x.shape)
    d_x, parts = _call(kernel, [x, d_y], whole, 3, interpret)
    return d_x, *parts.sum(0), None  # of bias, scale and shift; the words have none


_block.defvjp(_forward, _backward)


def _call(
    kernel: Any, by_rows: list[Array], whole: Sequence[Array], sums: int, interpret: bool
) -> list[Array]:
    """Run `kernel` over blocks of rows; besides such rows it returns `sums` rows per program."""
    x = by_rows[0]
    rows = rows_per_program(x.shape[1])
    programs = math.ceil(len(x) / rows)
    block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    outputs, blocks = [jax.ShapeDtypeStruct(x.shape, x.dtype)], [block]
    if sums:
        outputs.append(jax.ShapeDtypeStruct((programs, sums, x.shape[1]), jnp.float32))
        blocks.append(pl.BlockSpec((None, sums, x.shape[1]), lambda i: (i, 0, 0)))
    result = pl.pallas_call(
        kernel,
        out_shape=outputs,
        grid=(programs,),
        in_specs=[block] * len(by_rows) + [pl.BlockSpec(x.shape, lambda i: (0,)) for x in whole],
        out_specs=blocks,
        interpret=interpret,
        compiler_params=gpu.CompilerParams(num_warps=WARPS, num_stages=1),
        name="norm" + kernel.func.__name__.removesuffix("_kernel"),
    )(*by_rows, *whole)
    return list(result)


def rows_per_program(h: int) -> int:
    """As many rows of width `h` as fit, 16 at most."""
    return max(1, min(16, TILE // pl.next_power_of_2(h)))


def _normal(x: Any, bias: Any, h: int, inside: Any) -> tuple[Any, Any, Any]:
    """x + b, LN(relu(x + b)) before scale and shift, and 1/σ of each row; zero outside."""
    z = x + bias[None, :]
    active = jnp.where(inside, jnp.maximum(z, 0.0), 0.0)
    centred = jnp.where(inside, active - (active.sum(1) / h)[:, None], 0.0)
    inverse = jax.lax.rsqrt((centred * centred).sum(1) / h + EPSILON)
    return z, centred * inverse[:, None], inverse


class _Tile:
    """The block of rows of one program, padded to powers of two."""

    def __init__(self, rows: int, h: int) -> None:
        own = rows_per_program(h)
        self.first = pl.program_id(0) * own
        self.i, self.j = jnp.arange(own), jnp.arange(pl.next_power_of_2(h))
        self.columns = self.j < h
        self.inside = (self.first + self.i < rows)[:, None] & self.columns[None, :]
        self.h = h

    def load(self, ref: Any) -> Any:
        place = ref.at[self.i[:, None], self.j[None, :]]
        return gpu.load(place, mask=self.inside, other=0.0).astype(jnp.float32)

    def store(self, ref: Any, value: Any) -> None:
        place = ref.at[self.i[:, None], self.j[None, :]]
        gpu.store(place, value.astype(ref.dtype), mask=self.inside)

    def vector(self, ref: Any) -> Any:
        return gpu.load(ref.at[self.j], mask=self.columns, other=0.0)

    def kept(self, words: Any, rate: float) -> Any:
        """Entries that dropout keeps: the same hash of the position as the plain form."""
        position = (self.first + self.i)[:, None] * self.h + self.j[None, :]
        noise = hashed(position.astype(jnp.uint32), words[0], words[1])
        return noise >= jnp.uint32(round(rate * 2**32))


def _forward_kernel(rate: float, rows: int, h: int, *refs: Any) -> None:
    x, bias, scale, shift, words, y = refs
    tile = _Tile(rows, h)
    _, normal, _ = _normal(tile.load(x), tile.vector(bias), h, tile.inside)
    out = normal * tile.vector(scale)[None, :] + tile.vector(shift)[None, :]
    if rate > 0:
        out = jnp.where(tile.kept(words, rate), out / (1 - rate), 0.0)
    tile.store(y, out)


def _backward_kernel(rate: float, rows: int, h: int, *refs: Any) -> None:
    x, d_y, bias, scale, _, words, d_x, sums = refs
    tile = _Tile(rows, h)
    z, normal, inverse = _normal(tile.load(x), tile.vector(bias), h, tile.inside)
    g = tile.load(d_y)
    if rate > 0:
        g = jnp.where(tile.kept(words, rate), g / (1 - rate), 0.0)
    g_normal = g * tile.vector(scale)[None, :]
    mean, along = g_normal.sum(1) / h, (g_normal * normal).sum(1) / h
    d_active = inverse[:, None] * (g_normal - mean[:, None] - normal * along[:, None])
    d_z = jnp.where(tile.inside & (z > 0), d_active, 0.0)
    tile.store(d_x, d_z)
    for i, value in enumerate((d_z, g * normal, g)):  # of bias, scale and shift
        gpu.store(sums.at[i, tile.j], value.sum(0), mask=tile.columns)
