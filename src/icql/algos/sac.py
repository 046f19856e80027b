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
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.base import Batch, Metrics, Needs, Spec
from icql.losses import bellman_target, soft_actor_loss, temperature_loss
from icql.nn.critics import Critics, make_critics
from icql.nn.policies import TanhGaussianPolicy
from icql.settings.algorithms import SACSettings
from icql.settings.critics import LocalSettings


class SACState(eqx.Module):
    """Networks and optimiser states of SAC."""

    critics: Critics
    targets: Critics
    policy: TanhGaussianPolicy
    log_temperature: Float[Array, ""]
    critics_opt: optax.OptState
    policy_opt: optax.OptState
    temperature_opt: optax.OptState


def critic_target(
    r: Float[Array, " batch"],
    mask: Float[Array, " batch"],
    q_next: Float[Array, "2 batch"],
    log_prob_next: Float[Array, " batch"],
    temperature: Float[Array, ""],
    discount: float,
) -> Float[Array, " batch"]:
    """y = r + γ (1 − done) (min_i Q̄_i(s', ã') − α log π(ã'|s'))  (eq. 3 in eq. 5)."""
    return bellman_target(r, mask, q_next.min(0) - temperature * log_prob_next, discount)


def critic_loss(q: Float[Array, "2 batch"], y: Float[Array, " batch"]) -> Float[Array, ""]:
    """Σ_i ½ E (Q_i − y)²  (eq. 5)."""
    return 0.5 * ((q - y) ** 2).mean(-1).sum()


@dataclass(frozen=True)
class SAC:
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`), learning online."""

    settings: SACSettings
    spec: Spec

    @property
    def needs(self) -> Needs:
        """Plain transitions."""
        return Needs()

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.settings.learning_rate)

    def init(self, key: PRNGKeyArray) -> SACState:
        """Fresh networks; the target critics start as copies."""
        s, spec = self.settings, self.spec
        critic_key, policy_key = jax.random.split(key)
        critics = make_critics(
            "global",
            observation_dim=spec.observation_dim,
            action_dim=spec.action_dim,
            hidden=s.hidden,
            count=2,
            discount=s.discount,
            local=LocalSettings(),
            context=0,
            key=critic_key,
        )
        policy = TanhGaussianPolicy(spec.observation_dim, spec.action_dim, s.hidden, key=policy_key)
        log_temperature = jnp.log(jnp.asarray(s.initial_temperature, jnp.float32))
        return SACState(
            critics,
            jax.tree.map(jnp.copy, critics),  # a copy: the two must not share donated buffers
            policy,
            log_temperature,
            self._adam.init(critics),
            self._adam.init(policy),
            self._adam.init(log_temperature),
        )

    def update(self, state: SACState, batch: Batch, key: PRNGKeyArray) -> tuple[SACState, Metrics]:
        """One Adam step on the critics, then the policy, then the temperature, then the targets."""
        s, t = self.settings, batch.query
        next_key, actor_key = jax.random.split(key)
        alpha = jnp.exp(state.log_temperature)

        a_next, log_prob_next = state.policy.sample(t.s_next, key=next_key)
        y = critic_target(
            t.r, t.mask, state.targets.at(t.s_next)(a_next), log_prob_next, alpha, s.discount
        )

        def of_critics(critics: Critics) -> tuple[Array, Array]:
            q = critics.at(t.s)(t.a)
            return critic_loss(q, y), q.mean()

        (q_loss, q_mean), grads = jax.value_and_grad(of_critics, has_aux=True)(state.critics)
        critics, critics_opt = self._step(grads, state.critics_opt, state.critics)

        def of_policy(policy: TanhGaussianPolicy) -> tuple[Array, Array]:
            a, log_prob = policy.sample(t.s, key=actor_key)
            return soft_actor_loss(critics.at(t.s)(a), log_prob, alpha), log_prob

        (pi_loss, log_prob), grads = jax.value_and_grad(of_policy, has_aux=True)(state.policy)
        policy, policy_opt = self._step(grads, state.policy_opt, state.policy)

        target_entropy = s.target_entropy_per_action * self.spec.action_dim
        grads = jax.grad(temperature_loss)(state.log_temperature, log_prob, target_entropy)
        log_temperature, temperature_opt = self._step(
            grads, state.temperature_opt, state.log_temperature
        )

        targets = optax.incremental_update(critics, state.targets, s.target_rate)
        metrics = {
            "critic_loss": q_loss,
            "policy_loss": pi_loss,
            "q": q_mean,
            "temperature": alpha,
            "entropy": -log_prob.mean(),
        }
        return (
            SACState(
                critics,
                targets,
                policy,
                log_temperature,
                critics_opt,
                policy_opt,
                temperature_opt,
            ),
            metrics,
        )

    def policy(self, state: SACState) -> TanhGaussianPolicy:
        """The policy as trained so far; called with observations it returns tanh of the mean."""
        return state.policy

    def diagnose(self, state: SACState, batch: Batch) -> dict[str, Any]:
        """The temperature."""
        return {"temperature": jnp.exp(state.log_temperature)}

    def _step(self, grads: Any, opt: optax.OptState, params: Any) -> tuple[Any, optax.OptState]:
        updates, opt = self._adam.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt
