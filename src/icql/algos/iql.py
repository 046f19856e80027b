"""IQL and ICQL: implicit Q-learning with a global or a local critic.

Kostrikov et al. 2022, and the ICQL paper's section "In-context Compositional Q-Learning". With
`critic = local` every value below is conditioned on the retrieved context: Q̂(s, a | Ω_s).

Reading B of V (`value = expectile`; IQL's own form):
    V:  min E ρ_τ(min_i Q̂_target,i(s, a) − V(s))             IQL eq. 5
    Q:  min E Σ_i (y − Q̂_i(s, a))²,  y = r + γ(1−done) V(s')  IQL eq. 6
Reading A (`value = policy`; the ICQL paper's formula, eq. loss_iql):
    V(s) = E_{a~π} min_i Q̂_target,i(s, a)
    Q:  min E Σ_i ρ_τ(y − Q̂_i(s, a)),  y = r + γ(1−done) V(s')
    (`expectile_sign = q-y`: ρ_τ(Q̂_i(s, a) − y), the sign as the paper prints it)
Policy, both:
    max E min(exp(β (min_i Q̂_target,i(s, a) − V(s))), 100) log π(a|s)   IQL eq. 7, on logged a
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from icql.algos.actor_critic import (
    CriticLearner,
    critic_optimiser,
    policy_optimiser,
    stochastic_policy,
)
from icql.algos.base import Batch, Metrics, Transition, join
from icql.algos.optimise import Trained, descend, follow, start
from icql.losses import advantage_weights, bellman_target, expectile
from icql.nn.critics import Critics
from icql.nn.mlp import in_precision
from icql.nn.policies import CategoricalPolicy, GaussianPolicy
from icql.settings.algorithms import IQLSettings


class IQLState(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    v: Trained[Critics] | None  # reading B only
    pi: Trained[GaussianPolicy | CategoricalPolicy]


@dataclass(frozen=True)
class IQL(CriticLearner[IQLSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> IQLState:
        """Fresh critics, their target, V (reading B) and policy."""
        s, spec = self.settings, self.spec
        q_key, v_key, pi_key = jax.random.split(key, 3)
        q, v = self.fresh_q(q_key), None
        if s.value == "expectile":
            v = start(self.fresh_v(v_key), critic_optimiser(s, spec))
        pi = stochastic_policy(s, spec, pi_key)
        state = IQLState(
            start(q, critic_optimiser(s, spec)), q, v, start(pi, policy_optimiser(s, spec))
        )
        return in_precision(state, spec.precision)

    def update(self, state: IQLState, batch: Batch, key: PRNGKeyArray) -> tuple[IQLState, Metrics]:
        """One step on V (reading B), the policy and Q, in IQL's order; then the target follows."""
        s, query = self.settings, batch.query
        v_key, q_key, pi_key, sample_key = jax.random.split(key, 4)
        here_and_next = join(query.s, query.s_next), join(batch.context, batch.context_next)

        if state.v is None:  # reading A
            v, v_loss = None, jnp.zeros(())
            q_logged, v_s, v_next = self._policy_values(state, query, here_and_next, sample_key)
        else:  # reading B
            q_logged = state.q_target(query.s, query.a, batch.context).min(0)

            def value_loss(v: Critics) -> tuple[Array, None]:
                estimate = v(query.s, None, batch.context, key=v_key)[0]
                return expectile(q_logged - estimate, s.expectile).mean(), None

            v, v_loss, _ = descend(state.v, critic_optimiser(s, self.spec), value_loss)
            v_s, v_next = jnp.split(v.model(here_and_next[0], None, here_and_next[1])[0], 2)

        advantage = q_logged - v_s
        weights = advantage_weights(advantage, s.beta, s.advantage_limit)

        def policy_loss(pi: GaussianPolicy | CategoricalPolicy) -> tuple[Array, None]:
            return -(weights * pi.log_prob(query.s, query.a, key=pi_key)).mean(), None

        pi, pi_loss, _ = descend(state.pi, policy_optimiser(s, self.spec), policy_loss)

        y = bellman_target(query.r, query.mask, self.bounded(v_next), s.discount)

        def critic_loss(q: Critics) -> tuple[Array, Array]:
            error = y - q(query.s, query.a, batch.context, key=q_key, prior=state.q_target)
            of = error if s.expectile_sign == "y-q" else -error
            loss = error**2 if state.v is not None else expectile(of, s.expectile)
            return loss.mean(-1).sum(), jnp.abs(error).mean()

        q, q_loss, td_error = descend(state.q, critic_optimiser(s, self.spec), critic_loss)
        q_target = follow(state.q_target, q.model, s.target_rate)
        metrics = {
            "critic_loss": q_loss,
            "value_loss": v_loss,
            "policy_loss": pi_loss,
            "q": q_logged.mean(),
            "v": v_s.mean(),
            "advantage": advantage.mean(),
            "td_error": td_error,
            "clipped_weights": (weights >= s.advantage_limit).mean(),
            "max_preconditioner": q.model.max_preconditioner(),
        }
        return IQLState(q, q_target, v, pi), metrics

    def _policy_values(
        self, state: IQLState, query: Transition, states: tuple[Array, Any], key: PRNGKeyArray
    ) -> tuple[Array, Array, Array]:
        """Reading A: min_i Q̂_i(s, a), and V = E_{a~π} min_i Q̂_i over a few actions at s and s'."""
        s, context = states
        several = jnp.broadcast_to(s, (self.settings.policy_samples, *s.shape))
        drawn = state.pi.model.sample(several, key=key)
        logged = join(query.a, query.a_next)  # the value at s' is left: one call for all
        q = state.q_target(s, jnp.concatenate([logged[None], drawn]), context).min(0)
        v_s, v_next = jnp.split(q[1:].mean(0), 2)
        return q[0, : len(query.s)], v_s, v_next
