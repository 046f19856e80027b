"""The TD recursion of :mod:`icql.nn.in_context` as one GPU kernel, with its own gradient.

Written layer by layer, the recursion is hundreds of small kernels; here one program per context
keeps Φ, Φ' and w in registers and walks through all layers. The reduced form is the oracle: same
inputs, same weights w_L, same gradients.

Every product of a matrix and a vector sums over the first axis, where threads hold whole columns
and hardly exchange anything: hence Φ and D also transposed. C of the next layer is fetched while
this one is computed.

Gradient. With D = γ m∘Φ' − Φ, δ_ℓ = r + D w_ℓ, u_ℓ = Φᵀδ_ℓ / N and w_{ℓ+1} = w_ℓ + C_ℓ u_ℓ, the
cotangent g of w_L goes back through h_ℓ = C_ℓᵀ g_{ℓ+1} / N and e_ℓ = Φ h_ℓ:
    g_ℓ = g_{ℓ+1} + Dᵀ e_ℓ,   dr = Σ e_ℓ,   dD = Σ e_ℓ w_ℓᵀ,   dΦ = Σ δ_ℓ h_ℓᵀ − dD,
    dΦ' = γ m∘dD,   dm = γ Σ_d dD∘Φ',   dC_ℓ = Σ over contexts of g_{ℓ+1} u_ℓᵀ.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu
from jaxtyping import Array, Float

WARPS = 2


def fused(
    phi: Float[Array, "... n d"],
    phi_next: Float[Array, "... n d"],
    r: Float[Array, "... n"],
    mask: Float[Array, "... n"],
    c: Float[Array, "layers d d"],
    discount: float,
    *,
    interpret: bool = False,
) -> Float[Array, "... d"]:
    """Local weights w_L by L layers of TD, in one kernel (see :func:`icql.nn.in_context.reduced`).

    `interpret` runs the kernel's code without a GPU.
    """
    lead = phi.shape[:-2]
    flat = [x.reshape(math.prod(lead), *x.shape[len(lead) :]) for x in (phi, phi_next, r, mask)]
    w = _solve(discount, interpret, *flat, c)
    return w.reshape(*lead, w.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solve(discount: float, interpret: bool, *inputs: Array) -> Array:
    return _forward(discount, interpret, *inputs)[0]


def _forward(discount: float, interpret: bool, *inputs: Array) -> tuple[Array, Any]:
    *context, c = inputs
    contexts, _, d = context[0].shape
    kernel, shape = partial(_forward_kernel, discount), (contexts, c.shape[0], d)
    (trace,) = _call(kernel, context, c.swapaxes(1, 2), [shape], interpret)
    return trace[:, -1], (context, c, trace)


def _backward(discount: float, interpret: bool, kept: Any, g: Array) -> tuple[Array, ...]:
    context, c, trace = kept
    shapes = [*(x.shape for x in context), trace.shape, trace.shape]
    kernel = partial(_backward_kernel, discount)
    *gradients, g_all, u_all = _call(kernel, [*context, trace, g], c, shapes, interpret)
    return *gradients, jnp.einsum("bld,ble->lde", g_all, u_all)


_solve.defvjp(_forward, _backward)


def _call(
    kernel: Any, per_context: list[Array], c: Array, shapes: list[Any], interpret: bool
) -> list[Array]:
    """Run `kernel` once per context: it sees that context's slices and all of C."""
    outputs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    def own(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, *x.shape[1:]), lambda i: (i, *[0] * (len(x.shape) - 1)))

    whole = pl.BlockSpec(c.shape, lambda i: (0, 0, 0))
    result = pl.pallas_call(
        kernel,
        out_shape=outputs,
        grid=(len(per_context[0]),),
        in_specs=[*(own(x) for x in per_context), whole],
        out_specs=[own(x) for x in outputs],
        interpret=interpret,
        compiler_params=gpu.CompilerParams(num_warps=WARPS, num_stages=1),
        name="td" + kernel.func.__name__.removesuffix("_kernel"),
    )(*per_context, c)
    return list(result)


class _Tile:
    """Where one context lies, padded to powers of two by zeros that have no effect."""

    def __init__(self, phi: Any) -> None:
        self.n, self.d = phi.shape
        self.rows, self.columns = (jnp.arange(pl.next_power_of_2(size)) for size in phi.shape)

    def per_row(self, ref: Any) -> tuple[Any, Any]:
        return ref.at[self.rows], self.rows < self.n

    def per_feature(self, ref: Any, *at: Any) -> tuple[Any, Any]:
        return ref.at[*at, self.columns], self.columns < self.d

    def features(self, ref: Any) -> tuple[Any, Any]:
        inside = (self.rows < self.n)[:, None] & (self.columns < self.d)[None, :]
        return ref.at[self.rows[:, None], self.columns[None, :]], inside

    def transposed(self, ref: Any) -> tuple[Any, Any]:
        inside = (self.columns < self.d)[:, None] & (self.rows < self.n)[None, :]
        return ref.at[self.rows[None, :], self.columns[:, None]], inside

    def square(self, ref: Any, layer: Any) -> tuple[Any, Any]:
        inside = (self.columns < self.d)[:, None] & (self.columns < self.d)[None, :]
        return ref.at[layer, self.columns[:, None], self.columns[None, :]], inside


def _load(place: tuple[Any, Any]) -> Any:
    return gpu.load(place[0], mask=place[1], other=0.0).astype(jnp.float32)


def _store(place: tuple[Any, Any], value: Any) -> None:
    gpu.store(place[0], value, mask=place[1])


def _times(transposed: Any, vector: Any) -> Any:
    """A x, given Aᵀ."""
    return (transposed * vector[:, None]).sum(0)


def _forward_kernel(discount: float, *refs: Any) -> None:
    phi, phi_next, r, mask, c_transposed, out = refs
    tile, layers = _Tile(phi), c_transposed.shape[0]
    m, reward = _load(tile.per_row(mask)), _load(tile.per_row(r))
    features, features_t = _load(tile.features(phi)), _load(tile.transposed(phi))
    change_t = discount * m[None, :] * _load(tile.transposed(phi_next)) - features_t

    def layer(step: Any, carry: Any) -> Any:
        w, c_t = carry
        c_next = _load(tile.square(c_transposed, jnp.minimum(step + 1, layers - 1)))
        delta = reward + _times(change_t, w)
        w = w + _times(c_t, _times(features, delta) / tile.n)
        _store(tile.per_feature(out, step), w)
        return w, c_next

    zero = jnp.zeros(tile.columns.shape, jnp.float32)
    jax.lax.fori_loop(0, layers, layer, (zero, _load(tile.square(c_transposed, 0))))


def _backward_kernel(discount: float, *refs: Any) -> None:
    phi, phi_next, r, mask, trace, g_last, c, d_phi, d_next, d_r, d_mask, g_out, u_out = refs
    tile, layers = _Tile(phi), c.shape[0]
    m, reward = _load(tile.per_row(mask)), _load(tile.per_row(r))
    features, features_t = _load(tile.features(phi)), _load(tile.transposed(phi))
    change = discount * m[:, None] * _load(tile.features(phi_next)) - features
    change_t = discount * m[None, :] * _load(tile.transposed(phi_next)) - features_t

    def layer(back: Any, carry: Any) -> Any:
        g, c_layer, d_features, d_change, d_reward = carry
        step = layers - 1 - back
        c_next = _load(tile.square(c, jnp.maximum(step - 1, 0)))
        # w_ℓ is what layer ℓ − 1 stored; the first layer starts from zero
        place, inside = tile.per_feature(trace, jnp.maximum(step - 1, 0))
        w = _load((place, inside & (step > 0)))
        delta = reward + _times(change_t, w)
        _store(tile.per_feature(g_out, step), g)
        _store(tile.per_feature(u_out, step), _times(features, delta) / tile.n)
        h = _times(c_layer, g) / tile.n
        e = _times(features_t, h)
        return (
            g + _times(change, e),
            c_next,
            d_features + delta[:, None] * h[None, :],
            d_change + e[:, None] * w[None, :],
            d_reward + e,
        )

    zeros = jnp.zeros((len(tile.rows), len(tile.columns)), jnp.float32)
    last = _load(tile.per_feature(g_last)), _load(tile.square(c, layers - 1))
    begin = *last, zeros, zeros, jnp.zeros(tile.rows.shape, jnp.float32)
    _, _, d_features, d_change, d_reward = jax.lax.fori_loop(0, layers, layer, begin)
    _store(tile.features(d_phi), d_features - d_change)
    _store(tile.features(d_next), discount * m[:, None] * d_change)
    _store(tile.per_row(d_r), d_reward)
    following = _load(tile.features(phi_next))
    _store(tile.per_row(d_mask), discount * (d_change * following).sum(1))
