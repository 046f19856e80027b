"""The losses of the papers as pure functions: each reads like its equation."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def expectile(u: Float[Array, "..."], tau: float) -> Float[Array, "..."]:
    """ρ_τ(u) = |τ − 1(u < 0)| u²  (IQL eq. 4; ICQL eq. loss_iql)."""
    return jnp.where(u < 0, 1 - tau, tau) * u**2


def bellman_target(
    r: Float[Array, " batch"],
    mask: Float[Array, " batch"],
    v_next: Float[Array, " batch"],
    discount: float,
) -> Float[Array, " batch"]:
    """y = r + γ (1 − done) V(s'); `mask` is 1 − done."""
    return r + discount * mask * v_next


def advantage_weights(
    advantage: Float[Array, " batch"], beta: float, limit: float
) -> Float[Array, " batch"]:
    """min(exp(β A), limit): the weights of advantage-weighted regression (IQL eq. 7)."""
    # the exponent is capped first: exp(β A) itself may overflow before the minimum is taken
    return jnp.exp(jnp.minimum(beta * advantage, jnp.log(limit)))
