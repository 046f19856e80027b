"""What the critic-based methods share: their critics, how to feed them and how to watch them.

The updates themselves stand whole in each algorithm's own file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.base import Algorithm, Batch, Needs, Spec
from icql.algos.optimise import adam
from icql.nn.critics import Critics, global_critics, local_critics
from icql.nn.mlp import Activation, in_precision
from icql.nn.policies import CategoricalPolicy, GaussianPolicy
from icql.settings.algorithms import FlowSettings, FQLSettings
from icql.settings.shared import ActorSettings, CriticSettings

S = TypeVar("S", bound=CriticSettings | FlowSettings)


@dataclass(frozen=True)
class CriticLearner(Algorithm[S]):
    """A :class:`Algorithm` that :class:`HasCritics`; its state has them, with an optimiser, as `q`.

    Values may be global or, with `critic = local`, conditioned on the retrieved context.
    """

    @property
    def needs(self) -> Needs:
        """Contexts for a local critic, plain transitions for a global one."""
        local = self._local
        return Needs() if local is None else Needs("contexts", local.context)

    @property
    def remedies(self) -> tuple[str, ...]:
        """The brakes of critics that are not on yet."""
        s, local = self.settings, self._local
        module = None if local is None else local.local.module
        known = {
            "hold values within bounds (--bound-values)": self._bounds is False,
            "take two critics (--critics 2)": s.critics < 2,
            "lower --local.c-scale": module == "linear",
            "give features unit length (--local.normalise unit)": (
                local is not None and local.local.normalise == "none"
            ),
            "leave own episodes out of contexts (--context.exclude episode)": (
                local is not None and local.context.exclude != "episode"
            ),
            "scale rewards down (--data.reward-scale 0.01)": True,
        }
        return tuple(remedy for remedy, helps in known.items() if helps)

    def critic(self, state: Any) -> Critics:
        """Return the Q critics as trained so far."""
        return in_precision(state.q.model, "float32")

    def value_range(self) -> tuple[Any, Any]:
        """What rewards can add up to, discounted; an episode may also end with nothing."""
        (least, largest), rest = self.spec.rewards, 1 - self.settings.discount
        return min(least, 0.0) / rest, max(largest, 0.0) / rest

    def bounded(self, values: Float[Array, "..."]) -> Float[Array, "..."]:
        """Values within that range, where the settings ask for it."""
        return jnp.clip(values, *self.value_range()) if self._bounds else values

    def diagnose(self, state: Any, batch: Batch) -> dict[str, Any]:
        """Mean Q̂ after every layer of the first critic (linear), or each critic's λ (ridge)."""
        q, query = self.critic(state), batch.query
        if q.ridge is not None:
            return {"ridge": q.ridge}
        if q.td is None:
            return {}
        return {"q_by_layer": q.trace(query.s, query.a, batch.context).mean(-1)}

    def fresh_q(
        self,
        key: PRNGKeyArray,
        *,
        action_dim: int | None = None,
        layer_norm: bool = False,
        activation: Activation = "relu",
    ) -> Critics:
        """Q critics of the kind and number that the settings name.

        `layer_norm` is of a global network; φ of a local one always has it.
        """
        actions = self.spec.action_dim if action_dim is None else action_dim
        return self._fresh(key, actions, self.settings.critics, layer_norm, activation)

    def fresh_v(self, key: PRNGKeyArray) -> Critics:
        """One state value V of the kind that the settings name."""
        return self._fresh(key, 0, 1, False, "relu")

    def _fresh(
        self, key: PRNGKeyArray, actions: int, count: int, layer_norm: bool, activation: Activation
    ) -> Critics:
        states, local = self.spec.observation_dim, self._local
        if local is None:
            return global_critics(
                states + actions,
                self.settings.hidden,
                count,
                activation=activation,
                layer_norm=layer_norm,
                init=self.settings.init,
                key=key,
            )
        return local_critics(
            states,
            actions,
            local.hidden,
            count,
            local=local.local,
            context=local.context.k,
            discount=local.discount,
            activation=activation,
            key=key,
        )

    @property
    def _local(self) -> CriticSettings | FQLSettings | None:
        """The settings, where they ask for a local critic."""
        s = self.settings
        if isinstance(s, CriticSettings | FQLSettings) and s.critic == "local":
            return s
        return None

    @property
    def _bounds(self) -> bool | None:
        """Whether values are held within bounds; None where there is no such setting."""
        return self.settings.bound_values if isinstance(self.settings, CriticSettings) else None


def stochastic_policy(
    s: ActorSettings, spec: Spec, key: PRNGKeyArray
) -> GaussianPolicy | CategoricalPolicy:
    """A fresh policy with a density: Gaussian, or over choices where actions are discrete."""
    kind = CategoricalPolicy if spec.discrete else GaussianPolicy
    return kind(spec.observation_dim, spec.action_dim, s.policy, spec.noise, key=key)


def critic_optimiser(s: CriticSettings, spec: Spec) -> optax.GradientTransformation:
    """Adam for critics: gradient clipping, cosine, and a pace of its own for C."""
    return adam(
        s.critic_learning_rate,
        cosine_steps=spec.steps * s.critic_steps if s.critic_cosine else None,
        clip=s.gradient_clip or None,
        preconditioner_rate=s.local.c_learning_rate,
    )


def policy_optimiser(s: ActorSettings, spec: Spec) -> optax.GradientTransformation:
    """Adam for the policy, with the decays that the settings ask for."""
    p = s.policy
    return adam(
        p.learning_rate,
        cosine_steps=spec.steps if p.cosine else None,
        weight_decay=p.weight_decay if p.weight_decay else None,
    )
