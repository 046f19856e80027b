"""The graph of a dataset: every row joined to the rows retrieved around it, solved and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import blocks
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.graph.comparison import (
    effective_share,
    episode_outcomes,
    lambda_returns,
    row_weights,
)
from icql.graph.value_iteration import solve, values_at
from icql.retrieval import (
    ContextSettings,
    Neighbours,
    build_neighbours,
    distances_of,
)
from icql.settings.draw import DrawSettings

Doubles = NDArray[np.float64]
Progress = Callable[[str, float], None]

TOLERANCE = 1e-4  # of the range that values can have: how well they are known


@dataclass(frozen=True)
class Comparison:
    """What the graph says of every row."""

    q: Doubles  # (N,) the fixed point
    v: Doubles  # (N,) of each row's own state
    returns: Doubles  # (N,) λ-returns
    weights: Doubles  # (N,) how often to draw it, mean 1
    compared: int  # rows around each; 0: all of other episodes

    @property
    def share(self) -> float:
        """The effective share of the rows."""
        return effective_share(self.weights)


def compare_rows(
    data: Transitions,
    settings: DrawSettings,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
) -> Comparison:
    """Solve the graph's critic on logged rows and weigh them by local comparison.

    Progress is that of the search for nine tenths, then that of value iteration.

    Around s are compared the row itself and rows of other episodes; around s' the row that follows
    in the log, where one does, and rows of other episodes. Where there are fewer than
    `settings.compared`, or that is 0, all are.

    Raises:
        UserError: there is a single episode, or all weights vanish.
    """
    longest = int(np.unique(data.episode, return_counts=True)[1].max(initial=0))
    k = min(settings.compared or settings.neighbours, len(data) - longest)
    if k < 1:
        raise UserError(
            "rows are compared with those of other episodes, and there is a single one.",
            where="draw.by",
            fix="Log more episodes, or take --draw.by uniform.",
        )
    context = ContextSettings(k=k, exclude="episode", metric=settings.metric, space=settings.space)
    told = progress or _silent
    near = build_neighbours(
        data,
        context,
        cache_dir=cache_dir,
        progress=lambda label, share: told(label, 0.9 * share),
        memory=memory,
    )
    last = _ends_of_runs(data)
    own, valued = np.arange(len(data)), min(settings.neighbours, k)
    here, there = (
        np.concatenate([first[:, None], np.asarray(table[:, :valued])], 1).astype(np.int32)
        for first, table in ((own, near.state), (np.where(last, -1, own + 1), near.next_state))
    )
    w_here, w_there = _kernels(data, near, context, settings, valued)
    r = np.asarray(data.rewards, np.float64)
    mask = np.asarray(data.mask, np.float64) if settings.ends else np.ones(len(data))
    # values are relative to the range of rewards: a graph in float32 knows them well enough
    unit = float(np.ptp(r)) or float(np.abs(r).max()) or 1.0
    known = TOLERANCE / (1 - settings.discount)
    scaled: Any = jnp.asarray(r / unit, jnp.float32)
    q = solve(
        scaled,
        jnp.asarray(mask, jnp.float32),
        jnp.asarray(there),
        discount=settings.discount,
        expectile=settings.expectile,
        weights=w_there,
        tolerance=known,
        progress=lambda label, share: told(label, 0.9 + 0.1 * share),
    )
    v, v_next = (
        np.asarray(values_at(q, jnp.asarray(t), settings.expectile, w), np.float64) * unit
        for t, w in ((here, w_here), (there, w_there))
    )
    returns = lambda_returns(
        r, mask, v_next, last, discount=settings.discount, trace=settings.trace
    )
    # where rewards are constant and nothing ends, what differs is rounding
    alike = max(np.ptp(returns), np.ptp(v)) <= known * unit
    outcome = episode_outcomes(r, data.mask, data.episode) if settings.by == "episode" else returns
    weights = np.ones(len(r))
    if not alike:
        weights = row_weights(outcome, v, near.state, data.episode, settings)
    compared = k if settings.compared else 0
    return Comparison(np.asarray(q, np.float64) * unit, v, returns, weights, compared)


def _silent(label: str, share: float) -> None:
    pass


def _ends_of_runs(data: Transitions) -> NDArray[np.bool_]:
    """Whether the row after this one in the log is not its next step."""
    last = np.ones(len(data), np.bool_)
    goes_on = np.diff(data.step.astype(np.int64)) == 1
    last[:-1] = (data.episode[1:] != data.episode[:-1]) | ~goes_on
    return last


def _kernels(
    data: Transitions, near: Neighbours, context: ContextSettings, s: DrawSettings, valued: int
) -> tuple[Any, Any]:
    """The kernel's weights of the rows around s and s', 1 for the own; None: all alike."""
    if not s.kernel:
        return None, None
    first = replace(near, state=near.state[:, :valued], next_state=near.next_state[:, :valued])
    here, there = (kernel_weights(away, s.kernel) for away in distances_of(data, first, context))
    return jnp.asarray(here), jnp.asarray(there)


def kernel_weights(away: NDArray[np.float32], kernel: float) -> NDArray[np.float32]:
    """1, then exp(−kernel · d² / mean d²) of a row's distances (N, k): (N, 1 + k).

    The mean is over those that are there: a hole, infinitely far, weighs 0 and moves no other. Rows
    whose neighbours are all at the same place weigh them alike.
    """
    weights = np.ones((len(away), 1 + away.shape[1]), np.float32)
    for block in blocks(*away.shape):
        squares = np.square(away[block], dtype=np.float64)
        there = np.isfinite(squares)
        total = np.where(there, squares, 0).sum(1, keepdims=True)
        typical = total / np.maximum(there.sum(1, keepdims=True), 1)
        scaled = np.divide(squares, typical, out=np.zeros_like(squares), where=typical > 0)
        weights[block, 1:] = np.where(there, np.exp(-kernel * scaled), 0)
    return weights
