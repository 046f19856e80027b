"""CQL: conservative Q-learning, CQL(H), with a global or a local critic.

Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", on SAC, in the
form of CORL's `cql.py`. With `critic = local` every Q below is Q̂(s, a | Ω_s).

    Q:  min Σ_i E (y − Q_i(s, a))² + α E[log Σ_a exp Q_i(s, a) − Q_i(s, a)]      CQL(H)
        y = r + γ(1−done) min_i Q̄_i(s', ã'),  ã' ~ π(·|s')
        or, with `max_backup`, max over N actions ã' of min_i Q̄_i(s', ã')
        log Σ_a exp Q from N actions each of U[−1, 1], π(·|s) and π(·|s'), every one
        divided by the density it was drawn with; without `importance_sampling` none is
        divided, and the logged action is one of them
    π:  min E [T log π(ã|s) − min_i Q_i(s, ã)],  ã ~ π(·|s)                        SAC, policy
        in the first `cloning_steps` updates log π(a|s) of the logged a in the place of Q
    T:  min E [−log T (log π(ã|s) + H̄)],  H̄ = −dim(A)                            SAC, temperature
    α, with `lagrange` (CQL, appendix):  α' ≥ 0 is raised while E[log Σ exp Q − Q] > gap:
        min_Q max_α'  α' α (E[log Σ_a exp Q_i(s, a) − Q_i(s, a)] − gap)

Policy, temperature and critics make their steps from the same networks, as in CORL.

Of discrete actions every sum over actions is exact (Christodoulou 2019 for SAC), nothing is drawn,
and H̄ is half of the largest entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.actor_critic import CriticLearner, critic_optimiser, policy_optimiser
from icql.algos.base import Batch, Metrics, Transition
from icql.algos.optimise import Trained, adam, descend, follow, start
from icql.losses import (
    bellman_target,
    conservative_gap,
    expected_soft_value,
    log_temperature_loss,
    soft_actor_loss,
)
from icql.nn.critics import Critics, ValueAt
from icql.nn.mlp import in_precision
from icql.nn.policies import CategoricalPolicy, TanhGaussianPolicy
from icql.settings.algorithms import CQLSettings


class CQLState(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    pi: Trained[TanhGaussianPolicy | CategoricalPolicy]
    log_temperature: Trained[Float[Array, ""]]
    log_dual: Trained[Float[Array, ""]] | None  # log α', the Lagrange form only
    step: Int[Array, ""] | None  # where the policy clones first


@dataclass(frozen=True)
class CQL(CriticLearner[CQLSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> CQLState:
        """Fresh critics, their target, policy, temperature 1 and, with Lagrange, weight 1."""
        s, spec = self.settings, self.spec
        q_key, pi_key = jax.random.split(key)
        q, optimiser = self.fresh_q(q_key), policy_optimiser(s, spec)
        pi = self._fresh_policy(pi_key)
        state = CQLState(
            q=start(q, critic_optimiser(s, spec)),
            q_target=q,
            pi=start(pi, optimiser),
            log_temperature=start(jnp.zeros(()), optimiser),
            log_dual=start(jnp.zeros(()), self._dual_optimiser()) if s.lagrange else None,
            step=jnp.zeros((), jnp.int32) if s.cloning_steps else None,
        )
        return in_precision(state, spec.precision)

    def update(self, state: CQLState, batch: Batch, key: PRNGKeyArray) -> tuple[CQLState, Metrics]:
        """One step on policy, temperature, critics and dual; then the target follows."""
        s, query, optimiser = self.settings, batch.query, policy_optimiser(self.settings, self.spec)
        pi_key, next_key, sample_key, q_key = jax.random.split(key, 4)
        temperature = jnp.exp(state.log_temperature.model)
        at_s = state.q.model.at(query.s, batch.context, prior=state.q_target)

        def policy_loss(pi: TanhGaussianPolicy | CategoricalPolicy) -> tuple[Array, Array]:
            return self._actor_loss(pi, at_s, query, temperature, state.step, pi_key)

        pi, pi_loss, log_prob = descend(state.pi, optimiser, policy_loss)

        n = self.spec.action_dim
        target_entropy = 0.5 * math.log(n) if self.spec.discrete else -float(n)
        log_temperature, _, _ = descend(
            state.log_temperature,
            optimiser,
            lambda log_t: (log_temperature_loss(log_t, log_prob, target_entropy), None),
        )

        v_next = self._next_value(state, batch, temperature, next_key)
        y = bellman_target(query.r, query.mask, v_next, s.discount)

        sampled, log_density = self._proposals(state.pi.model, query, sample_key)
        # of choices nothing was drawn: the sum over them is exact
        unweighted = not (s.importance_sampling or self.spec.discrete)
        actions = jnp.concatenate([query.a[None], sampled])  # one pass: logged, then sampled
        dual = jnp.ones(()) if state.log_dual is None else self._dual(state.log_dual.model)

        def critic_loss(q: Critics) -> tuple[Array, tuple[Array, Metrics]]:
            at_s = q.at(query.s, batch.context, key=q_key, prior=state.q_target)
            values = at_s(actions, key=q_key)
            logged, others = values[:, 0], values[:, 1:]
            error = y - logged
            summed = (values, jnp.zeros_like(values[0])) if unweighted else (others, log_density)
            gap = conservative_gap(logged, *summed, s.cql_temperature).mean(-1)
            excess = gap - s.target_gap if s.lagrange else gap
            loss = (error**2).mean(-1).sum() + dual * s.alpha * excess.sum()
            extras = {"q": logged.mean(), "td_error": jnp.abs(error).mean(), "gap": gap.mean()}
            return loss, (excess.mean(), extras)

        q, q_loss, (excess, extras) = descend(state.q, critic_optimiser(s, self.spec), critic_loss)

        log_dual = state.log_dual
        if log_dual is not None:  # ascend in α'
            log_dual, _, _ = descend(
                log_dual,
                self._dual_optimiser(),
                lambda log_d: (-self._dual(log_d) * s.alpha * excess, None),
            )

        metrics = {
            "critic_loss": q_loss,
            "policy_loss": pi_loss,
            **extras,
            "temperature": temperature,
            "entropy": -log_prob.mean(),
            "dual": dual,
            "max_preconditioner": q.model.max_preconditioner(),
        }
        q_target = follow(state.q_target, q.model, s.target_rate)
        step = None if state.step is None else state.step + 1
        return CQLState(q, q_target, pi, log_temperature, log_dual, step), metrics

    def _fresh_policy(self, key: PRNGKeyArray) -> TanhGaussianPolicy | CategoricalPolicy:
        s, spec = self.settings, self.spec
        form = (spec.observation_dim, spec.action_dim, s.policy, spec.noise)
        if spec.discrete:
            return CategoricalPolicy(*form, key=key)
        return TanhGaussianPolicy(*form, log_std=(s.log_std_multiplier, s.log_std_offset), key=key)

    def _actor_loss(
        self,
        pi: TanhGaussianPolicy | CategoricalPolicy,
        at_s: ValueAt,
        query: Transition,
        temperature: Float[Array, ""],
        step: Int[Array, ""] | None,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """SAC's loss of the policy, and log π(ã|s): its mean where actions are choices."""
        if isinstance(pi, CategoricalPolicy):
            log_probs = pi.log_probs(query.s, key=key)
            log_prob = (jnp.exp(log_probs) * log_probs).sum(-1)
            value = expected_soft_value(at_s(_every(*log_probs.shape)), log_probs, temperature)
            loss = -value.mean()
        else:
            a, log_prob = pi.sample(query.s, key=key, training=True)
            loss = soft_actor_loss(at_s(a), log_prob, temperature)
        if step is None:
            return loss, log_prob
        cloned = pi.log_prob(query.s, query.a, key=jax.random.fold_in(key, 1))
        cloning_loss = (temperature * log_prob - cloned).mean()
        return jnp.where(step < self.settings.cloning_steps, cloning_loss, loss), log_prob

    def _next_value(
        self, state: CQLState, batch: Batch, temperature: Float[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " batch"]:
        """min_i Q̄_i(s', ã') of one action drawn, or its mean over all where they are choices.

        With `max_backup`, that of the best of several drawn, or of all.
        """
        pi, query, given = state.pi.model, batch.query, self.settings
        if isinstance(pi, CategoricalPolicy):
            log_prob_next = pi.log_probs(query.s_next).T
            a_next = _every(*query.a.shape)
        else:
            keys = jax.random.split(key, given.samples) if given.max_backup else key[None]
            a_next, log_prob_next = jax.vmap(lambda k: pi.sample(query.s_next, key=k))(keys)
        q_next = self.bounded(state.q_target(query.s_next, a_next, batch.context_next))
        scale = temperature if given.backup_entropy else jnp.zeros(())
        if isinstance(pi, CategoricalPolicy) and not given.max_backup:
            return expected_soft_value(q_next, log_prob_next.T, scale)
        least = q_next.min(0)
        best = least.argmax(0)[None]
        v_next, log_prob = (jnp.take_along_axis(x, best, 0)[0] for x in (least, log_prob_next))
        return v_next - scale * log_prob

    def _proposals(
        self, pi: TanhGaussianPolicy | CategoricalPolicy, query: Transition, key: PRNGKeyArray
    ) -> tuple[Float[Array, "samples batch act"], Float[Array, "samples batch"]]:
        """Actions of U[−1, 1], π(·|s) and π(·|s') with the log-densities they were drawn with.

        Where actions are choices: all of them, each once.
        """
        if isinstance(pi, CategoricalPolicy):
            every = _every(*query.a.shape)
            return every, jnp.zeros(every.shape[:2])
        n, (batch, act) = self.settings.samples, query.a.shape
        uniform_key, *keys = jax.random.split(key, 1 + 2 * n)
        uniform = jax.random.uniform(uniform_key, (n, batch, act), minval=-1, maxval=1)
        log_uniform = jnp.full((n, batch), -act * jnp.log(2.0))
        # vmap over keys alone: the network is applied once per state, not once per sample
        here, log_here = jax.vmap(lambda k: pi.sample(query.s, key=k))(jnp.stack(keys[:n]))
        there, log_there = jax.vmap(lambda k: pi.sample(query.s_next, key=k))(jnp.stack(keys[n:]))
        return (
            jnp.concatenate([uniform, here, there]),
            jnp.concatenate([log_uniform, log_here, log_there]),
        )

    def _dual(self, log_dual: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.clip(jnp.exp(log_dual), 0.0, 1e6)

    def _dual_optimiser(self) -> optax.GradientTransformation:
        return adam(self.settings.critic_learning_rate)


def _every(batch: int, choices: int) -> Float[Array, "choices batch choices"]:
    """Each choice, one-hot, for every state."""
    return jnp.broadcast_to(jnp.eye(choices)[:, None], (choices, batch, choices))
