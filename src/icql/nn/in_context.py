"""The in-context critic's core: a linear Transformer's forward pass *is* TD on its context.

Three equal forms of the same computation (paper, theorem `icl-q`):

* :func:`literal_prompt_q` builds the prompt Z₀ and applies every attention layer as written. It
  is the test oracle and nothing else: slow, but it looks like the paper.
* :func:`reduced` carries only the local weights w_ℓ, which is all that the layers change.
* :func:`dual` carries the TD errors δ_ℓ of the K context transitions instead.

Shapes below: N context transitions, d features, L layers; leading axes `...` are batched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icql.errors import UserError
from icql.nn import backend
from icql.settings.shared import CStart, Form, Initial

Features = Float[Array, "... n d"]
PerRow = Float[Array, "... n"]
Weights = Float[Array, "... d"]
Preconditioners = Float[Array, "layers d d"]
Given = Array | np.ndarray  # by a user; shapes are checked, with a message for people


@runtime_checkable
class InContextModule(Protocol):
    """What turns context features and a query feature into a value, in two steps.

    `read` looks at the context alone, `answer` combines what was read with query features. The
    linear Transformer reads the local weights w, so many actions of one state cost one read.
    """

    def read(
        self, phi: Features, phi_next: Features, r: PerRow, mask: PerRow, discount: float
    ) -> Array:
        """What the context alone says."""

    def answer(self, memory: Array, phi_query: Float[Array, "... d"]) -> Float[Array, "..."]:
        """The value of each query."""


class LinearTransformer(eqx.Module):
    """The paper's module: L layers of linear attention with trainable C_ℓ.

    Not in the paper, and off by default: a learned w_0, and a bound on the spectral norm of C_ℓ.
    """

    C: Preconditioners
    w0: Float[Array, " d"] | None
    form: Form = eqx.field(static=True)
    spectral_bound: float = eqx.field(static=True)

    def __init__(
        self,
        layers: int,
        features: int,
        c_scale: float | Array,
        form: Form = "auto",
        *,
        initial: Initial = "zero",
        c_start: CStart = "identity",
        spectral_bound: float = 0.0,
        key: PRNGKeyArray | None = None,
    ) -> None:
        if c_start == "identity":
            self.C = jnp.tile(jnp.eye(features) * (c_scale / features), (layers, 1, 1))
        else:
            assert key is not None  # the Xavier matrix is drawn
            gain = c_scale * 0.1 / layers
            self.C = jax.random.normal(key, (layers, features, features)) * gain / features**0.5
        self.w0 = jnp.zeros(features) if initial == "learned" else None
        self.form, self.spectral_bound = form, spectral_bound

    @property
    def preconditioners(self) -> Float[Array, "... layers d d"]:
        """C_ℓ as the layers use them: within the spectral bound, where there is one."""
        return bounded(self.C, self.spectral_bound) if self.spectral_bound else self.C

    def read(self, phi: Array, phi_next: Array, r: Array, mask: Array, discount: float) -> Weights:
        """Return the local weights w_L of each context."""
        c, r = self.preconditioners, self._seen(phi, phi_next, r, mask, discount)
        match backend.td_form(self.form):
            case "fused":
                from icql.nn.kernels.td import fused

                w = fused(phi, phi_next, r, mask, c, discount)
            case "dual":
                w = dual(phi, phi_next, r, mask, c, discount)
            case _:
                w = reduced(phi, phi_next, r, mask, c, discount)[0]
        return w if self.w0 is None else self.w0 + w

    def _seen(
        self, phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
    ) -> Float[Array, "... n"]:
        """r + (γ m∘Φ' − Φ) w_0: TD from w_0 is w_0 + TD from zero on these, in every form."""
        if self.w0 is None:
            return r
        return r + (discount * mask[..., None] * phi_next - phi) @ self.w0

    def answer(self, memory: Weights, phi_query: Array) -> Array:
        """Q̂ = φ_qᵀ w_L."""
        return (memory * phi_query).sum(-1)

    def trace(
        self, phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
    ) -> Float[Array, "layers ... d"]:
        """Return the local weights after every layer (the paper's layer figure)."""
        r = self._seen(phi, phi_next, r, mask, discount)
        weights = reduced(phi, phi_next, r, mask, self.preconditioners, discount)[1]
        return weights if self.w0 is None else self.w0 + weights


def bounded(c: Float[Array, "... d d"], bound: float) -> Float[Array, "... d d"]:
    """C · min(1, bound / √(|C|₁ |C|_∞)): its spectral norm is at most `bound` (Hölder)."""
    size = jnp.abs(c)
    columns, rows = size.sum(-2).max(-1), size.sum(-1).max(-1)
    scale = bound / jnp.sqrt(jnp.maximum(columns * rows, bound**2))
    return c * scale[..., None, None]


def td_step(
    w: Weights, phi: Features, change: Features, r: PerRow, c: Float[Array, "d d"]
) -> Weights:
    """One layer: w + (1/N) C Φᵀ δ with δ = r + (γ m∘Φ' − Φ) w  (paper eq. td).

    `change` is γ m∘Φ' − Φ, which no layer alters.
    """
    delta = r + jnp.einsum("...nd,...d->...n", change, w)
    return w + jnp.einsum("...nd,...n->...d", phi, delta) @ c.T / phi.shape[-2]


def reduced(
    phi: Features, phi_next: Features, r: PerRow, mask: PerRow, c: Preconditioners, discount: float
) -> tuple[Weights, Float[Array, "layers ... d"]]:
    """Local weights by L layers of TD: (w_L, [w_1 … w_L])."""
    change = discount * mask[..., None] * phi_next - phi

    def layer(w: Array, c_l: Array) -> tuple[Array, Array]:
        w = td_step(w, phi, change, r, c_l)
        return w, w

    return jax.lax.scan(layer, jnp.zeros_like(phi[..., 0, :]), c)


def dual(
    phi: Features, phi_next: Features, r: PerRow, mask: PerRow, c: Preconditioners, discount: float
) -> Weights:
    """Local weights through the N×N dual: δ_{ℓ+1} = (I + M_ℓ) δ_ℓ, M_ℓ = (γΦ'−Φ) C_ℓ Φᵀ / N."""
    change = discount * mask[..., None] * phi_next - phi
    projected = jnp.einsum("...nd,ldf->l...nf", change, c)
    m = jnp.einsum("l...nf,...mf->l...nm", projected, phi) / phi.shape[-2]

    def layer(delta: Array, m_l: Array) -> tuple[Array, Array]:
        return delta + jnp.einsum("...nm,...m->...n", m_l, delta), delta

    _, deltas = jax.lax.scan(layer, r, m)
    pulled = jnp.einsum("...nd,l...n->l...d", phi, deltas)
    return jnp.einsum("l...d,lfd->...f", pulled, c) / phi.shape[-2]


def local_weights(
    phi: Given,
    phi_next: Given,
    rewards: Given,
    C: Given,
    *,
    discount: float,
    mask: Given | None = None,
) -> Given:
    """Local weights w_0 … w_L of one context after every layer; Q̂_ℓ(s, a) = φ(s, a)ᵀ w_ℓ.

    Args:
        phi: features φ(s_i, a_i) of the N context transitions, (N, d).
        phi_next: features φ(s'_i, a'_i), (N, d).
        rewards: r_i, (N,).
        C: the preconditioners C_0 … C_{L−1}, (L, d, d).
        discount: γ.
        mask: 1 − done, (N,); 0 drops γφ' of a terminal transition. All ones where not given.

    Returns:
        The weights (L + 1, d), w_0 = 0 first. NumPy float64 in gives NumPy float64 out.
    """

    def weights(phi: Any, phi_next: Any, rewards: Any, C: Any) -> Array:
        phi, phi_next, rewards, C, m = _checked(phi, phi_next, rewards, C, mask)
        _, trace = reduced(phi, phi_next, rewards, m, C, discount)
        return jnp.concatenate([jnp.zeros_like(trace[:1]), trace])

    return _in_own_precision(weights, phi, phi_next, rewards, C)


def literal_prompt_q(
    phi: Given,
    phi_next: Given,
    rewards: Given,
    phi_query: Given,
    C: Given,
    *,
    discount: float,
    mask: Given | None = None,
) -> Given:
    """Q̂(s, a | Ω) by the literal prompt form: Z ← Z + (1/N) P Z M (Zᵀ G_ℓ Z), minus Z[2d+1, N+1].

    The paper's main text leaves out the residual and the 1/N; its theorem needs both.
    """

    def value(phi: Any, phi_next: Any, rewards: Any, phi_query: Any, C: Any) -> Array:
        phi, phi_next, rewards, C, m = _checked(phi, phi_next, rewards, C, mask)
        query = jnp.asarray(phi_query)
        return -literal_prompt(phi, phi_next, rewards, m, query, C, discount)[-1, -1]

    return _in_own_precision(value, phi, phi_next, rewards, phi_query, C)


def literal_prompt(
    phi: Float[Array, "n d"],
    phi_next: Float[Array, "n d"],
    r: Float[Array, " n"],
    mask: Float[Array, " n"],
    phi_query: Float[Array, " d"],
    c: Preconditioners,
    discount: float,
) -> Float[Array, "2*d+1 n+1"]:
    """The prompt Z_L after every layer (paper eq. prompt_mat, linear-trans_weight)."""
    n, d = phi.shape
    z = jnp.block(
        [
            [phi.T, phi_query[:, None]],
            [discount * (mask[:, None] * phi_next).T, jnp.zeros((d, 1), phi.dtype)],
            [r[None, :], jnp.zeros((1, 1), phi.dtype)],
        ]
    )
    m = jnp.diag(jnp.ones(n + 1, phi.dtype).at[-1].set(0))
    p = jnp.zeros((2 * d + 1, 2 * d + 1), phi.dtype).at[-1, -1].set(1)

    def layer(z: Array, c_l: Array) -> tuple[Array, None]:
        g = jnp.zeros_like(p).at[:d, :d].set(-c_l.T).at[:d, d : 2 * d].set(c_l.T)
        return z + p @ z @ m @ (z.T @ g @ z) / n, None

    return jax.lax.scan(layer, z, c)[0]


def _checked(
    phi: Any, phi_next: Any, rewards: Any, c: Any, mask: Any
) -> tuple[Array, Array, Array, Array, Array]:
    """Arrays of fitting shapes, or one message that says which does not fit."""
    phi, phi_next, rewards, c = (jnp.asarray(x) for x in (phi, phi_next, rewards, c))
    if phi.ndim != 2:
        raise UserError(f"phi must have shape (N, d), not {phi.shape}.", where="phi")
    n, d = phi.shape
    mask = jnp.ones(n, phi.dtype) if mask is None else jnp.asarray(mask).astype(phi.dtype)
    expected = {"phi_next": (phi_next, (n, d)), "rewards": (rewards, (n,)), "mask": (mask, (n,))}
    for name, (array, shape) in expected.items():
        if array.shape != shape:
            raise UserError(f"must have shape {shape}, not {array.shape}.", where=name)
    if c.ndim != 3 or c.shape[1:] != (d, d):
        raise UserError(f"must have shape (L, {d}, {d}), not {c.shape}.", where="C")
    return phi, phi_next, rewards, c, mask


def _in_own_precision(function: Callable[..., Array], *arrays: Any) -> Any:
    """Compute in float64 where the caller hands NumPy float64, without a global switch."""
    if any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in arrays):
        with jax.enable_x64(True):
            return np.asarray(function(*arrays))
    return function(*arrays)
