"""The losses of the papers as pure functions: each reads like its equation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icql.settings.algorithms import QUnit, TD3BCForm

Scalar = Float[Array, ""]
Number = float | Scalar  # a setting is an entry of an array where a grid varies it
Values = Float[Array, " batch"]
Ensemble = Float[Array, "critics batch"]
Actions = Float[Array, "batch act"]


def expectile(u: Float[Array, "..."], tau: Number) -> Float[Array, "..."]:
    """ρ_τ(u) = |τ − 1(u < 0)| u²  (IQL; ICQL eq. loss_iql)."""
    return jnp.where(u < 0, 1 - tau, tau) * u**2


def bellman_target(r: Values, mask: Values, v_next: Values, discount: Number) -> Values:
    """y = r + γ (1 − done) V(s'); `mask` is 1 − done."""
    return r + discount * mask * v_next


def advantage_weights(advantage: Values, beta: Number, limit: Number) -> Values:
    """min(exp(β A), limit): the weights of advantage-weighted regression (IQL)."""
    # the exponent is capped first: exp(β A) itself may overflow before the minimum is taken
    return jnp.exp(jnp.minimum(beta * advantage, jnp.log(limit)))


def normalised_q(q: Values, unit: QUnit = "size", change: Values | None = None) -> Values:
    """Q / E|Q|, the scale held constant under the gradient (TD3+BC's λ); or Q over its spread.

    In the unit `noise`: Q over the spread of its `change` by deviations like the log's.
    """
    if unit == "noise":
        assert change is not None
        scale = change.std()
    else:
        scale = q.std() if unit == "spread" else jnp.abs(q).mean()
    # a local critic is exactly 0 where no reward was retrieved: keep the quotient finite
    return q / jnp.maximum(jax.lax.stop_gradient(scale), 1e-6)


def smoothed_action(
    a: Float[Array, "... act"], noise: Float[Array, "... act"], spread: Number, limit: Number
) -> Float[Array, "... act"]:
    """clip(a + clip(spread · noise, ±limit), ±1): TD3's target policy smoothing."""
    return jnp.clip(a + jnp.clip(spread * noise, -limit, limit), -1, 1)


def cloning_actor_loss(q: Values, difference: Actions, weight: Number) -> Scalar:
    """E[−Q(s, π(s)) + weight · ‖π(s) − a‖²], `difference` being π(s) − a (ReBRAC's actor)."""
    return (weight * (difference**2).sum(-1) - q).mean()


def td3bc_actor_loss(q: Values, difference: Actions, weight: Number, form: TD3BCForm) -> Scalar:
    """What TD3+BC's actor minimises, for `q` = Q(s, π(s)) and `difference` = π(s) − a.

    original (Fujimoto & Gu 2021): E[−weight · Q/E|Q| + mean_j (π_j(s) − a_j)²];
    retuned (ReBRAC's TD3+BC):     E[−Q/E|Q| + weight · ‖π(s) − a‖²];
    paper (ICQL, after loss_td3):  E[−Q + weight · ‖π(s) − a‖²].
    """
    match form:
        case "original":
            return -weight * normalised_q(q).mean() + (difference**2).mean()
        case "retuned":
            return cloning_actor_loss(normalised_q(q), difference, weight)
        case "paper":
            return cloning_actor_loss(q, difference, weight)


def rebrac_value(q_next: Values, difference: Actions, weight: Number) -> Values:
    """min_i Q̄_i(s', ã') − β₂ ‖ã' − a'‖², with a' of the data (ReBRAC's critic)."""
    return q_next - weight * (difference**2).sum(-1)


def conservative_gap(
    q: Ensemble,
    q_sampled: Float[Array, "critics samples batch"],
    log_density: Float[Array, "samples batch"],
    temperature: Number,
) -> Ensemble:
    """log Σ_a exp(Q(s, a)) − Q(s, a_data): what CQL(H) pushes down.

    The sum over all actions is estimated from samples, each divided by the density it was drawn
    with; `temperature` sharpens it to the maximum as it goes to 0. As in the official code the
    number of samples is not divided out: a constant that no gradient sees.
    """
    scaled = (q_sampled - log_density) / temperature
    return temperature * jax.scipy.special.logsumexp(scaled, axis=1) - q


def mild_value(q_next: Values, v_next: Values, mixture: Number) -> Values:
    """λ min_i Q̄_i(s', π(s')) + (1 − λ) V(s'): DMG's mild generalisation propagation."""
    return mixture * q_next + (1 - mixture) * v_next


def dmg_actor_loss(q: Values, difference: Actions, weights: Values, penalty: Number) -> Scalar:
    """E[−Q/E|Q| + ν · mean_j w (π_j(s) − a_j)²], w the clipped exp(β A): DMG's mild actions."""
    return -normalised_q(q).mean() + penalty * (weights * (difference**2).mean(-1)).mean()


def soft_value(q: Ensemble, log_prob: Values, temperature: Scalar) -> Values:
    """min_i Q̄_i(s', ã') − α log π(ã'|s')  (SAC's value of the next state)."""
    return q.min(0) - temperature * log_prob


def soft_critic_loss(q: Ensemble, y: Values) -> Scalar:
    """Σ_i ½ E (Q_i(s, a) − y)²  (SAC's critic loss)."""
    return 0.5 * ((q - y) ** 2).mean(-1).sum()


def soft_actor_loss(q: Ensemble, log_prob: Values, temperature: Scalar) -> Scalar:
    """E [α log π(ã|s) − min_i Q_i(s, ã)]  (SAC's policy loss)."""
    return (temperature * log_prob - q.min(0)).mean()


def expected_soft_value(
    q: Float[Array, "critics choices batch"],
    log_probs: Float[Array, "batch choices"],
    temperature: Number,
) -> Values:
    """Σ_a π(a|s) [min_i Q_i(s, a) − α log π(a|s)], exact where actions are choices."""
    return (jnp.exp(log_probs) * (q.min(0).T - temperature * log_probs)).sum(-1)


def temperature_loss(log_temperature: Scalar, log_prob: Values, target_entropy: Number) -> Scalar:
    """E [−α log π(ã|s) − α H̄]  (SAC's temperature loss); α = exp(log α) > 0."""
    return -(jnp.exp(log_temperature) * (log_prob + target_entropy)).mean()


def log_temperature_loss(
    log_temperature: Scalar, log_prob: Values, target_entropy: Number
) -> Scalar:
    """E [−log α (log π(ã|s) + H̄)]: the form of CQL's official code, linear in log α."""
    return -(log_temperature * (log_prob + target_entropy)).mean()


def flow_point(
    noise: Float[Array, "... act"], a: Float[Array, "... act"], t: Float[Array, "... 1"]
) -> Float[Array, "... act"]:
    """x_t = (1 − t) z + t a: the straight path from noise to the logged action (FQL)."""
    return (1 - t) * noise + t * a


def flow_matching(
    velocity: Float[Array, "... act"], noise: Float[Array, "... act"], a: Float[Array, "... act"]
) -> Float[Array, "... act"]:
    """(v − (a − z))² of each entry: the straight path's velocity is a − z (FQL's BC flow loss)."""
    return (velocity - (a - noise)) ** 2


def distillation_loss(
    q: Values, a: Actions, a_flow: Actions, alpha: Number
) -> tuple[Scalar, Scalar]:
    """E[−Q(s, μ(s, z)) + α mean_j (μ_j(s, z) − a_flow,j)²], and the distance alone (FQL's actor).

    `q` is of the clipped action, the distance of `a` = μ(s, z) as it is.
    """
    distance = ((a - a_flow) ** 2).mean()
    return alpha * distance - q.mean(), distance


def chunk_target(
    r: Float[Array, "batch h"], mask: Float[Array, "batch h"], v_next: Values, discount: Number
) -> Values:
    """y = Σ_{i<h} γ^i r_{t+i} + γ^h (1 − done) V(s_{t+h}): QC's h-step target.

    The rewards and masks of one chunk; `mask` of its last step is 1 − done.
    """
    h = r.shape[-1]
    return (discount ** jnp.arange(h, dtype=r.dtype) * r).sum(-1) + discount**h * mask[
        ..., -1
    ] * v_next


def masked_mean(loss: Float[Array, "batch ..."], valid: Array) -> Scalar:
    """Mean over the whole batch of a loss that counts only where `valid` (QC's convention)."""
    return jnp.where(valid, loss, 0).mean()
