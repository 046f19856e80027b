"""BC: behaviour cloning with a deterministic policy.

    min E ‖π(s) − a‖²

Settings follow CORL's `any_percent_bc` (256×256 ReLU, Adam 3e-4, batch 256).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray

from icql.algos.base import Batch, DataSettings, Metrics, Needs, Spec
from icql.algos.optimise import Trained, adam, descend, start
from icql.errors import UserError
from icql.nn.policies import DeterministicPolicy


@dataclass(frozen=True)
class BCSettings:
    """Behaviour cloning's settings."""

    batch_size: int = 256
    """Transitions per update."""
    learning_rate: float = 3e-4
    """Adam's learning rate."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of the policy."""
    dropout: float = 0.0
    """Dropout in the policy during training."""
    discount: float = 0.99
    """Unused by cloning; part of every algorithm's settings."""
    data: DataSettings = field(default_factory=DataSettings)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError("must be at least 1.", where="batch_size")
        if not self.learning_rate > 0:
            raise UserError("must be positive.", where="learning_rate")
        if not 0 <= self.discount <= 1:
            raise UserError("must be in [0, 1].", where="discount")
        if not 0 <= self.dropout < 1:
            raise UserError("must be in [0, 1).", where="dropout")


class BCState(eqx.Module):
    """The policy and its optimiser."""

    pi: Trained[DeterministicPolicy]


@dataclass(frozen=True)
class BC:
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    settings: BCSettings
    spec: Spec

    @property
    def needs(self) -> Needs:
        """Plain transitions."""
        return Needs("transitions")

    def init(self, key: PRNGKeyArray) -> BCState:
        """Return a fresh policy."""
        s, spec = self.settings, self.spec
        pi = DeterministicPolicy(
            spec.observation_dim, spec.action_dim, s.hidden, dropout=s.dropout, key=key
        )
        return BCState(start(pi, adam(s.learning_rate)))

    def update(self, state: BCState, batch: Batch, key: PRNGKeyArray) -> tuple[BCState, Metrics]:
        """One step on ‖π(s) − a‖²."""
        query = batch.query

        def loss(pi: DeterministicPolicy) -> tuple[Array, None]:
            return ((pi(query.s, key=key) - query.a) ** 2).mean(), None

        pi, value, _ = descend(state.pi, adam(self.settings.learning_rate), loss)
        return BCState(pi), {"policy_loss": value}

    def policy(self, state: BCState) -> DeterministicPolicy:
        """Return the policy as trained so far."""
        return state.pi.model

    def diagnose(self, state: BCState, batch: Batch) -> dict[str, Any]:
        """Look at nothing more."""
        return {}
