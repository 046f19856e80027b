"""SAC: soft actor-critic with twin critics and automatic temperature.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905). With
α = temperature, Q̄ = target critics and a fresh action ã ~ π(·|s):

* critics, eq. 5:      ½ E (Q_i(s, a) − y)²,
                       y = r + γ (1 − done) (min_i Q̄_i(s', ã') − α log π(ã'|s')),  eq. 3
* actor, eq. 7–9:      E [α log π(ã|s) − min_i Q_i(s, ã)], ã reparameterised
* temperature, eq. 18: E [−α log π(ã|s) − α H̄], H̄ = −dim(A)
* targets:             Q̄ ← (1 − τ) Q̄ + τ Q
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.base import Algorithm, Batch, Metrics
from icql.algos.optimise import Trained, adam, descend, follow, start
from icql.losses import (
    bellman_target,
    soft_actor_loss,
    soft_critic_loss,
    soft_value,
    temperature_loss,
)
from icql.nn.critics import Critics, global_critics
from icql.nn.mlp import in_precision
from icql.nn.policies import TanhGaussianPolicy
from icql.settings.algorithms import SACSettings
from icql.settings.shared import PolicySettings


class SACState(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    pi: Trained[TanhGaussianPolicy]
    log_temperature: Trained[Float[Array, ""]]


@dataclass(frozen=True)
class SAC(Algorithm[SACSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`), learning online."""

    def init(self, key: PRNGKeyArray) -> SACState:
        """Fresh networks; the target critics start as copies."""
        s, spec, optimiser = self.settings, self.spec, adam(self.settings.learning_rate)
        q_key, pi_key = jax.random.split(key)
        q = global_critics(spec.observation_dim + spec.action_dim, s.hidden, 2, key=q_key)
        sizes = spec.observation_dim, spec.action_dim
        pi = TanhGaussianPolicy(*sizes, PolicySettings(hidden=s.hidden), key=pi_key)
        log_temperature = jnp.log(jnp.asarray(s.initial_temperature, jnp.float32))
        state = SACState(
            q=start(q, optimiser),
            q_target=jax.tree.map(jnp.copy, q),  # the two must not share donated buffers
            pi=start(pi, optimiser),
            log_temperature=start(log_temperature, optimiser),
        )
        return in_precision(state, spec.precision)

    def update(self, state: SACState, batch: Batch, key: PRNGKeyArray) -> tuple[SACState, Metrics]:
        """One step on the critics, then the policy, then the temperature; the target follows."""
        s, query, optimiser = self.settings, batch.query, adam(self.settings.learning_rate)
        next_key, pi_key = jax.random.split(key)
        temperature = jnp.exp(state.log_temperature.model)

        a_next, log_prob_next = state.pi.model.sample(query.s_next, key=next_key)
        v_next = soft_value(state.q_target(query.s_next, a_next), log_prob_next, temperature)
        y = bellman_target(query.r, query.mask, v_next, s.discount)

        def critic_loss(q: Critics) -> tuple[Array, Array]:
            values = q(query.s, query.a)
            return soft_critic_loss(values, y), values.mean()

        q, q_loss, q_mean = descend(state.q, optimiser, critic_loss)

        def policy_loss(pi: TanhGaussianPolicy) -> tuple[Array, Array]:
            a, log_prob = pi.sample(query.s, key=pi_key)
            return soft_actor_loss(q.model(query.s, a), log_prob, temperature), log_prob

        pi, pi_loss, log_prob = descend(state.pi, optimiser, policy_loss)

        target_entropy = s.target_entropy_per_action * self.spec.action_dim
        log_temperature, _, _ = descend(
            state.log_temperature,
            optimiser,
            lambda log_t: (temperature_loss(log_t, log_prob, target_entropy), None),
        )
        metrics = {
            "critic_loss": q_loss,
            "policy_loss": pi_loss,
            "q": q_mean,
            "temperature": temperature,
            "entropy": -log_prob.mean(),
        }
        q_target = follow(state.q_target, q.model, s.target_rate)
        return SACState(q, q_target, pi, log_temperature), metrics

    def diagnose(self, state: SACState, batch: Batch) -> dict[str, Any]:
        """The temperature."""
        return {"temperature": jnp.exp(state.log_temperature.model)}
