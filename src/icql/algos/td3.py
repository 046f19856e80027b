"""What the methods on TD3 (Fujimoto et al. 2018) share besides their updates, which stand whole in
their own files: the state, how it starts, what it is fed, and how it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import equinox as eqx
import jax
import optax
from jaxtyping import PRNGKeyArray

from icql.algos.actor_critic import critic_optimiser, needs_of, q_by_layer, q_critics
from icql.algos.base import Batch, Needs, Spec
from icql.algos.optimise import Trained, adam, start
from icql.nn.critics import Critics
from icql.nn.policies import DeterministicPolicy
from icql.settings.critics import DelayedSettings


class TD3State(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    pi: Trained[DeterministicPolicy]
    pi_target: DeterministicPolicy


class HasActorCritic(Protocol):
    """A state with critics and a deterministic policy."""

    q: Trained[Critics]
    pi: Trained[DeterministicPolicy]


S = TypeVar("S", bound=DelayedSettings)


@dataclass(frozen=True)
class TD3Based(Generic[S]):
    """An algorithm without its `init` and `update` (see :mod:`icql.algos.base`)."""

    settings: S
    spec: Spec

    @property
    def needs(self) -> Needs:
        """One batch per critic step; contexts for a local critic."""
        return needs_of(self.settings, self.settings.policy_delay)

    def policy(self, state: HasActorCritic) -> DeterministicPolicy:
        """Return the policy as trained so far."""
        return state.pi.model

    def critic(self, state: HasActorCritic) -> Critics:
        """Return the Q critics as trained so far."""
        return state.q.model

    def diagnose(self, state: HasActorCritic, batch: Batch) -> dict[str, Any]:
        """Mean Q̂ after every layer of the first critic (local linear critics only)."""
        return q_by_layer(self.settings, state.q.model, batch)


def start_td3(
    settings: DelayedSettings, spec: Spec, key: PRNGKeyArray, *, layer_norm: bool = False
) -> TD3State:
    """Fresh critics and policy, and their targets."""
    q_key, pi_key = jax.random.split(key)
    q = q_critics(settings, spec, q_key, layer_norm=layer_norm)
    pi = DeterministicPolicy(spec.observation_dim, spec.action_dim, settings.hidden, key=pi_key)
    return TD3State(
        start(q, critic_optimiser(settings)), q, start(pi, policy_optimiser(settings)), pi
    )


def policy_optimiser(settings: DelayedSettings) -> optax.GradientTransformation:
    """Adam for the policy."""
    return adam(settings.policy_learning_rate)
