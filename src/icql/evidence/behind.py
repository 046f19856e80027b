"""What stands behind a value: the retrieved transitions, each with its part of the value.

A local critic's value is linear in what its context paid, so that it falls apart into one term for
each retrieved row, exactly:

    Q̂(s, a | Ω) = prior + Σ_j influence_j

* graph: u_j Q_j, u the weights of the rows (`icql.graph.critic`), no prior;
* linear: c_j (r_j + (γ m_j φ'_j − φ_j)ᵀ w₀) with c = ∂φᵀw_L / ∂r, prior φᵀw₀ (0 in the paper);
* ridge: φᵀφ_j [(ΦΦᵀ + λN I)⁻¹ (y − Φ w₀)]_j, prior φᵀw₀.

All sums are in float64, from the features that the network gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.pages import note

Doubles = NDArray[np.float64]
Rows = NDArray[np.integer]

TOLD = 10  # rows that a notebook shows
WITHIN = (0.05, 0.95)  # of the logged outcomes behind a value: where most of them lie


@dataclass(frozen=True)
class Grounds:
    """The values of B pairs (s, a), and the k rows of the log behind each; largest part first."""

    value: Doubles  # (B,) prior + the sum of the influences
    prior: Doubles  # (B,) what the critic says without any context
    rows: Rows  # (B, k) of the data
    episode: Rows  # (B, k)
    step: Rows  # (B, k) in the episode
    distance: Doubles  # (B, k) from the state
    influence: Doubles  # (B, k) each row's part of the value
    outcome: Doubles  # (B, k) what followed in the log, discounted
    rank: Doubles  # (B,) the share of these outcomes that are below the value
    interval: Doubles  # (B, 2) between which nine tenths of these outcomes lie

    def said(self, i: int = 0, most: int = 10) -> str:
        """The evidence of one pair as a table to read."""
        low, high = self.interval[i]
        lines = [
            f"value {self.value[i]:.4g} (prior {self.prior[i]:.4g}); "
            f"logged outcomes nearby: {low:.4g} to {high:.4g}, {100 * self.rank[i]:.0f} % below it",
            "   row  episode  step   distance  influence    outcome",
        ]
        for j in range(min(most, self.rows.shape[1])):
            numbers = (self.distance[i, j], self.influence[i, j], self.outcome[i, j])
            told = "".join(f"{x:11.4g}" for x in numbers)
            lines.append(
                f"{self.rows[i, j]:6d}  {self.episode[i, j]:7d}  {self.step[i, j]:4d}{told}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Of the first pair, in a notebook; `said(i)` tells of another."""
        low, high = self.interval[0]
        lines = [
            f"prior {self.prior[0]:.4g}; logged outcomes nearby: {low:.4g} to {high:.4g}, "
            f"{100 * self.rank[0]:.0f} % below it"
        ]
        if len(self.value) > 1:
            lines.append(f"the first of {len(self.value):,} pairs; .said(i) tells of another")
        columns = ("rows", "episode", "step", "distance", "influence", "outcome")
        shown = [getattr(self, name)[0, :TOLD].tolist() for name in columns]
        rows = list(zip(*shown, strict=True))
        if self.rows.shape[1] > TOLD:
            rest = float(self.influence[0, TOLD:].sum())
            rows.append((f"{self.rows.shape[1] - TOLD} more", "", "", "", rest, ""))
        return note(f"value {self.value[0]:.4g}", lines, ("row", *columns[1:]), rows)


def outcomes(data: Transitions, discount: float) -> Doubles:
    """The discounted reward (N,) that followed every row until its episode's end in the log."""
    found, episode = np.array(data.rewards, np.float64), np.asarray(data.episode)
    ahead = discount * np.asarray(data.mask, np.float64)
    for i in np.flatnonzero(episode[1:] == episode[:-1])[::-1]:
        found[i] += ahead[i] * found[i + 1]
    return found


def gather(
    data: Transitions,
    rows: Rows,
    distance: NDArray[np.floating],
    influence: Doubles,
    prior: Doubles,
    outcome: Doubles,
) -> Grounds:
    """Put together what is known of the rows (B, k) behind B values; outcome is of all N rows."""
    order = np.argsort(-np.abs(influence), axis=1, kind="stable")
    rows, influence = np.take_along_axis(rows, order, 1), np.take_along_axis(influence, order, 1)
    value, around = prior + influence.sum(1), outcome[rows]
    below = (around < value[:, None]) + 0.5 * (around == value[:, None])
    return Grounds(
        value,
        prior,
        rows,
        np.asarray(data.episode)[rows],
        np.asarray(data.step)[rows],
        np.take_along_axis(np.asarray(distance, np.float64), order, 1),
        influence,
        around,
        below.mean(1),
        np.quantile(around, WITHIN, axis=1).T,
    )


def linear_parts(
    phi: Any, phi_next: Any, r: Any, mask: Any, query: Any, c: Any, w0: Any, discount: float
) -> tuple[Doubles, Doubles]:
    """Influences (B, n) and priors (B,) of the linear module: Φ, Φ' (B, n, d), φ (B, d), C, w₀."""
    phi, phi_next, r, mask, query, c = (
        np.asarray(x, np.float64) for x in (phi, phi_next, r, mask, query, c)
    )
    change = discount * mask[..., None] * phi_next - phi
    prior, seen = np.zeros(len(query)), r
    if w0 is not None:
        w0 = np.asarray(w0, np.float64)
        prior, seen = query @ w0, r + change @ w0
    # back through the layers: what a change of w after each of them does to the value
    slope, coefficients = query.copy(), np.zeros_like(r)
    for layer in c[::-1]:
        through = np.einsum("bnd,bd->bn", phi, slope @ layer) / phi.shape[1]
        coefficients += through
        slope = slope + np.einsum("bn,bnd->bd", through, change)
    return coefficients * seen, prior


def ridge_parts(phi: Any, y: Any, query: Any, ridge: float, w0: Any) -> tuple[Doubles, Doubles]:
    """Influences (B, n) and priors (B,) of the ridge: Φ (B, n, d), targets (B, n), φ (B, d)."""
    phi, y, query, w0 = (np.asarray(x, np.float64) for x in (phi, y, query, w0))
    n = phi.shape[1]
    gram = np.einsum("bnd,bmd->bnm", phi, phi) + n * ridge * np.eye(n)
    dual = np.linalg.solve(gram, (y - phi @ w0)[..., None])[..., 0]
    return np.einsum("bnd,bd->bn", phi, query) * dual, query @ w0
