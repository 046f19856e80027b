"""FQL: flow Q-learning with a flow behaviour policy and a one-step policy distilled from it.

Park et al. 2025, "Flow Q-Learning"; fql/agents/fql.py. With `critic = local` every Q below is
Q̂(s, a | Ω_s). z ~ N(0, I), t ~ U(0, 1), x_t = (1 − t) z + t a:
    flow v:      min E ‖v(s, x_t, t) − (a − z)‖²                                    BC flow loss
    one-step μ:  min E [−Q(s, μ(s, z)) + α ‖μ(s, z) − a_v(s, z)‖²]                  Q + distillation
                 with a_v(s, z) where ten Euler steps along v take z
    Q:           min E Σ_i (y − Q_i(s, a))²,  y = r + γ(1−done) Q̄(s', μ(s', z'))    critic loss
Squares are means over action dimensions, as in the official code. The policy that acts is μ; its
noise z is seeded by the state, where the official code draws it at every call: what is equal in
that, and what is not, says :func:`icql.nn.flow.noise_of_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.actor_critic import CriticLearner, policy_optimiser
from icql.algos.base import Batch, Metrics
from icql.algos.optimise import Trained, adam, descend, follow, start
from icql.losses import (
    bellman_target,
    distillation_loss,
    flow_matching,
    flow_point,
    normalised_q,
)
from icql.nn.critics import Critics
from icql.nn.flow import Flow, OneStepPolicy
from icql.nn.mlp import in_precision
from icql.settings.algorithms import Aggregate, FlowSettings, FQLSettings

F = TypeVar("F", bound=FlowSettings)


class FlowState(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    flow: Trained[Flow]
    pi: Trained[OneStepPolicy] | None  # None where the flow itself acts (QC)


@dataclass(frozen=True)
class FlowLearner(CriticLearner[F]):
    """What FQL and QC share besides their updates: the networks and their optimisers."""

    def start(self, key: PRNGKeyArray, action_dim: int, *, one_step: bool) -> FlowState:
        """Fresh critics, their target, flow and, where asked for, one-step policy."""
        s, spec, optimiser = self.settings, self.spec, policy_optimiser(self.settings, self.spec)
        q_key, flow_key, pi_key = jax.random.split(key, 3)
        form = (spec.observation_dim, action_dim, s.policy, spec.noise)
        q = self.fresh_q(q_key, action_dim=action_dim, layer_norm=True, activation="gelu")
        flow = Flow(*form, steps=s.flow_steps, key=flow_key)
        pi = start(OneStepPolicy(*form, key=pi_key), optimiser) if one_step else None
        state = FlowState(start(q, self.critic_optimiser()), q, start(flow, optimiser), pi)
        return in_precision(state, spec.precision)

    def flow_step(
        self,
        flow: Trained[Flow],
        s: Float[Array, "batch obs"],
        a: Float[Array, "batch act"],
        keys: tuple[PRNGKeyArray, PRNGKeyArray],
        mean: Callable[[Array], Array] = jnp.mean,
    ) -> tuple[Trained[Flow], Array]:
        """One step of v on the BC flow loss; `mean` is over its entries."""
        noise = jax.random.normal(keys[0], a.shape)
        t = jax.random.uniform(keys[1], (len(a), 1))

        def loss(flow: Flow) -> tuple[Array, None]:
            velocity = flow.velocity(
                s, flow_point(noise, a, t), t, key=jax.random.fold_in(keys[1], 1)
            )
            return mean(flow_matching(velocity, noise, a)), None

        flow, value, _ = descend(flow, policy_optimiser(self.settings, self.spec), loss)
        return flow, value

    def distil(
        self, state: FlowState, s: Float[Array, "batch obs"], context: Any, key: PRNGKeyArray
    ) -> tuple[Trained[OneStepPolicy], Metrics]:
        """One step of μ on −Q and its distance from where the flow takes the same noise."""
        assert state.pi is not None
        given, q_at_s = self.settings, state.q.model.at(s, context, prior=state.q_target)
        z = jax.random.normal(key, (len(s), state.pi.model.action_dim))
        a_flow = state.flow.model.act(s, z)

        def loss(pi: OneStepPolicy) -> tuple[Array, Array]:
            a = pi.raw(s, z, key=jax.random.fold_in(key, 1))
            value = q_at_s(jnp.clip(a, -1, 1)).mean(0)
            scaled = isinstance(given, FQLSettings) and given.normalise_q
            value = normalised_q(value) if scaled else value
            return distillation_loss(value, a, a_flow, given.alpha)

        pi, value, distance = descend(state.pi, policy_optimiser(given, self.spec), loss)
        return pi, {"policy_loss": value, "distillation": distance}

    def critic_optimiser(self) -> optax.GradientTransformation:
        """Adam, with a pace of its own for C."""
        s = self.settings
        pace = s.local.c_learning_rate if isinstance(s, FQLSettings) else 1.0
        return adam(s.critic_learning_rate, preconditioner_rate=pace)


@dataclass(frozen=True)
class FQL(FlowLearner[FQLSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> FlowState:
        """Fresh critics, their target, flow and one-step policy."""
        return self.start(key, self.spec.action_dim, one_step=True)

    def update(
        self, state: FlowState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[FlowState, Metrics]:
        """One step on Q, the flow and the one-step policy, all from the networks as they were."""
        s, query = self.settings, batch.query
        next_key, q_key, noise_key, t_key, z_key = jax.random.split(key, 5)
        assert state.pi is not None

        a_next = state.pi.model.sample(query.s_next, key=next_key)
        q_next = aggregate(state.q_target(query.s_next, a_next, batch.context_next), s.q_aggregate)
        y = bellman_target(query.r, query.mask, q_next, s.discount)

        def critic_loss(q: Critics) -> tuple[Array, Array]:
            values = q(query.s, query.a, batch.context, key=q_key, prior=state.q_target)
            return ((values - y) ** 2).mean(), values.mean()

        q, q_loss, q_mean = descend(state.q, self.critic_optimiser(), critic_loss)

        flow, bc_loss = self.flow_step(state.flow, query.s, query.a, (noise_key, t_key))
        pi, distilled = self.distil(state, query.s, batch.context, z_key)
        metrics = {
            "critic_loss": q_loss,
            "flow_loss": bc_loss,
            **distilled,
            "q": q_mean,
            "max_preconditioner": q.model.max_preconditioner(),
        }
        # the official target follows the critics as they were before this step
        q_target = follow(state.q_target, state.q.model, s.target_rate)
        return FlowState(q, q_target, flow, pi), metrics


def aggregate(q: Float[Array, "critics ..."], how: Aggregate) -> Float[Array, "..."]:
    """The critics taken together: their mean or their minimum."""
    return q.mean(0) if how == "mean" else q.min(0)
