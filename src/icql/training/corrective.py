"""Corrective rows: from a state a little aside, the action that leads back to where the log went.

    s' ≈ s + c + B a                                  B = ∂s'/∂a, by least squares over the log
    (s, a, r, s')  →  (s − B δ, a + δ, r, s')         δ ~ U(−w, w), kept within [−1, 1]

A policy that was cloned knows the logged path and no way back to it, so that what throws it off, a
sensor's noise or its own error, adds up from step to step. What an action changes can be read off
the log: every drawn row is moved aside together with the action that makes up for it.

Columns that actions do not drive (an object that is not touched) stay where they are, and actions
that cannot be told from the driven columns are not shifted: there B is chance. It is meant for
actions that say how fast or how strongly to move. Where they name a position to go to, the right
action does not depend on where one stands; such a column is known by its change, which is smaller
the farther it has come, and stays too. The idea is that of corrective labels (Ke et al. 2024) and
of noise in demonstrations (Laskey et al. 2017), with a matrix in place of a learned model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from icql.algos.base import Transition
from icql.data.arrays import blocks
from icql.data.transitions import Transitions
from icql.errors import UserError

DRIVEN = 0.5  # of the variance of a column's change, or of an action: what has to be explained
NAMED = 0.1  # of it: if the column's own value explains more of what actions leave, they name it
Doubles = NDArray[np.float64]


class Corrective(eqx.Module):
    """Moves rows aside; see the top of this file."""

    effect: Float[Array, "act obs"]  # Bᵀ, in units of normalised states; 0 where nothing is moved
    widths: Float[Array, " act"]  # w of each action; 0: it is not shifted

    def __call__(self, rows: Transition, key: PRNGKeyArray) -> Transition:
        """The rows with states moved and actions shifted, each by its own δ."""
        drawn = self.widths * jax.random.uniform(key, rows.a.shape, rows.a.dtype, -1, 1)
        shift = jnp.clip(rows.a + drawn, -1, 1) - rows.a
        moved = rows.s - shift @ self.effect, rows.a + shift
        return eqx.tree_at(lambda t: (t.s, t.a), rows, moved)


class Effect(NamedTuple):
    """What actions do to states, as the log shows it."""

    matrix: Doubles  # (act, obs): Bᵀ, in the log's units
    columns: NDArray[np.bool_]  # (obs,) that actions drive
    actions: NDArray[np.bool_]  # (act,) that can be told from these

    def __str__(self) -> str:
        if not self.actions.any():
            return "no column of the states follows the actions: rows stay as they are"
        shifted, moved = int(self.actions.sum()), int(self.columns.sum())
        return (
            f"{shifted} of {len(self.actions)} actions lead back in {moved} of "
            f"{len(self.columns)} columns"
        )


def effect_of(data: Transitions) -> Effect:
    """Regress the change of every column on the actions, in blocks and in float64.

    Raises:
        UserError: actions are choices.
    """
    if data.info.signals.choices:
        raise UserError(
            "actions are choices, and a choice cannot be shifted a little.",
            where="data.corrective",
            fix="Leave it out.",
        )
    n, acts, columns = len(data), data.action_dim, data.observation_dim
    width = acts + 2 * columns

    def rows() -> Iterator[Doubles]:  # (a, s' − s, s) of every row
        for at in blocks(n, width):
            s = data.states[at].astype(float)
            yield np.concatenate([data.actions[at], data.next_states[at] - s, s], axis=1)

    mean = sum((part.sum(0) for part in rows()), np.zeros(width)) / n
    gram = np.zeros((width, width))
    for part in rows():
        gram += (part - mean).T @ (part - mean) / n
    a, d, s = slice(None, acts), slice(acts, acts + columns), slice(acts + columns, None)
    matrix, explained = _regress(gram[a, a], gram[a, d], gram[d, d])
    # of a column's change what its own value explains, once actions have
    left = gram - gram[:, a] @ np.linalg.pinv(gram[a, a], hermitian=True) @ gram[a, :]
    value, both = np.diag(left[s, s]), np.diag(left[d, s])
    named = _share(both**2, value * np.diag(gram[d, d]))
    driven = (explained >= DRIVEN) & (named <= NAMED)
    at = np.flatnonzero(driven) + acts
    _, told = _regress(gram[np.ix_(at, at)], gram[at, a], gram[a, a])
    return Effect(matrix, driven, told >= DRIVEN)


def _regress(xx: Doubles, xy: Doubles, yy: Doubles) -> tuple[Doubles, Doubles]:
    """Coefficients of y on x by their covariances, and the share of each y that they explain."""
    slopes = np.linalg.pinv(xx, hermitian=True) @ xy
    return slopes, _share((slopes * xy).sum(0), np.diag(yy))


def _share(part: Doubles, whole: Doubles) -> Doubles:
    """part / whole, 0 of nothing."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def corrective_of(effect: Effect, width: float, spread: NDArray[np.floating]) -> Corrective:
    """Make ready to shift actions by up to `width`; `spread` is what states are divided by."""
    matrix = _rounded(effect.matrix) * effect.columns / spread
    return Corrective(
        jnp.asarray(matrix, jnp.float32), jnp.asarray(width * effect.actions, jnp.float32)
    )


def _rounded(x: Doubles) -> Doubles:
    """To 12 bits: the last ones of sums differ with the number of cores, and a run must not."""
    mantissa, exponent = np.frexp(x)
    rounded: Doubles = np.ldexp(np.round(mantissa * 2**12) / 2**12, exponent)
    return rounded
