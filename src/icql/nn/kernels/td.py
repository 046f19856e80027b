"""The TD recursion of :mod:`icql.nn.in_context` as one GPU kernel, with its own gradient.

Written layer by layer, the recursion is hundreds of small kernels; here one program keeps Φ, Φ' and
w of a few contexts in registers and walks through all layers. Reading C is what limits it: hence a
few contexts, which share what is read. The reduced form is the oracle: same
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

GROUP = 2  # contexts per program
WARPS = 2  # per context


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
def _solve(
    discount: float, interpret: bool, phi: Array, phi_next: Array, r: Array, mask: Array, c: Array
) -> Array:
    return _forward(discount, interpret, phi, phi_next, r, mask, c)[0]


def _forward(
    discount: float, interpret: bool, phi: Array, phi_next: Array, r: Array, mask: Array, c: Array
) -> tuple[Array, Any]:
    contexts, _, d = phi.shape
    trace = _call(
        partial(_forward_kernel, discount),
        [phi, phi_next, r, mask],
        c.swapaxes(1, 2),
        [jax.ShapeDtypeStruct((contexts, c.shape[0], d), jnp.float32)],
        interpret,
    )[0]
    return trace[:, -1], (phi, phi_next, r, mask, c, trace)


def _backward(discount: float, interpret: bool, kept: Any, g: Array) -> tuple[Array, ...]:
    phi, phi_next, r, mask, c, trace = kept
    rows, one = (jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (phi, r))
    steps = jax.ShapeDtypeStruct(trace.shape, jnp.float32)
    d_phi, d_next, d_r, d_mask, g_all, u_all = _call(
        partial(_backward_kernel, discount),
        [phi, phi_next, r, mask, trace, g],
        c,
        [rows, rows, one, one, steps, steps],
        interpret,
    )
    return d_phi, d_next, d_r, d_mask, jnp.einsum("bld,ble->lde", g_all, u_all)


_solve.defvjp(_forward, _backward)


def _call(
    kernel: Any, per_context: list[Array], c: Array, outputs: list[Any], interpret: bool
) -> list[Array]:
    """Run `kernel` on groups of contexts: it sees their slices and all of C."""
    contexts = len(per_context[0])
    group = GROUP if contexts % GROUP == 0 else 1

    def own(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((group, *x.shape[1:]), lambda i: (i, *[0] * (len(x.shape) - 1)))

    whole = pl.BlockSpec(c.shape, lambda i: (0, 0, 0))
    result = pl.pallas_call(
        kernel,
        out_shape=outputs,
        grid=(contexts // group,),
        in_specs=[*(own(x) for x in per_context), whole],
        out_specs=[own(x) for x in outputs],
        interpret=interpret,
        compiler_params=gpu.CompilerParams(num_warps=WARPS * group, num_stages=1),
        name="td" + kernel.func.__name__.removesuffix("_kernel"),
    )(*per_context, c)
    return list(result)


class _Tile:
    """Where context `i` of a program's group lies, padded to powers of two by zeros."""

    def __init__(self, phi: Any, i: int) -> None:
        self.i = i
        _, self.n, self.d = phi.shape
        self.rows, self.columns = (jnp.arange(pl.next_power_of_2(size)) for size in phi.shape[1:])

    def per_row(self, ref: Any) -> tuple[Any, Any]:
        return ref.at[self.i, self.rows], self.rows < self.n

    def per_feature(self, ref: Any, *at: Any) -> tuple[Any, Any]:
        return ref.at[self.i, *at, self.columns], self.columns < self.d

    def features(self, ref: Any) -> tuple[Any, Any]:
        inside = (self.rows < self.n)[:, None] & (self.columns < self.d)[None, :]
        return ref.at[self.i, self.rows[:, None], self.columns[None, :]], inside

    def transposed(self, ref: Any) -> tuple[Any, Any]:
        inside = (self.columns < self.d)[:, None] & (self.rows < self.n)[None, :]
        return ref.at[self.i, self.rows[None, :], self.columns[:, None]], inside

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


class _Context:
    """One context in registers: r, m, Φ, and D = γ m∘Φ' − Φ transposed."""

    def __init__(self, phi: Any, phi_next: Any, r: Any, mask: Any, discount: float, i: int) -> None:
        self.tile = tile = _Tile(phi, i)
        self.n, self.discount = tile.n, discount
        self.m, self.r = _load(tile.per_row(mask)), _load(tile.per_row(r))
        self.phi, self.phi_t = _load(tile.features(phi)), _load(tile.transposed(phi))
        self.change_t = discount * self.m[None, :] * _load(tile.transposed(phi_next)) - self.phi_t

    def step(self, w: Any) -> tuple[Any, Any]:
        """δ = r + D w and u = Φᵀδ / N."""
        delta = self.r + _times(self.change_t, w)
        return delta, _times(self.phi, delta) / self.n


def _forward_kernel(
    discount: float, phi: Any, phi_next: Any, r: Any, mask: Any, c_transposed: Any, out: Any
) -> None:
    group, layers = phi.shape[0], c_transposed.shape[0]
    contexts = [_Context(phi, phi_next, r, mask, discount, i) for i in range(group)]
    tile = contexts[0].tile

    def layer(step: Any, carry: Any) -> Any:
        weights, c_t = carry
        c_next = _load(tile.square(c_transposed, jnp.minimum(step + 1, layers - 1)))
        weights = tuple(
            w + _times(c_t, x.step(w)[1]) for w, x in zip(weights, contexts, strict=True)
        )
        for w, x in zip(weights, contexts, strict=True):
            _store(x.tile.per_feature(out, step), w)
        return weights, c_next

    zero = jnp.zeros(tile.columns.shape, jnp.float32)
    jax.lax.fori_loop(0, layers, layer, ((zero,) * group, _load(tile.square(c_transposed, 0))))


def _backward_kernel(
    discount: float,
    phi: Any,
    phi_next: Any,
    r: Any,
    mask: Any,
    trace: Any,
    g_last: Any,
    c: Any,
    d_phi: Any,
    d_next: Any,
    d_r: Any,
    d_mask: Any,
    g_out: Any,
    u_out: Any,
) -> None:
    group, layers = phi.shape[0], c.shape[0]
    contexts = [_Context(phi, phi_next, r, mask, discount, i) for i in range(group)]
    tile = contexts[0].tile
    changes = [discount * x.m[:, None] * _load(x.tile.features(phi_next)) - x.phi for x in contexts]

    def layer(back: Any, carry: Any) -> Any:
        states, c_layer = carry
        step = layers - 1 - back
        c_next = _load(tile.square(c, jnp.maximum(step - 1, 0)))
        new = []
        for x, change, (g, d_features, d_change, d_reward) in zip(
            contexts, changes, states, strict=True
        ):
            # w_ℓ is what layer ℓ − 1 stored; the first layer starts from zero
            place, inside = x.tile.per_feature(trace, jnp.maximum(step - 1, 0))
            w = _load((place, inside & (step > 0)))
            delta, u = x.step(w)
            _store(x.tile.per_feature(g_out, step), g)
            _store(x.tile.per_feature(u_out, step), u)
            h = _times(c_layer, g) / x.n
            e = _times(x.phi_t, h)
            new.append(
                (
                    g + _times(change, e),
                    d_features + delta[:, None] * h[None, :],
                    d_change + e[:, None] * w[None, :],
                    d_reward + e,
                )
            )
        return tuple(new), c_next

    zeros = jnp.zeros((len(tile.rows), len(tile.columns)), jnp.float32)
    zero = jnp.zeros(tile.rows.shape, jnp.float32)
    start = tuple((_load(x.tile.per_feature(g_last)), zeros, zeros, zero) for x in contexts)
    states, _ = jax.lax.fori_loop(0, layers, layer, (start, _load(tile.square(c, layers - 1))))
    for x, (_, d_features, d_change, d_reward) in zip(contexts, states, strict=True):
        _store(x.tile.features(d_phi), d_features - d_change)
        _store(x.tile.features(d_next), discount * x.m[:, None] * d_change)
        _store(x.tile.per_row(d_r), d_reward)
        following = _load(x.tile.features(phi_next))
        _store(x.tile.per_row(d_mask), discount * (d_change * following).sum(1))
