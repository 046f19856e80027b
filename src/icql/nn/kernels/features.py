"""φ whole as one GPU kernel, for passes without a gradient: activations never leave the chip.

    h ← LN(relu(h W + b)) for every hidden layer, then f(h W + b), in bfloat16 with float32 sums.

Layer by layer, XLA writes and reads every activation, which costs more than the products. One
program here takes a block of rows through all layers. Wide activations are kept as several tiles of
`TILE` columns, so that no product needs more of a weight matrix at once than fits beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu
from jaxtyping import Array, Float

from icql.nn.kernels.norm import EPSILON

ROWS = 64  # per program
TILE = 128  # columns
WARPS = 4
LEAST = 16  # the smallest side of a product on matrix units

FINAL: dict[str, Callable[[Any], Any]] = {
    "none": lambda z: z,
    "tanh": lambda z: 1 - 2 / (jnp.exp(2 * z) + 1),  # Triton has no tanh of its own
}
Hidden = tuple[Array, Array, Array, Array]  # W, b, and the scale and shift of LayerNorm


def fits(inputs: int, widths: Sequence[int]) -> bool:
    """Whether such sizes suit the kernel: widths are powers of two, and none is large."""
    return inputs <= TILE and all(LEAST <= w <= 512 and w & (w - 1) == 0 for w in widths)


def forward(
    x: Float[Array, "... inputs"],
    hidden: Sequence[Hidden],
    last: tuple[Array, Array],
    activation: str,
    *,
    interpret: bool = False,
) -> Float[Array, "... outputs"]:
    """Apply the network above to the last axis; `activation` names f."""
    flat = x.reshape(-1, x.shape[-1])
    parameters = [array for layer in (*hidden, last) for array in layer]
    parameters = [p.astype(jnp.bfloat16) if p.ndim == 2 else p for p in parameters]
    outputs = last[0].shape[1]
    whole = [pl.BlockSpec(p.shape, lambda i, n=p.ndim: (0,) * n) for p in parameters]

    def kernel(x: Any, *refs: Any) -> None:
        _kernel(len(flat), FINAL[activation], x, refs[:-1], refs[-1])

    y = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((len(flat), outputs), jnp.float32),
        grid=(math.ceil(len(flat) / ROWS),),
        in_specs=[pl.BlockSpec((ROWS, flat.shape[1]), lambda i: (i, 0)), *whole],
        out_specs=pl.BlockSpec((ROWS, outputs), lambda i: (i, 0)),
        interpret=interpret,
        compiler_params=gpu.CompilerParams(num_warps=WARPS, num_stages=1),
        name="features",
    )(flat, *parameters)
    return y.reshape(*x.shape[:-1], outputs)


def _kernel(rows: int, activation: Callable[[Any], Any], x: Any, refs: Any, y: Any) -> None:
    inputs, columns = x.shape[1], jnp.arange(max(LEAST, pl.next_power_of_2(x.shape[1])))
    row = jnp.arange(ROWS)
    inside = (pl.program_id(0) * ROWS + row < rows)[:, None]
    mask = inside & (columns < inputs)[None, :]
    tiles = [gpu.load(x.at[row[:, None], columns[None, :]], mask=mask, other=0.0)]
    for layer in range(0, len(refs) - 2, 4):
        w, b, scale, shift = refs[layer : layer + 4]
        tiles = [jnp.maximum(t, 0.0) for t in _linear(tiles, w, b)]
        width = w.shape[1]
        mean = (sum(t.sum(1) for t in tiles) / width)[:, None]
        tiles = [t - mean for t in tiles]
        inverse = jax.lax.rsqrt(sum((t * t).sum(1) for t in tiles) / width + EPSILON)[:, None]
        tiles = [
            t * inverse * _vector(scale, at)[None, :] + _vector(shift, at)[None, :]
            for t, at in zip(tiles, _cut(width), strict=True)
        ]
    for t, at in zip(_linear(tiles, *refs[-2:]), _cut(y.shape[1]), strict=True):
        gpu.store(y.at[row[:, None], at[None, :]], activation(t), mask=inside)


def _linear(tiles: list[Any], w: Any, b: Any) -> list[Any]:
    """h W + b with h and the result in tiles of columns."""
    halves = [t.astype(jnp.bfloat16) for t in tiles]
    rows = _cut(w.shape[0])
    return [
        sum(gpu.dot(h, _block(w, at, to)) for h, at in zip(halves, rows, strict=True))
        + _vector(b, to)[None, :]
        for to in _cut(w.shape[1])
    ]


def _cut(width: int) -> list[Any]:
    """The columns of each tile, padded to a power of two."""
    size = min(TILE, max(LEAST, pl.next_power_of_2(width)))
    return [jnp.arange(size) + start for start in range(0, width, size)]


def _block(w: Any, rows: Any, columns: Any) -> Any:
    mask = (rows < w.shape[0])[:, None] & (columns < w.shape[1])[None, :]
    return gpu.load(w.at[rows[:, None], columns[None, :]], mask=mask, other=0.0)


def _vector(ref: Any, columns: Any) -> Any:
    return gpu.load(ref.at[columns])
