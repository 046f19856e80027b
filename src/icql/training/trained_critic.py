"""Trained critics: values of any state and action, and the logged transitions behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data import Transitions
from icql.errors import UserError
from icql.evidence.behind import Doubles, Grounds, gather, linear_parts, outcomes, ridge_parts
from icql.files import default_cache_dir
from icql.nn.critics import Critics, pair
from icql.nn.in_context import LinearTransformer
from icql.nn.ridge import Ridge
from icql.retrieval import Retriever, Space, find_space
from icql.settings.contexts import ContextSettings
from icql.settings.grid import Member, say_members, say_settings
from icql.training.device import Normaliser, pack, unpack


class Which(TypedDict, total=False):
    """One of the members that were trained side by side; the first that fits, where not given."""

    seed: int | None
    """The training seed."""
    settings: Mapping[str, float | int] | None
    """Its place in the run's grid, if it has one: values by dotted name."""


@dataclass(frozen=True)
class TrainedCritic:
    """Final critics of every training seed, and the data their contexts come from."""

    critics: Critics  # stacked along a leading axis of members
    members: tuple[Member, ...]  # training seeds and, of a grid, the settings
    data: Transitions
    normaliser: Normaliser
    context: ContextSettings | None
    space: Space | None = None  # where distances were measured in training; None: found again
    discount: float = 0.99  # γ of the run

    def __repr__(self) -> str:
        return f"<TrainedCritic on {self.data.info.name}: {say_members(self.members)}>"

    def q(
        self, states: ArrayLike, actions: ArrayLike, **which: Unpack[Which]
    ) -> NDArray[np.float32]:
        """Q̂(s, a | Ω_s) of each pair, the least of the critics, on the scaled rewards: (B,).

        Actions are those of the data, in [-1, 1] (`policy.act(…, normalised=True)`).
        """
        critics, s, a, context = self._inputs(states, actions, which)
        return np.asarray(_least(critics, s, a, context))

    def every_q(self, states: ArrayLike, actions: ArrayLike) -> NDArray[np.float32]:
        """What `q` says for every member, in one program and of the same contexts: (members, B)."""
        _, s, a, context = self._inputs(states, actions, {})
        return np.asarray(_every_q(self.critics, s, a, context))

    def trace(
        self,
        states: ArrayLike,
        actions: ArrayLike,
        *,
        contexts: NDArray[np.integer] | None = None,
        **which: Unpack[Which],
    ) -> NDArray[np.float32]:
        """Q̂_ℓ(s, a | Ω_s) of the first critic after every layer: (L, B).

        `contexts` are the rows (B, k) of the contexts, where they are known (`evidence`).
        """
        if self.context is None:
            raise UserError("a global critic has no layers of TD.", where="trace")
        critics, s, a, context = self._inputs(states, actions, which, contexts)
        return np.asarray(_trace(critics, s, a, context))

    def evidence(self, states: ArrayLike, actions: ArrayLike, **which: Unpack[Which]) -> Grounds:
        """The logged transitions behind each value, which their influences and the prior add up to.

        Of the critic that is the least at each pair, as in `q`; on the scaled rewards, as are the
        outcomes.
        """
        rows, away = self.neighbours(states)
        critics, s, a, context = self._inputs(states, actions, which, rows)
        parts = [_parts(at(critics.members, i), s, a, context) for i in range(critics.count)]
        influence, prior = (np.stack(x) for x in zip(*parts, strict=True))
        least = np.argmin(prior + influence.sum(-1), axis=0)
        pairs = np.arange(len(least))
        parts_of, priors = influence[least, pairs], prior[least, pairs]
        return gather(self.data, rows, away, parts_of, priors, self.outcome)

    @cached_property
    def outcome(self) -> Doubles:
        """What followed every logged row, discounted, on the scaled rewards: (N,)."""
        scaled = replace(self.data, rewards=self.normaliser.rewards(self.data.rewards))
        return outcomes(scaled, self.discount)

    def neighbours(
        self, states: ArrayLike, rows: ArrayLike | None = None
    ) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
        """Rows of the data that make up the context of each state, and their distances.

        `rows` (B,) says which rows of the data the states are, -1 for none: `context.exclude` is
        about these. None: the first row with the same bits, if there is one.
        """
        return self.retriever(self._batch(states), rows=rows)

    @cached_property
    def retriever(self) -> Retriever:
        """What finds contexts as in training; the data is indexed once, when first asked."""
        if self.context is None:
            raise UserError("a global critic has no context.", where="neighbours")
        states, rewards, episode = self.data.states, self.data.rewards, self.data.episode
        cache_dir = default_cache_dir()
        space = self.space or find_space(self.data, self.context, cache_dir=cache_dir)
        return Retriever(states, rewards, self.context, episode=episode, space=space)

    def _batch(self, states: ArrayLike) -> NDArray[np.float32]:
        batch = np.asarray(states, np.float32)
        if batch.ndim != 2 or batch.shape[1] != self.data.observation_dim:
            raise UserError(
                f"must have shape (B, {self.data.observation_dim}), not {batch.shape}.",
                where="states",
            )
        return batch

    def _inputs(
        self,
        states: ArrayLike,
        actions: ArrayLike,
        which: Which,
        rows: NDArray[np.integer] | None = None,
    ) -> tuple[Critics, Any, Any, Any]:
        """One member's critics; normalised states, actions and contexts, of `rows` if known."""
        critics = at(self.critics, index_of(self.members, which))
        s, n, context = self._batch(states), self.normaliser, None
        if self.context is not None:
            rows = self.neighbours(s)[0] if rows is None else rows
            packed = jnp.asarray(pack(self.data, n, rows.ravel())).reshape(*rows.shape, -1)
            context = unpack(packed, self.data.observation_dim, self.data.action_dim)
        a = jnp.asarray(np.asarray(actions, np.float32))
        return critics, jnp.asarray(n.states(s)), a, context


# compiled once for every number of states: a click on a page asks for one state after another


@eqx.filter_jit
def _every_q(critics: Critics, s: Any, a: Any, context: Any) -> Any:
    return eqx.filter_vmap(lambda own: own.at(s, context)(a).min(0))(critics)


@eqx.filter_jit
def _least(critics: Critics, s: Any, a: Any, context: Any) -> Any:
    return critics.at(s, context)(a).min(0)


@eqx.filter_jit
def _trace(critics: Critics, s: Any, a: Any, context: Any) -> Any:
    return critics.trace(s, a, context)


@eqx.filter_jit
def _ridge_features(member: Any, s: Any, a: Any, context: Any) -> Any:
    phi = member.phi(pair(context.s, context.a), key=None)
    phi, y = member.weighed(context, s, phi, member.targets(context))
    return phi, y, member.phi(pair(s, a), key=None)


@eqx.filter_jit
def _linear_features(member: Any, s: Any, a: Any, context: Any) -> Any:
    return *member.context_features(context, s), member.phi(pair(s, a), key=None)


def _parts(member: Any, s: Any, a: Any, context: Any) -> tuple[Doubles, Doubles]:
    """Influences and priors of one critic."""
    module = member.module
    if isinstance(module, Ridge):
        phi, y, query = _ridge_features(member, s, a, context)
        return ridge_parts(phi, y, query, float(module.ridge), module.w0)
    if not isinstance(module, LinearTransformer):
        raise UserError(
            "only the linear module and ridge fall apart into parts.", where="local.module"
        )
    phi, phi_next, r, mask, query = _linear_features(member, s, a, context)
    c, w0 = module.preconditioners, module.w0
    return linear_parts(phi, phi_next, r, mask, query, c, w0, member.discount)


def index_of(members: tuple[Member, ...], which: Which) -> int:
    """The place of the first member that fits."""
    seed, asked = which.get("seed"), which.get("settings") or {}
    for i, member in enumerate(members):
        if seed in (None, member.seed) and asked.items() <= member.settings.items():
            return i
    wanted = say_settings(asked) if seed is None else Member(seed, asked).label
    raise UserError(
        f"the run has no {wanted}; it has {'; '.join(m.label for m in members)}.",
        where="settings" if asked else "seed",
    )


def at(stacked: Any, place: int | slice) -> Any:
    """One of the members along the leading axis, or some."""
    return jax.tree.map(lambda x: x[place] if eqx.is_array(x) else x, stacked)
