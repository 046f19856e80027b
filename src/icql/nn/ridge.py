"""A local critic by ridge regression: the context's targets, fitted in closed form.

For a context Ω of N transitions with features Φ (N, d) of its pairs (s_j, a_j), and a learned prior
w₀ that all contexts share:

    y_j = r_j + γ m_j φ̄(s'_j, a'_j)ᵀ w̄₀         bars: the target network's; no gradient
    w   = argmin_w ‖y − Φ w‖² + λN ‖w − w₀‖²
        = w₀ + Φᵀ (ΦΦᵀ + λN I)⁻¹ (y − Φ w₀)       an N × N system; λ > 0 is learned
    Q̂(s, a | Ω) = φ(s, a)ᵀ w                      any action, logged or not

The linear Transformer bootstraps inside the context, from its own w. Here the values of the pairs
(s'_j, a'_j) come from the target network's prior: nothing is iterated, so nothing can run away
within a context, and where a context says nothing Q̂ falls back to the prior φᵀw₀.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icql.nn import backend
from icql.nn.in_context import Features, PerRow, Weights

LEAST = 1e-4  # λ: keeps the system within float32's reach where a context repeats its rows


class Ridge(eqx.Module):
    """The prior w₀ and λ = softplus(ρ), both learned."""

    w0: Float[Array, " d"]
    rho: Float[Array, ""]

    def __init__(self, features: int, ridge: float | Array) -> None:
        self.w0 = jnp.zeros(features)
        self.rho = jnp.log(jnp.expm1(jnp.asarray(ridge, jnp.float32)))

    @property
    def ridge(self) -> Float[Array, "..."]:
        """λ; of each critic, where several are stacked."""
        return jax.nn.softplus(self.rho) + LEAST

    def prior(self, phi: Float[Array, "... d"]) -> Float[Array, "..."]:
        """φᵀ w₀, the value before any context is read."""
        return phi @ self.w0

    def fit(self, phi: Features, y: PerRow) -> Weights:
        """Return the local weights w of each context."""
        n = phi.shape[-2]
        # in full: a product that rounds (TF32) could leave ΦΦᵀ + λN I indefinite
        gram = jnp.einsum("...nd,...md->...nm", phi, phi, precision="highest")
        dual = solve(gram + n * self.ridge * jnp.eye(n), y - self.prior(phi))
        return self.w0 + jnp.einsum("...nd,...n->...d", phi, dual)

    def answer(self, memory: Weights, phi_query: Float[Array, "... d"]) -> Float[Array, "..."]:
        """Q̂ = φ_qᵀ w."""
        return (memory * phi_query).sum(-1)


def solve(k: Float[Array, "... n n"], b: Float[Array, "... n"]) -> Float[Array, "... n"]:
    """x with K x = b, for symmetric positive definite K; its gradient is one more such solve.

    By Gauss–Jordan elimination, which needs no pivoting here: products only. LAPACK, compiled for
    several critics at once, can deadlock XLA's thread pool on two CPU cores.
    """

    def times(x: Array) -> Array:
        return jnp.einsum("...nm,...m->...n", k, x, precision="highest")

    def eliminate(_: object, b: Array) -> Array:
        if backend.on_gpu():
            from icql.nn.kernels.elimination import eliminated as by_kernel

            return by_kernel(k, b)
        return eliminated(k, b)

    return jax.lax.custom_linear_solve(times, b, eliminate, symmetric=True)


def eliminated(k: Float[Array, "... n n"], b: Float[Array, "... n"]) -> Float[Array, "... n"]:
    """x with K x = b by Gauss–Jordan elimination, step by step; no gradient."""

    def step(i: Array, rows: Array) -> Array:
        pivot = rows[..., i, :] / rows[..., i, i, None]
        rows = rows - rows[..., :, i, None] * pivot[..., None, :]
        return rows.at[..., i, :].set(pivot)

    rows = jnp.concatenate([k, b[..., None]], -1)
    return jax.lax.fori_loop(0, b.shape[-1], step, rows)[..., -1]
