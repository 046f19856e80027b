"""FQL: flow Q-learning with a flow behaviour policy and a one-step policy distilled from it.

Park et al. 2025, "Flow Q-Learning"; fql/agents/fql.py. With `critic = local` every Q below is
Q̂(s, a | Ω_s). z ~ N(0, I), t ~ U(0, 1), x_t = (1 − t) z + t a:
    flow v:      min E ‖v(s, x_t, t) − (a − z)‖²                                    BC flow loss
    one-step μ:  min E [−Q(s, μ(s, z)) + α ‖μ(s, z) − a_v(s, z)‖²]                  Q + distillation
                 with a_v(s, z) where ten Euler steps along v take z
    Q:           min E Σ_i (y − Q_i(s, a))²,  y = r + γ(1−done) Q̄(s', μ(s', z'))    critic loss
Squares are means over action dimensions, as in the official code. The policy that acts is μ; its
noise z is seeded by the state (see :func:`icql.nn.flow.noise_of_state`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.actor_critic import needs_of, q_by_layer
from icql.algos.base import Batch, Metrics, Needs, Spec
from icql.algos.optimise import Trained, adam, descend, follow, start
from icql.losses import (
    bellman_target,
    distillation_loss,
    flow_matching,
    flow_point,
    normalised_q,
)
from icql.nn.critics import Critics, make_critics
from icql.nn.flow import Flow, noise_of_state
from icql.nn.mlp import MLP
from icql.settings.algorithms import Aggregate, FQLSettings


class OneStepPolicy(eqx.Module):
    """μ(s, z): one pass from noise to action."""

    net: MLP
    action_dim: int = eqx.field(static=True)

    def __init__(
        self, observation_dim: int, action_dim: int, hidden: tuple[int, ...], *, key: PRNGKeyArray
    ) -> None:
        inputs = observation_dim + action_dim
        self.net = MLP(inputs, hidden, action_dim, activation="gelu", final_gain=0.1, key=key)
        self.action_dim = action_dim

    def raw(
        self, s: Float[Array, "... obs"], noise: Float[Array, "... act"]
    ) -> Float[Array, "... act"]:
        """μ(s, z) before it is clipped: what distillation compares."""
        return self.net(jnp.concatenate([s, noise], -1))

    def sample(self, s: Float[Array, "... obs"], *, key: PRNGKeyArray) -> Float[Array, "... act"]:
        """μ(s, z) for fresh noise, clipped to the action box."""
        noise = jax.random.normal(key, (*s.shape[:-1], self.action_dim))
        return jnp.clip(self.raw(s, noise), -1, 1)

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """μ(s, z(s)), the noise seeded by the state."""
        rows = s.reshape(-1, s.shape[-1])
        action = jnp.clip(self.raw(rows, noise_of_state(rows, (self.action_dim,))), -1, 1)
        return action.reshape(*s.shape[:-1], self.action_dim)


class FQLState(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    flow: Trained[Flow]
    pi: Trained[OneStepPolicy]


@dataclass(frozen=True)
class FQL:
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    settings: FQLSettings
    spec: Spec

    @property
    def needs(self) -> Needs:
        """Contexts for a local critic, plain transitions for a global one."""
        return needs_of(self.settings)

    def init(self, key: PRNGKeyArray) -> FQLState:
        """Fresh critics, their target, flow and one-step policy."""
        s, spec = self.settings, self.spec
        q_key, flow_key, pi_key = jax.random.split(key, 3)
        q = make_critics(
            s.critic,
            observation_dim=spec.observation_dim,
            action_dim=spec.action_dim,
            hidden=s.hidden,
            count=s.critics,
            discount=s.discount,
            local=s.local,
            context=s.context.k,
            layer_norm=True,
            activation="gelu",
            key=q_key,
        )
        flow = Flow(
            spec.observation_dim, spec.action_dim, s.hidden, steps=s.flow_steps, key=flow_key
        )
        pi = OneStepPolicy(spec.observation_dim, spec.action_dim, s.hidden, key=pi_key)
        optimiser = adam(s.learning_rate)
        return FQLState(
            q=start(q, self._critic_optimiser()),
            q_target=q,
            flow=start(flow, optimiser),
            pi=start(pi, optimiser),
        )

    def update(self, state: FQLState, batch: Batch, key: PRNGKeyArray) -> tuple[FQLState, Metrics]:
        """One step on Q, the flow and the one-step policy, all from the networks as they were."""
        s, query, optimiser = self.settings, batch.query, adam(self.settings.learning_rate)
        next_key, q_key, noise_key, t_key, z_key = jax.random.split(key, 5)

        a_next = state.pi.model.sample(query.s_next, key=next_key)
        q_next = aggregate(state.q_target(query.s_next, a_next, batch.context_next), s.q_aggregate)
        y = bellman_target(query.r, query.mask, q_next, s.discount)

        def critic_loss(q: Critics) -> tuple[Array, Array]:
            values = q(query.s, query.a, batch.context, key=q_key)
            return ((values - y) ** 2).mean(), values.mean()

        q, q_loss, q_mean = descend(state.q, self._critic_optimiser(), critic_loss)

        noise = jax.random.normal(noise_key, query.a.shape)
        t = jax.random.uniform(t_key, (len(noise), 1))

        def flow_loss(flow: Flow) -> tuple[Array, None]:
            velocity = flow.velocity(query.s, flow_point(noise, query.a, t), t)
            return flow_matching(velocity, noise, query.a).mean(), None

        flow, bc_loss, _ = descend(state.flow, optimiser, flow_loss)

        z = jax.random.normal(z_key, query.a.shape)
        a_flow = state.flow.model.act(query.s, z)
        q_at_s = state.q.model.at(query.s, batch.context)

        def policy_loss(pi: OneStepPolicy) -> tuple[Array, Array]:
            a = pi.raw(query.s, z)
            value = q_at_s(jnp.clip(a, -1, 1)).mean(0)
            value = normalised_q(value) if s.normalise_q else value
            return distillation_loss(value, a, a_flow, s.alpha)

        pi, pi_loss, distance = descend(state.pi, optimiser, policy_loss)
        metrics = {
            "critic_loss": q_loss,
            "flow_loss": bc_loss,
            "policy_loss": pi_loss,
            "distillation": distance,
            "q": q_mean,
            "max_preconditioner": q.model.max_preconditioner(),
        }
        return FQLState(q, follow(state.q_target, q.model, s.target_rate), flow, pi), metrics

    def policy(self, state: FQLState) -> OneStepPolicy:
        """Return the one-step policy as trained so far."""
        return state.pi.model

    def critic(self, state: FQLState) -> Critics:
        """Return the Q critics as trained so far."""
        return state.q.model

    def diagnose(self, state: FQLState, batch: Batch) -> dict[str, Any]:
        """Mean Q̂ after every layer of the first critic (local linear critics only)."""
        return q_by_layer(self.settings, state.q.model, batch)

    def _critic_optimiser(self) -> Any:
        s = self.settings
        return adam(s.learning_rate, preconditioner_rate=s.local.c_learning_rate)


def aggregate(q: Float[Array, "critics ..."], how: Aggregate) -> Float[Array, "..."]:
    """The critics taken together: their mean or their minimum."""
    return q.mean(0) if how == "mean" else q.min(0)
