"""BC: behaviour cloning with a deterministic policy; of discrete actions, by their likelihood.

    min E ‖π(s) − a‖²,  or  max E log π(a|s)

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
from icql.nn.policies import CategoricalPolicy, DeterministicPolicy
from icql.settings.algorithms import BCSettings


class BCState(eqx.Module):
    """The policy and its optimiser."""

    pi: Trained[DeterministicPolicy | CategoricalPolicy]


@dataclass(frozen=True)
class BC(Algorithm[BCSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> BCState:
        """Return a fresh policy."""
        s, spec = self.settings, self.spec
        sizes = spec.observation_dim, spec.action_dim
        kind = CategoricalPolicy if spec.discrete else DeterministicPolicy
        pi = kind(*sizes, s.policy, spec.noise, key=key)
        return in_precision(BCState(start(pi, policy_optimiser(s, spec))), spec.precision)

    def update(self, state: BCState, batch: Batch, key: PRNGKeyArray) -> tuple[BCState, Metrics]:
        """One step on ‖π(s) − a‖², or on −log π(a|s)."""
        query = batch.query

        def loss(pi: DeterministicPolicy | CategoricalPolicy) -> tuple[Array, None]:
            if isinstance(pi, CategoricalPolicy):
                return -pi.log_prob(query.s, query.a, key=key).mean(), None
            return ((pi(query.s, key=key) - query.a) ** 2).mean(), None

        pi, value, _ = descend(state.pi, policy_optimiser(self.settings, self.spec), loss)
        return BCState(pi), {"policy_loss": value}
