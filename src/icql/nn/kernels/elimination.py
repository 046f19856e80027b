"""Gauss–Jordan elimination of :mod:`icql.nn.ridge` as one GPU kernel.

Written as a loop, each of its N steps reads and writes every system of the batch; here one program
per system keeps K and b in registers. No gradient: `icql.nn.ridge.solve` knows it.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu
from jaxtyping import Array, Float

WARPS = 1


def eliminated(
    k: Float[Array, "... n n"], b: Float[Array, "... n"], *, interpret: bool = False
) -> Float[Array, "... n"]:
    """x with K x = b, for symmetric positive definite K, without pivoting.

    `interpret` runs the kernel's code without a GPU.
    """
    lead = jnp.broadcast_shapes(k.shape[:-2], b.shape[:-1])
    n, count = b.shape[-1], math.prod(lead)
    systems = jnp.broadcast_to(k, (*lead, n, n)).reshape(count, n, n)
    right = jnp.broadcast_to(b, (*lead, n)).reshape(count, n)
    own = pl.BlockSpec((None, n), lambda i: (i, 0))
    x = pl.pallas_call(
        _kernel,
        out_shape=jax.ShapeDtypeStruct((count, n), jnp.float32),
        grid=(count,),
        in_specs=[pl.BlockSpec((None, n, n), lambda i: (i, 0, 0)), own],
        out_specs=own,
        interpret=interpret,
        compiler_params=gpu.CompilerParams(num_warps=WARPS, num_stages=1),
        name="elimination",
    )(systems, right)
    return x.reshape(*lead, n)


def _kernel(k_ref: Any, b_ref: Any, x_ref: Any) -> None:
    n = b_ref.shape[0]
    at = jnp.arange(pl.next_power_of_2(n))  # what is beyond n is zero, and stays so
    inside = (at < n)[:, None] & (at < n)[None, :]
    k = gpu.load(k_ref.at[at[:, None], at[None, :]], mask=inside, other=0.0).astype(jnp.float32)
    b = gpu.load(b_ref.at[at], mask=at < n, other=0.0).astype(jnp.float32)

    def step(i: Any, carry: Any) -> Any:
        k, b = carry
        here = at == i
        row = jnp.where(here[:, None], k, 0.0).sum(0)
        column = jnp.where(here[None, :], k, 0.0).sum(1)
        pivot = jnp.where(here, row, 0.0).sum()
        row, value = row / pivot, jnp.where(here, b, 0.0).sum() / pivot
        k = jnp.where(here[:, None], row[None, :], k - column[:, None] * row[None, :])
        return k, jnp.where(here, value, b - column * value)

    _, x = jax.lax.fori_loop(0, n, step, (k, b))
    gpu.store(x_ref.at[at], x, mask=at < n)
