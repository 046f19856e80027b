"""DMG: doubly mild generalisation, in actions and in bootstrapping, with a global or local critic.

Mao et al. 2024, "Doubly Mild Generalization for Offline Reinforcement Learning", in the form of
the official `DMG.py`. With `critic = local` every Q and V below is conditioned on the context Ω.

    V:  min E ρ_τ(min_i Q̄_i(s, a) − V(s))                                     in-sample value (IQL)
    Q:  min E Σ_i (y − Q_i(s, a))²,
        y = r + γ(1−done) [λ min_i Q̄_i(s', ã') + (1 − λ) V(s')]               mild propagation
        ã' = clip(π̄(s') + clip(ε, −c, c), −1, 1),  ε ~ N(0, σ²)
    π:  max E [min_i Q_i(s, π(s)) / E|min_i Q_i| − ν w mean_j (π_j(s) − a_j)²]  mild actions
        w = min(exp(β (min_i Q̄_i(s, a) − V(s))), 3)

One update is `policy_delay` steps on V and Q, then one step of the policy and of both targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from icql.algos.actor_critic import critic_optimiser, policy_optimiser
from icql.algos.base import Batch, Metrics
from icql.algos.optimise import Trained, descend, follow, start
from icql.algos.td3bc import DelayedLearner
from icql.losses import (
    advantage_weights,
    bellman_target,
    dmg_actor_loss,
    expectile,
    mild_value,
    smoothed_action,
)
from icql.nn.critics import Critics
from icql.nn.mlp import in_precision
from icql.nn.policies import DeterministicPolicy
from icql.settings.algorithms import DMGSettings


class DMGState(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    v: Trained[Critics]
    pi: Trained[DeterministicPolicy]
    pi_target: DeterministicPolicy


@dataclass(frozen=True)
class DMG(DelayedLearner[DMGSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> DMGState:
        """Fresh critics, V and policy, and their targets."""
        s, spec = self.settings, self.spec
        q_key, v_key, pi_key = jax.random.split(key, 3)
        q, v = self.fresh_q(q_key), self.fresh_v(v_key)
        sizes = spec.observation_dim, spec.action_dim
        pi = DeterministicPolicy(*sizes, s.policy, spec.noise, key=pi_key)
        state = DMGState(
            start(q, critic_optimiser(s, spec)),
            q,
            start(v, critic_optimiser(s, spec)),
            start(pi, policy_optimiser(s, spec)),
            pi,
        )
        return in_precision(state, spec.precision)

    def update(self, state: DMGState, batch: Batch, key: PRNGKeyArray) -> tuple[DMGState, Metrics]:
        """`policy_delay` steps on V and Q, one on the policy, then both targets follow."""
        s = self.settings

        def critic_step(
            critics: tuple[Trained[Critics], Trained[Critics]], inputs: tuple[Batch, PRNGKeyArray]
        ) -> tuple[tuple[Trained[Critics], Trained[Critics]], Metrics]:
            (q, v), (batch, key) = critics, inputs
            query = batch.query
            noise_key, q_key, v_key = jax.random.split(key, 3)
            q_logged = state.q_target(query.s, query.a, batch.context).min(0)

            def value_loss(v: Critics) -> tuple[Array, Array]:
                estimate = v(query.s, None, batch.context, key=v_key)[0]
                return expectile(q_logged - estimate, s.expectile).mean(), estimate.mean()

            v, v_loss, v_mean = descend(v, critic_optimiser(s, self.spec), value_loss)

            noise = jax.random.normal(noise_key, query.a.shape)
            a_next = smoothed_action(
                state.pi_target(query.s_next), noise, s.policy_noise, s.noise_limit
            )
            q_next = state.q_target(query.s_next, a_next, batch.context_next).min(0)
            v_next = v.model(query.s_next, None, batch.context_next)[0]
            mild = self.bounded(mild_value(q_next, v_next, s.mixture))
            y = bellman_target(query.r, query.mask, mild, s.discount)

            def critic_loss(q: Critics) -> tuple[Array, Metrics]:
                values = q(query.s, query.a, batch.context, key=q_key, prior=state.q_target)
                extras = {"q": values.mean(), "td_error": jnp.abs(y - values).mean()}
                return ((y - values) ** 2).mean(-1).sum(), extras

            q, q_loss, extras = descend(q, critic_optimiser(s, self.spec), critic_loss)
            metrics = {"critic_loss": q_loss, "value_loss": v_loss, "v": v_mean, **extras}
            return (q, v), metrics

        batches, last = self.split(batch)
        (q, v), metrics = jax.lax.scan(
            critic_step, (state.q, state.v), (batches, jax.random.split(key, s.policy_delay))
        )

        query = last.query
        q_logged = state.q_target(query.s, query.a, last.context).min(0)
        advantage = q_logged - v.model(query.s, None, last.context)[0]
        weights = advantage_weights(advantage, s.beta, s.advantage_limit)
        at_s = q.model.at(query.s, last.context, prior=state.q_target)
        pi_key = jax.random.fold_in(key, s.policy_delay)

        def policy_loss(pi: DeterministicPolicy) -> tuple[Array, Array]:
            a = pi(query.s, key=pi_key)
            difference = a - query.a
            loss = dmg_actor_loss(at_s(a).min(0), difference, weights, s.penalty)
            return loss, (difference**2).mean()

        pi, pi_loss, cloning_error = descend(state.pi, policy_optimiser(s, self.spec), policy_loss)
        metrics = {
            **jax.tree.map(jnp.mean, metrics),
            "policy_loss": pi_loss,
            "cloning_error": cloning_error,
            "advantage": advantage.mean(),
            "clipped_weights": (weights >= s.advantage_limit).mean(),
            "max_preconditioner": q.model.max_preconditioner(),
        }
        q_target = follow(state.q_target, q.model, s.target_rate)
        pi_target = follow(state.pi_target, pi.model, s.target_rate)
        return DMGState(q, q_target, v, pi, pi_target), metrics
