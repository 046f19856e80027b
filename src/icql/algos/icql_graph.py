"""ICQL-graph: the policy clones what fared well among similar states, by a critic that is solved.

    Q_i = r_i + γ m_i V(s'_i),  V(s) = the τ-expectile of { Q_j : j ∈ Ω_s }    icql.graph
    w_i = how row i fared among those of other episodes around it              icql.graph.comparison
    π:  max E_{i ~ w} log π(a_i|s_i)

The critic needs no network and no gradient, so it is solved before the first update; rows are drawn
in proportion to w (`draw.*`), which leaves every update with rows that matter. The policy is IQL's:
Gaussian, its spread independent of the state.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray

from icql.algos.actor_critic import policy_optimiser, stochastic_policy
from icql.algos.base import Algorithm, Batch, Metrics
from icql.algos.optimise import Trained, descend, start
from icql.nn.mlp import in_precision
from icql.nn.policies import CategoricalPolicy, GaussianPolicy
from icql.settings.algorithms import GraphSettings


class ICQLGraphState(eqx.Module):
    """The policy and its optimiser."""

    pi: Trained[GaussianPolicy | CategoricalPolicy]


@dataclass(frozen=True)
class ICQLGraph(Algorithm[GraphSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> ICQLGraphState:
        """Return a fresh policy."""
        s, spec = self.settings, self.spec
        pi = stochastic_policy(s, spec, key)
        return in_precision(ICQLGraphState(start(pi, policy_optimiser(s, spec))), spec.precision)

    def update(
        self, state: ICQLGraphState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[ICQLGraphState, Metrics]:
        """One step on −log π(a|s) of rows drawn by weight."""
        query = batch.query

        def loss(pi: GaussianPolicy | CategoricalPolicy) -> tuple[Array, None]:
            return -pi.log_prob(query.s, query.a, key=key).mean(), None

        pi, value, _ = descend(state.pi, policy_optimiser(self.settings, self.spec), loss)
        return ICQLGraphState(pi), {"policy_loss": value}
