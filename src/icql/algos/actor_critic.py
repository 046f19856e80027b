"""What the critic-based methods share: settings, their critics, and how to feed and watch them.

The updates themselves stand whole in each algorithm's own file.
"""

from __future__ import annotations

from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.base import Batch, Needs, Spec, value_range
from icql.algos.optimise import adam
from icql.nn.critics import Critics, LocalCritic, make_critics
from icql.settings.critics import CriticKind, CriticSettings, LocalSettings
from icql.settings.data import ContextSettings


class ChoiceOfCritic(Protocol):
    """Settings that say whether the critic is global or local, and which contexts it reads."""

    @property
    def critic(self) -> CriticKind:
        """Global or local."""
        ...

    @property
    def context(self) -> ContextSettings:
        """The contexts of a local critic."""
        ...

    @property
    def local(self) -> LocalSettings:
        """The local critic."""
        ...


def needs_of(settings: ChoiceOfCritic, batches: int = 1) -> Needs:
    """Contexts for a local critic, plain transitions for a global one."""
    if settings.critic == "local":
        return Needs("contexts", settings.context, batches=batches)
    return Needs("transitions", batches=batches)


def q_critics(
    settings: CriticSettings, spec: Spec, key: PRNGKeyArray, *, layer_norm: bool = False
) -> Critics:
    """Fresh Q critics of the kind and number that the settings name."""
    return _critics(settings, spec, spec.action_dim, settings.critics, layer_norm, key)


def v_critic(settings: CriticSettings, spec: Spec, key: PRNGKeyArray) -> Critics:
    """One fresh state value V of the kind that the settings name."""
    return _critics(settings, spec, 0, 1, False, key)


def _critics(
    s: CriticSettings, spec: Spec, action_dim: int, count: int, layer_norm: bool, key: PRNGKeyArray
) -> Critics:
    return make_critics(
        s.critic,
        observation_dim=spec.observation_dim,
        action_dim=action_dim,
        hidden=s.hidden,
        count=count,
        discount=s.discount,
        local=s.local,
        context=s.context.k,
        key=key,
        layer_norm=layer_norm,
    )


def bounded(
    values: Float[Array, "..."], settings: CriticSettings, spec: Spec
) -> Float[Array, "..."]:
    """Values within what the data's rewards can add up to, where the settings ask for it."""
    if not settings.bound_values:
        return values
    return jnp.clip(values, *value_range(spec.rewards, settings.discount))


def critic_optimiser(settings: CriticSettings) -> optax.GradientTransformation:
    """Adam for critics: gradient clipping, and a pace of its own for C."""
    return adam(
        settings.critic_learning_rate,
        clip=settings.gradient_clip or None,
        preconditioner_rate=settings.local.c_learning_rate,
    )


def q_by_layer(settings: ChoiceOfCritic, critics: Critics, batch: Batch) -> dict[str, Any]:
    """Mean Q̂ after every layer of the first critic (local linear critics only)."""
    if settings.critic == "global" or settings.local.module != "linear":
        return {}
    assert isinstance(critics.members, LocalCritic)
    first = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, critics.members)
    return {"q_by_layer": first.trace(batch.context, batch.query.s, batch.query.a).mean(-1)}
