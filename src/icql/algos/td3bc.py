"""TD3+BC and ReBRAC: TD3 with behaviour cloning, with a global or a local critic.

Both on TD3 (Fujimoto et al. 2018). With `critic = local` every Q below is Q̂(s, a | Ω_s).

    ã' = clip(π̄(s') + clip(ε, −c, c), −1, 1),  ε ~ N(0, σ²)              TD3, target smoothing
    Q:  min E Σ_i (y − Q_i(s, a))²                                        TD3, clipped double Q

TD3+BC (Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning"; local: the
ICQL paper's appendix "ICQL Variants for TD3+BC"):

    y = r + γ(1−done) min_i Q̄_i(s', ã')
    π:  one of three forms, by the setting `form`, with Q = Q_1 or min_i Q_i:
        original   max E [α Q_1(s, π(s)) / E|Q_1| − mean_j (π_j(s) − a_j)²]   Fujimoto & Gu's
        retuned    max E [min_i Q_i(s, π(s)) / E|min_i Q_i| − β ‖π(s) − a‖²]  ReBRAC's TD3+BC
        paper      max E [Q_1(s, π(s)) − α ‖π(s) − a‖²]                       ICQL, appendix,
                   whose target of a local critic reads Ω_s, not Ω_s'

ReBRAC (Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement
Learning"), with the data's own next action a':

    y = r + γ(1−done) (min_i Q̄_i(s', ã') − β₂ ‖ã' − a'‖²)                     critic penalty
    π:  max E [min_i Q_i(s, π(s)) / E|min_i Q_i| − β₁ ‖π(s) − a‖²]           actor penalty
        ours, by `q_unit = noise`, for logged actions that deviate by σ from others' in
        similar states, and ε ~ N(0, σ²):
        max E [min_i Q_i(s, π(s)) / std(min_i Q_i(s, a + ε) − min_i Q_i(s, a)) − β₁ ‖(π(s) − a)/σ‖²]

What that paper revisits is in the defaults: three hidden layers, LayerNorm in the critic, large
batches. Networks start as in the official code of each (`init`, `policy.init`).

One update is `policy_delay` critic steps, then one step of the policy and of both targets: TD3's
delay without a conditional.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.actor_critic import CriticLearner, critic_optimiser, policy_optimiser
from icql.algos.base import Batch, Metrics, Needs, Transition
from icql.algos.optimise import Trained, descend, follow, start
from icql.losses import (
    bellman_target,
    cloning_actor_loss,
    normalised_q,
    rebrac_value,
    smoothed_action,
    td3bc_actor_loss,
)
from icql.nn.critics import Critics
from icql.nn.mlp import in_precision
from icql.nn.policies import DeterministicPolicy
from icql.settings.algorithms import ReBRACSettings, TD3BCSettings
from icql.settings.shared import DelayedSettings

D = TypeVar("D", bound=DelayedSettings)


class TD3State(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    pi: Trained[DeterministicPolicy]
    pi_target: DeterministicPolicy


@dataclass(frozen=True)
class DelayedLearner(CriticLearner[D]):
    """A :class:`CriticLearner` whose policy learns at a delay."""

    @property
    def needs(self) -> Needs:
        """One batch per critic step, and one more for a policy that has rows of its own."""
        steps, own = self.settings.policy_delay, self.settings.policy_rows
        return replace(super().needs, batches=steps + own, uniform=steps if own else 0)

    def split(self, batch: Batch) -> tuple[Batch, Batch]:
        """The batches of the critic's steps, stacked, and the policy's: its own or the last."""
        batches = batch.split(self.needs.batches)
        steps = self.settings.policy_delay
        return (
            jax.tree.map(lambda x: x[:steps], batches),
            jax.tree.map(lambda x: x[-1], batches),
        )


@dataclass(frozen=True)
class TD3Cloning(DelayedLearner[D]):
    """(settings, spec) → init → update → policy, of both methods (see :mod:`icql.algos.base`)."""

    @abstractmethod
    def next_value(
        self, q_next: Float[Array, " batch"], a_next: Float[Array, "batch act"], query: Transition
    ) -> Float[Array, " batch"]:
        """What s' is worth, for `q_next` = min_i Q̄_i(s', ã')."""

    @abstractmethod
    def actor_loss(
        self,
        q: Float[Array, "critics batch"],
        difference: Float[Array, "batch act"],
        change: Float[Array, " batch"] | None = None,
    ) -> Float[Array, ""]:
        """What π minimises, for `q` = Q_i(s, π(s)) and `difference` = π(s) − a."""

    def changed(
        self, q_at: Callable[[Array], Array], a: Float[Array, "batch act"], key: PRNGKeyArray
    ) -> Float[Array, " batch"] | None:
        """What deviations like the log's change of min_i Q_i(s, a), where π's loss asks for it."""
        return None

    def next_context(self, batch: Batch) -> Transition | None:
        """What a local critic reads to value s': Ω_s'."""
        return batch.context_next

    def init(self, key: PRNGKeyArray) -> TD3State:
        """Fresh critics and policy, and their targets."""
        s, spec = self.settings, self.spec
        q_key, pi_key = jax.random.split(key)
        q = self.fresh_q(q_key, layer_norm=isinstance(s, ReBRACSettings) and s.layer_norm)
        sizes = spec.observation_dim, spec.action_dim
        pi = DeterministicPolicy(*sizes, s.policy, spec.noise, key=pi_key)
        state = TD3State(
            start(q, critic_optimiser(s, spec)), q, start(pi, policy_optimiser(s, spec)), pi
        )
        return in_precision(state, spec.precision)

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
            q_next = state.q_target(query.s_next, a_next, self.next_context(batch)).min(0)
            v_next = self.next_value(self.bounded(q_next), a_next, query)
            y = bellman_target(query.r, query.mask, v_next, s.discount)

            def critic_loss(q: Critics) -> tuple[Array, Metrics]:
                values = q(query.s, query.a, batch.context, key=q_key, prior=state.q_target)
                extras = {"q": values.mean(), "td_error": jnp.abs(y - values).mean()}
                return ((y - values) ** 2).mean(-1).sum(), extras

            q, loss, extras = descend(q, critic_optimiser(s, self.spec), critic_loss)
            return q, {"critic_loss": loss, **extras}

        batches, last = self.split(batch)
        q, metrics = jax.lax.scan(
            critic_step, state.q, (batches, jax.random.split(key, s.policy_delay))
        )

        at_s = q.model.at(last.query.s, last.context, prior=state.q_target)
        pi_key, change_key = (jax.random.fold_in(key, s.policy_delay + i) for i in range(2))
        change = self.changed(at_s, last.query.a, change_key)

        def policy_loss(pi: DeterministicPolicy) -> tuple[Array, Array]:
            a = pi(last.query.s, key=pi_key)
            difference = a - last.query.a
            return self.actor_loss(at_s(a), difference, change), (difference**2).mean()

        pi, pi_loss, cloning_error = descend(state.pi, policy_optimiser(s, self.spec), policy_loss)
        metrics = {
            **jax.tree.map(jnp.mean, metrics),
            "policy_loss": pi_loss,
            "cloning_error": cloning_error,
            "max_preconditioner": q.model.max_preconditioner(),
        }
        q_target = follow(state.q_target, q.model, s.target_rate)
        pi_target = follow(state.pi_target, pi.model, s.target_rate)
        return TD3State(q, q_target, pi, pi_target), metrics


@dataclass(frozen=True)
class TD3BC(TD3Cloning[TD3BCSettings]):
    """TD3+BC, in three forms."""

    def next_value(self, q_next: Array, a_next: Array, query: Transition) -> Array:
        """min_i Q̄_i(s', ã')."""
        return q_next

    def next_context(self, batch: Batch) -> Transition | None:
        """Ω_s', but Ω_s where the appendix's formulas are taken as they are printed."""
        return batch.context if self.settings.form == "paper" else batch.context_next

    def actor_loss(self, q: Array, difference: Array, change: Array | None = None) -> Array:
        """Cloning beside the first critic, or beside the least where retuned."""
        s = self.settings
        if s.form == "retuned":
            return td3bc_actor_loss(q.min(0), difference, s.bc_coef, s.form)
        return td3bc_actor_loss(q[0], difference, s.alpha, s.form)


@dataclass(frozen=True)
class ReBRAC(TD3Cloning[ReBRACSettings]):
    """ReBRAC: behaviour regularisation in the actor and in the critic."""

    def next_value(self, q_next: Array, a_next: Array, query: Transition) -> Array:
        """min_i Q̄_i(s', ã') − β₂ ‖ã' − a'‖²."""
        return rebrac_value(q_next, a_next - query.a_next, self.settings.critic_bc)

    def changed(self, q_at: Callable[[Array], Array], a: Array, key: PRNGKeyArray) -> Array | None:
        """min_i Q_i(s, a + ε) − min_i Q_i(s, a)."""
        if not self._in_deviations:
            return None
        moved = jnp.clip(a + self._deviations * jax.random.normal(key, a.shape), -1, 1)
        return q_at(moved).min(0) - q_at(a).min(0)

    def actor_loss(self, q: Array, difference: Array, change: Array | None = None) -> Array:
        """Cloning beside the least of the critics."""
        s, least = self.settings, q.min(0)
        least = normalised_q(least, s.q_unit, change) if s.normalise_q else least
        if self._in_deviations:
            difference = difference / self._deviations
        return cloning_actor_loss(least, difference, s.actor_bc)

    @property
    def _in_deviations(self) -> bool:
        return self.settings.normalise_q and self.settings.q_unit == "noise"

    @property
    def _deviations(self) -> Array:
        """σ of each number of an action; 1 where nobody has looked at the log."""
        return jnp.asarray(self.spec.deviations or (1.0,))
