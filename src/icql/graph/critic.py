"""The solved graph as a critic: values of states and actions that need not be in the log.

    Q(s, a) = Σ_j u_j Q_j / Σ_j u_j,  j ∈ Ω_s,  u_j = exp(−|a − a_j|² / 2h²)
    V(s)    = the τ-expectile of { Q_j : j ∈ Ω_s }

h² is the mean squared distance of a from the actions in Ω_s: rows whose action was nearer to the
asked one count more, and where all are far away they count alike. `influences` are the weights of
the rows: with their Q they add up to the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.evidence.behind import Grounds, gather, outcomes
from icql.graph.value_iteration import values_at
from icql.retrieval import ContextSettings, Retriever, default_cache_dir, find_space
from icql.settings.draw import DrawSettings

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class GraphCritic:
    """The graph's Q of every logged row, in the log's own rewards, and the rows themselves."""

    row_q: Doubles  # (N,)
    data: Transitions
    settings: DrawSettings

    def __repr__(self) -> str:
        return f"<GraphCritic on {self.data.info.name}: values of {len(self.data):,} rows>"

    def q(self, states: ArrayLike, actions: ArrayLike) -> Doubles:
        """Q(s, a) of each pair: (B,)."""
        rows, weights = self.influences(states, actions)
        return np.asarray((weights * self.row_q[rows]).sum(1), np.float64)

    def v(self, states: ArrayLike) -> Doubles:
        """V(s) of each state: (B,)."""
        rows, _ = self.neighbours(states)
        q = jnp.asarray(self.row_q, jnp.float32)
        return np.asarray(values_at(q, jnp.asarray(rows), self.settings.expectile), np.float64)

    def influences(
        self, states: ArrayLike, actions: ArrayLike
    ) -> tuple[NDArray[np.integer], Doubles]:
        """The rows behind each Q(s, a), and how much of it each one is: (B, k), sums 1."""
        rows, _ = self.neighbours(states)
        asked = np.asarray(actions, np.float64)
        if asked.shape != (len(rows), self.data.action_dim):
            raise UserError(
                f"must have shape ({len(rows)}, {self.data.action_dim}), not {asked.shape}.",
                where="actions",
            )
        away = np.square(self.data.actions[rows] - asked[:, None]).sum(-1, dtype=np.float64)
        unit = np.maximum(away.mean(1, keepdims=True), np.finfo(np.float64).tiny)
        weights = np.exp(-away / (2 * unit))
        return rows, weights / weights.sum(1, keepdims=True)

    def evidence(self, states: ArrayLike, actions: ArrayLike) -> Grounds:
        """The logged transitions behind each value, which their influences add up to."""
        rows, weights = self.influences(states, actions)
        parts, away = weights * self.row_q[rows], self.neighbours(states)[1]
        return gather(self.data, rows, away, parts, np.zeros(len(rows)), self.outcome)

    @cached_property
    def outcome(self) -> Doubles:
        """What followed every logged row, discounted: (N,)."""
        return outcomes(self.data, self.settings.discount)

    def neighbours(
        self, states: ArrayLike, rows: ArrayLike | None = None
    ) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
        """The rows around each state, nearest first, and their distances.

        `rows` (B,) says which rows of the data the states are, -1 for none: those of the same
        episode are left out. None: the first row with the same bits, if there is one.
        """
        batch = np.asarray(states, np.float32)
        if batch.ndim != 2 or batch.shape[1] != self.data.observation_dim:
            raise UserError(
                f"must have shape (B, {self.data.observation_dim}), not {batch.shape}.",
                where="states",
            )
        return self.retriever(batch, rows=rows)

    @cached_property
    def retriever(self) -> Retriever:
        """What finds the rows; the data is indexed once, when first asked."""
        longest = int(np.unique(self.data.episode, return_counts=True)[1].max())
        k = min(self.settings.neighbours, len(self.data) - longest)
        metric, space = self.settings.metric, self.settings.space
        context = ContextSettings(k=k, exclude="episode", metric=metric, space=space)
        found = find_space(self.data, context, cache_dir=default_cache_dir())
        return Retriever(self.data.states, None, context, episode=self.data.episode, space=found)
