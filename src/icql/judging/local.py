"""The local critic's own estimate: the policy's value solved on the retrieval graph.

    Q_i = r_i + γ m_i Σ_j u_ij Q_j,    j ∈ Ω_{s'_i},    u_ij ∝ exp(−|π(s'_i) − a_j|² / 2h²)
    V(s_0) = Σ_j u_j Q_j,              j ∈ Ω_{s_0}      (`GraphCritic.q` at π(s_0))

Rows around the next state count by how near their logged action was to the policy's. h² is the mean
squared distance, as in `icql.graph.critic`. Nothing is learned, so nothing runs away; but every
value is a mean of logged ones, so a policy far from the log is valued as if it were nearer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from icql.graph.critic import GraphCritic
from icql.graph.logged import TOLERANCE
from icql.graph.value_iteration import solve
from icql.judging.log import Doubles, Log
from icql.retrieval import ContextSettings, build_neighbours
from icql.retrieval.neighbours import usual_space
from icql.settings.draw import DrawSettings


@dataclass(frozen=True)
class Graph:
    """Every row of a log joined to those around its next state."""

    log: Log
    critic: GraphCritic  # finds the rows around start states
    there: NDArray[np.int32]  # (N, 1 + k) the row that follows, where one does, and rows around s'

    @classmethod
    def of(
        cls,
        log: Log,
        discount: float,
        cache_dir: Path | None,
        progress: Callable[[str, float], None],
    ) -> Graph | None:
        """Retrieve them; None where there are no other episodes."""
        data = log.data
        space = usual_space(data)
        settings = DrawSettings(discount=discount, expectile=0.5, space=space)
        longest = int(np.unique(data.episode, return_counts=True)[1].max())
        k = min(settings.neighbours, len(data) - longest)
        if k < 1:
            return None
        context = ContextSettings(k=k, exclude="episode", space=space)
        near = build_neighbours(data, context, cache_dir=cache_dir, progress=progress)
        following = np.where(log.broken, -1, np.arange(len(data)) + 1)
        there = np.concatenate([following[:, None], np.asarray(near.next_state)], 1)
        critic = GraphCritic(np.zeros(len(data)), data, settings)
        return cls(log, critic, there.astype(np.int32))

    def start_values(self, next_actions: Any, start_actions: Any) -> Doubles:
        """V(s_0) of every episode (E,) under the policy with these actions at s' and s_0."""
        data, gamma = self.log.data, self.critic.settings.discount
        logged = np.asarray(data.actions, np.float32)
        away = np.stack(
            [
                np.square(logged[column] - next_actions).sum(-1)
                for column in np.maximum(self.there, 0).T
            ],
            1,
        )
        unit = np.maximum(away.mean(1, keepdims=True), np.finfo(np.float32).tiny)
        weights = np.exp(-away / (2 * unit))
        scale = float(np.ptp(data.rewards)) or 1.0
        q = solve(
            jnp.asarray(data.rewards / scale, jnp.float32),
            jnp.asarray(data.mask, jnp.float32),
            jnp.asarray(self.there),
            discount=gamma,
            expectile=self.critic.settings.expectile,
            weights=jnp.asarray(weights, jnp.float32),
            tolerance=TOLERANCE / (1 - gamma),
        )
        rows, near = self.critic.influences(data.states[self.log.first], start_actions)
        return np.asarray((near * np.asarray(q, np.float64)[rows]).sum(1) * scale)
