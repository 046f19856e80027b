"""The contract between an algorithm and everything else.

An algorithm is a frozen dataclass of its settings and the problem's :class:`Spec`. It can start
(`init`), make one update from one batch (`update`), hand out its policy (`policy`), look closer
(`diagnose`), and say what kind of batch it needs (`needs`) and what helps where it diverges
(`remedies`); one with critics also keeps :class:`HasCritics`. The training loop knows nothing more,
and no algorithm by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icql.nn.critics import Critics
from icql.nn.mlp import in_precision
from icql.nn.policies import Policy
from icql.settings.contexts import ContextSettings
from icql.settings.run import Precision
from icql.settings.shared import ActorSettings, AlgorithmSettings

Metrics = dict[str, Array]
S = TypeVar("S", bound=AlgorithmSettings)


class Transition(eqx.Module):
    """(s, a, r, s', a') with mask = 1 − done, on the device; any leading axes."""

    s: Float[Array, "... obs"]
    a: Float[Array, "... act"]
    r: Float[Array, "..."]
    s_next: Float[Array, "... obs"]
    a_next: Float[Array, "... act"]
    mask: Float[Array, "..."]


class Window(eqx.Module):
    """Consecutive steps of one episode; what lies beyond the episode's end has `valid` False."""

    steps: Transition  # leading axes B, length
    valid: Bool[Array, "batch length"]
    timestep: Int[Array, "batch length"]  # step in the episode, from 0
    to_go: Float[Array, "batch length"]  # undiscounted return from this step on
    episode: Int[Array, " batch"]


class Batch(eqx.Module):
    """A batch of B transitions with, where the algorithm needs them, contexts Ω or windows."""

    query: Transition  # leading axis B
    context: Transition | None = None  # Ω_s: leading axes B, k
    context_next: Transition | None = None  # Ω_s': leading axes B, k
    window: Window | None = None  # the steps that begin with each query

    def split(self, parts: int) -> Batch:
        """The same rows as `parts` batches, stacked along a new leading axis (for `scan`)."""
        return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), self)


def join(first: Any, second: Any) -> Any:
    """Two trees of rows as one, so that a network sees them in one pass (None stays None)."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)


@dataclass(frozen=True)
class Needs:
    """What an algorithm wants to be fed."""

    kind: Literal["transitions", "contexts", "sequences"] = "transitions"
    context: ContextSettings | None = None
    length: int | None = None
    """Steps of a window (`sequences`; an action chunk is such a window too)."""
    batches: int = 1
    """Batches of `batch_size` rows that one update consumes, drawn together: critic gradient steps
    per update, where the policy learns at a delay."""
    uniform: int = 0
    """Of these, the first so many are drawn uniformly whatever `draw` says: those of critics."""


@dataclass(frozen=True)
class Spec:
    """What an algorithm may know about its problem before it sees a batch."""

    observation_dim: int
    action_dim: int
    steps: int  # planned updates, for schedules
    rewards: tuple[float, float] = (-inf, inf)  # least and largest, as the algorithm sees them
    precision: Precision = "float32"  # of the matrix products of updates
    noise: tuple[float, ...] = ()  # on each observation in training (`policy.noise`)
    discrete: bool = False  # actions are choices, one-hot: `action_dim` of them
    deviations: tuple[float, ...] = ()  # of logged actions from others' in similar states


@dataclass(frozen=True)
class Algorithm(ABC, Generic[S]):
    """(settings, spec) → init → update → policy. Its state has the policy, trained, as `pi`."""

    settings: S
    spec: Spec

    @property
    def needs(self) -> Needs:
        """The kind of batch that `update` expects: plain transitions, where not said otherwise."""
        return Needs()

    @property
    def remedies(self) -> tuple[str, ...]:
        """What its user can try where training diverges, by option."""
        own = "policy." if isinstance(self.settings, ActorSettings) else ""
        return (f"lower --{own}learning-rate",)

    @abstractmethod
    def init(self, key: PRNGKeyArray) -> Any:
        """Fresh networks and optimiser states, the products of networks in the spec's precision."""

    @abstractmethod
    def update(self, state: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """Gradient steps on every network; pure, so that it can be scanned and vmapped."""

    def policy(self, state: Any) -> Policy:
        """The policy as trained so far; its products in float32."""
        policy: Policy = in_precision(state.pi.model, "float32")
        return policy

    def diagnose(self, state: Any, batch: Batch) -> dict[str, Any]:
        """Costlier looks at the networks, taken once per evaluation; in float32."""
        return {}


@runtime_checkable
class HasCritics(Protocol):
    """What an algorithm with critics has besides."""

    def critic(self, state: Any) -> Critics:
        """The Q critics as trained so far; their products in float32."""

    def value_range(self) -> tuple[float, float]:
        """The least and largest value that a policy can have, by the rewards of the data."""
        ...
