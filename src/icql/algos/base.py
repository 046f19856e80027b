"""The contract between an algorithm and everything else.

An algorithm is a frozen object made from its settings and the problem's :class:`Spec`. It can
start (`init`), make one update from one batch (`update`), hand out its policy (`policy`) and say
what kind of batch it needs (`needs`). The training loop knows nothing more, and no algorithm by
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icql.nn.policies import Policy
from icql.settings.critics import AlgorithmSettings
from icql.settings.data import ContextSettings

Metrics = dict[str, Array]
State = TypeVar("State")


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


@dataclass(frozen=True)
class Spec:
    """What an algorithm may know about its problem before it sees a batch."""

    observation_dim: int
    action_dim: int
    steps: int  # planned updates, for schedules
    rewards: tuple[float, float] = (-inf, inf)  # least and largest, as the algorithm sees them


def value_range(rewards: tuple[float, float], discount: float) -> tuple[float, float]:
    """What rewards in a range can add up to, discounted; an episode may also end with nothing."""
    least, largest = min(rewards[0], 0.0), max(rewards[1], 0.0)
    return least / (1 - discount), largest / (1 - discount)


class Algorithm(Protocol[State]):
    """(settings, spec) → init → update → policy."""

    def __init__(self, settings: Any, spec: Spec) -> None: ...

    @property
    def settings(self) -> AlgorithmSettings:
        """What it was made with."""
        ...

    @property
    def needs(self) -> Needs:
        """The kind of batch that `update` expects."""
        ...

    def init(self, key: PRNGKeyArray) -> State:
        """Fresh networks and optimiser states."""
        ...

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Gradient steps on every network; pure, so that it can be scanned and vmapped."""
        ...

    def policy(self, state: State) -> Policy:
        """The policy as trained so far."""
        ...

    def diagnose(self, state: State, batch: Batch) -> dict[str, Any]:
        """Costlier looks at the networks, taken once per evaluation (may be empty)."""
        ...
