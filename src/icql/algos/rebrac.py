"""ReBRAC: behaviour regularisation in the actor and in the critic, global or local.

Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning". With
`critic = local` every Q below is Q̂(s, a | Ω_s).

    ã' = clip(π̄(s') + clip(ε, −c, c), −1, 1),  ε ~ N(0, σ²)
    Q:  min E Σ_i (y − Q_i(s, a))²,
        y = r + γ(1−done) (min_i Q̄_i(s', ã') − β₂ ‖ã' − a'‖²)               critic penalty
    π:  max E [min_i Q_i(s, π(s)) / E|min_i Q_i| − β₁ ‖π(s) − a‖²]           actor penalty

a' is the data's own next action. What the paper revisits is in the defaults: three hidden
layers, LayerNorm in the critic, large batches. Our networks start orthogonal; the official ones
with PyTorch's uniform weights. One update is `policy_delay` critic steps, then one step of
the policy and of both targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from icql.algos.actor_critic import bounded, critic_optimiser
from icql.algos.base import Batch, Metrics
from icql.algos.optimise import Trained, descend, follow
from icql.algos.td3 import TD3Based, TD3State, policy_optimiser, start_td3
from icql.losses import (
    bellman_target,
    cloning_actor_loss,
    normalised_q,
    rebrac_value,
    smoothed_action,
)
from icql.nn.critics import Critics
from icql.nn.policies import DeterministicPolicy
from icql.settings.algorithms import ReBRACSettings


@dataclass(frozen=True)
class ReBRAC(TD3Based[ReBRACSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> TD3State:
        """Fresh critics and policy, and their targets."""
        return start_td3(self.settings, self.spec, key, layer_norm=self.settings.layer_norm)

    def update(self, state: TD3State, batch: Batch, key: PRNGKeyArray) -> tuple[TD3State, Metrics]:
        """`policy_delay` steps on Q, one on the policy, then both targets follow."""
        s = self.settings

        def critic_step(
            q: Trained[Critics], inputs: tuple[Batch, PRNGKeyArray]
        ) -> tuple[Trained[Critics], Metrics]:
            batch, key = inputs
            query = batch.query
            noise_key, q_key = jax.random.split(key)
            noise = jax.random.normal(noise_key, query.a.shape)
            a_next = smoothed_action(
                state.pi_target(query.s_next), noise, s.policy_noise, s.noise_limit
            )
            q_next = state.q_target(query.s_next, a_next, batch.context_next).min(0)
            v_next = rebrac_value(bounded(q_next, s, self.spec), a_next - query.a_next, s.critic_bc)
            y = bellman_target(query.r, query.mask, v_next, s.discount)

            def critic_loss(q: Critics) -> tuple[Array, Metrics]:
                values = q(query.s, query.a, batch.context, key=q_key)
                extras = {"q": values.mean(), "td_error": jnp.abs(y - values).mean()}
                return ((y - values) ** 2).mean(-1).sum(), extras

            q, loss, extras = descend(q, critic_optimiser(s), critic_loss)
            return q, {"critic_loss": loss, **extras}

        batches = batch.split(s.policy_delay)
        q, metrics = jax.lax.scan(
            critic_step, state.q, (batches, jax.random.split(key, s.policy_delay))
        )

        last = jax.tree.map(lambda x: x[-1], batches)
        at_s = q.model.at(last.query.s, last.context)

        def policy_loss(pi: DeterministicPolicy) -> tuple[Array, Array]:
            a = pi(last.query.s)
            difference = a - last.query.a
            q_pi = at_s(a).min(0)
            q_pi = normalised_q(q_pi) if s.normalise_q else q_pi
            loss = cloning_actor_loss(q_pi, difference, s.actor_bc)
            return loss, (difference**2).mean()

        pi, pi_loss, cloning_error = descend(state.pi, policy_optimiser(s), policy_loss)
        metrics = {
            **jax.tree.map(jnp.mean, metrics),
            "policy_loss": pi_loss,
            "cloning_error": cloning_error,
            "max_preconditioner": q.model.max_preconditioner(),
        }
        q_target = follow(state.q_target, q.model, s.target_rate)
        pi_target = follow(state.pi_target, pi.model, s.target_rate)
        return TD3State(q, q_target, pi, pi_target), metrics
