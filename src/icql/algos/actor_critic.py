"""What the critic-based methods share: settings, their critics, and how to feed and watch them.

The updates themselves stand whole in each algorithm's own file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.base import Batch, DataSettings, Needs, Spec, value_range
from icql.algos.optimise import adam
from icql.errors import UserError
from icql.nn.critics import CriticKind, Critics, LocalCritic, LocalSettings, make_critics
from icql.retrieval.settings import ContextSettings


@dataclass(frozen=True)
class CriticSettings:
    """The settings of every critic-based method; `critic = local` makes its ICQL variant."""

    critic: CriticKind = "global"
    """global: one network for all states; local: inferred from retrieved context (ICQL)."""
    critics: int = 2
    """Number of Q critics; their minimum is used (1: single)."""
    discount: float = 0.99
    """γ, for the Bellman target and for TD inside the context."""
    target_rate: float = 0.005
    """Step of the target networks' moving average."""
    batch_size: int = 256
    """Transitions per gradient step."""
    critic_learning_rate: float = 3e-4
    """Adam's learning rate for the critics."""
    policy_learning_rate: float = 3e-4
    """Adam's learning rate for the policy."""
    bound_values: bool = False
    """Keep the next state's value, before a target is made of it, within what rewards like the
    data's can add up to: no policy has more than max r / (1 − γ). A brake for critics that run
    away; in none of the papers."""
    gradient_clip: float = 0.0
    """Largest gradient norm of the critics (0: no clipping; the ICQL paper: 10)."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of every network."""
    data: DataSettings = field(default_factory=DataSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    local: LocalSettings = field(default_factory=LocalSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1:
            raise UserError("must be in [0, 1).", where="discount")
        for name in ("critics", "batch_size"):
            at_least(self, name, 1)
        for name in ("critic_learning_rate", "policy_learning_rate", "target_rate"):
            if not getattr(self, name) > 0:
                raise UserError("must be positive.", where=name)
        at_least(self, "gradient_clip", 0)


@dataclass(frozen=True)
class DelayedSettings(CriticSettings):
    """TD3's settings. One update is `policy_delay` critic steps, then one step of the policy.

    Each critic step has a batch of its own; the policy learns from the last one. A run of 500,000
    updates at a delay of 2 therefore makes the papers' 1,000,000 critic steps.
    """

    policy_delay: int = 2
    """Critic steps per update; the policy and all targets make one step per update."""
    policy_noise: float = 0.2
    """Spread of the noise on the target policy's actions."""
    noise_limit: float = 0.5
    """Largest noise on the target policy's actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "policy_delay", 1)
        at_least(self, "policy_noise", 0)
        at_least(self, "noise_limit", 0)


def at_least(settings: Any, name: str, least: float) -> None:
    """Refuse a setting below `least`."""
    if not getattr(settings, name) >= least:
        wrong = "must not be negative." if least == 0 else f"must be at least {least}."
        raise UserError(wrong, where=name)


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
