"""BC: behaviour cloning with a deterministic policy.

    min E ‖π(s) − a‖²

Settings follow CORL's `any_percent_bc` (256×256 ReLU, Adam 3e-4, batch 256).
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray

from icql.algos.actor_critic import policy_optimiser
from icql.algos.base import Algorithm, Batch, Metrics
from icql.algos.optimise import Trained, descend, start
from icql.nn.mlp import in_precision
from icql.nn.policies import DeterministicPolicy
from icql.settings.algorithms import BCSettings


class BCState(eqx.Module):
    """The policy and its optimiser."""

    pi: Trained[DeterministicPolicy]


@dataclass(frozen=True)
class BC(Algorithm[BCSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> BCState:
        """Return a fresh policy."""
        s, spec = self.settings, self.spec
        sizes = spec.observation_dim, spec.action_dim
        pi = DeterministicPolicy(*sizes, s.policy, spec.noise, key=key)
        return in_precision(BCState(start(pi, policy_optimiser(s, spec))), spec.precision)

    def update(self, state: BCState, batch: Batch, key: PRNGKeyArray) -> tuple[BCState, Metrics]:
        """One step on ‖π(s) − a‖²."""
        query = batch.query

        def loss(pi: DeterministicPolicy) -> tuple[Array, None]:
            return ((pi(query.s, key=key) - query.a) ** 2).mean(), None

        pi, value, _ = descend(state.pi, policy_optimiser(self.settings, self.spec), loss)
        return BCState(pi), {"policy_loss": value}
