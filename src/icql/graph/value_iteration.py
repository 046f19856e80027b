"""A critic solved on the retrieval graph, by value iteration over logged transitions.

    Q_i = r_i + γ m_i V(s'_i),     V(s) = the τ-expectile of { Q_j : j ∈ Ω_s }

Rows are compared with the rows retrieved around their next state, so a value is inferred from what
happened to others in nearly the same state, as in the paper; but nothing is learned, so nothing can
run away. With T the map from one Q to the next:

* **monotone**: a τ-expectile does not fall when one of its values rises;
* **a γ-contraction** in the maximum norm: adding a constant c to every Q adds c to every expectile,
  so |T Q − T Q'| ≤ γ |Q − Q'|; there is one fixed point, reached from any start;
* **bounded**: within [min r, max r] / (1 − γ), 0 included where an episode can end;
* **a stopping rule**: |T Q − Q*| ≤ |T Q − Q| γ / (1 − γ), the bound that is driven to `tolerance`;
* **exact dynamic programming** where each state's neighbourhood is that state alone: τ → 1 gives
  the optimal values of the logged MDP, τ = ½ and one row per pair those of the behaviour.

The expectile of finitely many values is a weighted mean with weights τ above it and 1 − τ below.
Held fixed for some sweeps, these weights make each sweep one gather and one sum: modified policy
iteration, which has the same fixed point. (Averagers: Gordon 1995. DAC-MDP: Shrestha et al. 2021.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike, NDArray

from icql.errors import UserError

Progress = Callable[[str, float], None]

BLOCK = 2**16  # rows whose contexts are gathered at once: temporary memory, not the result
HELD = 16  # sweeps with the expectile's weights held between two exact ones
NEWTON = 64  # most steps to an expectile; it ends by itself, mostly after three to six
MOST = 100_000  # exact sweeps; far beyond what any γ that makes sense needs


def local_value_iteration(
    rewards: ArrayLike,
    mask: ArrayLike,
    next_context: ArrayLike,
    *,
    discount: float,
    expectile: float = 0.7,
    weights: ArrayLike | None = None,
    tolerance: float = 1e-3,
    start: ArrayLike | None = None,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """Solve Q_i = r_i + γ m_i V(s'_i) on the retrieval graph, in float64.

    Args:
        rewards: (N,) r.
        mask: (N,) 1 − done: 0 where nothing follows.
        next_context: (N, k) the rows whose Q are compared at s'; negative entries are holes.
        discount: γ in [0, 1).
        expectile: τ in (0, 1): ½ is the mean; towards 1 the best of the rows compared count.
        weights: (N, k) of the rows compared, such as kernel weights by distance; equal by default.
        tolerance: the largest distance of any Q from the fixed point, by the contraction's bound.
        start: (N,) where the sweeps begin; the fixed point does not depend on it.
        progress: called with a label and the share done.

    Returns:
        Q (N,).

    Raises:
        UserError: if the arrays do not fit together or hold values that are not finite, or a row
            that does not end has nothing to be compared with.
    """
    r, m, table, w = _checked(rewards, mask, next_context, weights)
    for name, value, fits in (
        ("discount", discount, 0 <= discount < 1),
        ("expectile", expectile, 0 < expectile < 1),
        ("tolerance", tolerance, tolerance > 0),
    ):
        if not fits:
            limits = {"discount": "in [0, 1)", "expectile": "in (0, 1)", "tolerance": "positive"}
            raise UserError(f"must be {limits[name]}, not {value}.", where=name)
    begin = np.zeros(len(r)) if start is None else _vector(start, "start", len(r))
    with jax.enable_x64(True):
        q = solve(
            jnp.asarray(r),
            jnp.asarray(m),
            jnp.asarray(table),
            discount=discount,
            expectile=expectile,
            weights=None if w is None else jnp.asarray(w),
            tolerance=tolerance,
            start=jnp.asarray(begin),
            progress=progress,
        )
        return np.asarray(q)


def solve(
    r: Float[Array, " n"],
    mask: Float[Array, " n"],
    next_context: Int[Array, "n k"],
    *,
    discount: float,
    expectile: float,
    weights: Float[Array, "n k"] | None = None,
    tolerance: float,
    start: Float[Array, " n"] | None = None,
    progress: Progress | None = None,
) -> Float[Array, " n"]:
    """Return the fixed point Q for arrays on the device, in their own precision.

    Exact sweeps alternate with `HELD` sweeps of held weights, in one compiled program; each exact
    one gives the bound that decides when to stop, and what it gave is the result. Progress is told
    by how far the bound has fallen.
    """
    if not len(r):
        return r
    q = jnp.zeros_like(r) if start is None else start
    first: float | None = None
    for _ in range(MOST):
        swept, q, change = _round(q, r, mask, next_context, weights, discount, expectile)
        bound = float(change) * discount / (1 - discount)
        if progress is not None:
            first = bound if first is None else first
            progress("value iteration", _fallen(first, bound, tolerance))
        if bound <= tolerance:
            return swept
        # no further than rounding allows: the last bits would be gone over for ever
        if bound <= 8 * float(np.finfo(r.dtype).eps) * float(jnp.abs(q).max()) / (1 - discount):
            return swept
    raise UserError(
        f"value iteration has not come within {tolerance:g} after {MOST:,} sweeps.",
        where="tolerance",
        fix="Allow more, or lower the discount.",
    )


def values_at(
    q: Float[Array, " n"],
    context: Int[Array, "... k"],
    expectile: float,
    weights: Float[Array, "... k"] | None = None,
) -> Float[Array, "..."]:
    """V(s): the τ-expectile of the Q of the rows in each context; holes are negative."""
    present = context >= 0
    w = present.astype(q.dtype) if weights is None else jnp.where(present, weights, 0)
    return expectile_of(q[jnp.maximum(context, 0)], w, expectile)


def expectile_of(
    x: Float[Array, "... k"], w: Float[Array, "... k"], tau: float
) -> Float[Array, "..."]:
    """The τ-expectile of x with weights w along the last axis; 0 where there is no weight.

    v = Σ u x / Σ u with u = w τ above v and w (1 − τ) below: Newton's method on a function that is
    linear in pieces, so it ends after finitely many steps.
    """

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        v, _, count = state
        new = _mean(x, w * jnp.where(x < v[..., None], 1 - tau, tau))
        return new, jnp.any(new != v), count + 1

    def moving(state: tuple[Array, Array, Array]) -> Array:
        return state[1] & (state[2] < NEWTON)

    v: Array = jax.lax.while_loop(moving, step, (_mean(x, w), jnp.asarray(True), jnp.asarray(0)))[0]
    return v


@partial(jax.jit, static_argnames=("expectile",))
def _round(
    q: Array,
    r: Array,
    mask: Array,
    table: Array,
    weights: Array | None,
    discount: float,
    expectile: float,
) -> tuple[Array, Array, Array]:
    """One exact sweep, `HELD` more with its weights, and how far the exact one moved any Q.

    Of the weights only one bit is kept for each row compared, whether it lies below the expectile:
    beside the table that takes a quarter of its memory.
    """
    rows, size = len(r), min(BLOCK, len(r))
    gamma = jnp.asarray(discount, q.dtype)

    def over_blocks(q: Array, below: Array, value: Callable[..., Any]) -> tuple[Array, Array]:
        """Apply `value(q of the context, its weights, below)` block by block; the last overlaps."""

        def block(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            at = jnp.minimum(i * size, rows - size)

            def part(x: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(x, at, size)

            near = part(table)
            w = (near >= 0).astype(q.dtype)
            if weights is not None:
                w = w * part(weights)
            v, under = value(q[jnp.maximum(near, 0)], w, part(below))
            new = part(r) + gamma * part(mask) * v
            swept, marks = state
            return (
                jax.lax.dynamic_update_slice_in_dim(swept, new, at, 0),
                jax.lax.dynamic_update_slice_in_dim(marks, under, at, 0),
            )

        return jax.lax.fori_loop(0, -(-rows // size), block, (q, below))

    def exact(x: Array, w: Array, below: Array) -> tuple[Array, Array]:
        v = expectile_of(x, w, expectile)
        return v, x < v[:, None]

    def held(x: Array, w: Array, below: Array) -> tuple[Array, Array]:
        return _mean(x, w * jnp.where(below, 1 - expectile, expectile)), below

    swept, below = over_blocks(q, jnp.zeros(table.shape, bool), exact)
    change = jnp.abs(swept - q).max()

    def sweep(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        return over_blocks(*state, held)

    return swept, jax.lax.fori_loop(0, HELD, sweep, (swept, below))[0], change


def _mean(x: Array, w: Array) -> Array:
    """The weighted mean along the last axis; 0 where there is no weight."""
    return (w * x).sum(-1) / jnp.maximum(w.sum(-1), np.finfo(x.dtype).tiny)


def _fallen(first: float, bound: float, tolerance: float) -> float:
    """How much of the way from the first bound to the tolerance is done, on a log scale."""
    if bound <= tolerance or first <= tolerance:
        return 1.0
    return min(1.0, math.log(first / bound) / math.log(first / tolerance)) if bound < first else 0.0


def _checked(
    rewards: ArrayLike, mask: ArrayLike, next_context: ArrayLike, weights: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int32], NDArray[Any] | None]:
    table = np.asarray(next_context)
    if table.ndim != 2 or table.dtype.kind not in "iu":
        raise UserError(
            f"must be row numbers of shape (N, k), not {table.dtype} of shape {table.shape}.",
            where="next_context",
        )
    rows = len(table)
    r, m = _vector(rewards, "rewards", rows), _vector(mask, "mask", rows)
    if table.size and int(table.max()) >= rows:
        raise UserError(
            f"names row {int(table.max())}, but there are {rows}.", where="next_context"
        )
    w = None if weights is None else np.asarray(weights, np.float64)
    if w is not None and (w.shape != table.shape or not (np.isfinite(w) & (w >= 0)).all()):
        raise UserError(
            f"must be of shape {table.shape}, finite and not negative.", where="weights"
        )
    counted = table >= 0 if w is None else (table >= 0) & (w > 0)
    empty = (m != 0) & ~counted.any(axis=1)
    if empty.any():
        raise UserError(
            f"{int(empty.sum()):,} rows that do not end have nothing to be compared with, the "
            f"first is row {int(empty.argmax())}.",
            where="next_context",
            fix="Give at least one row for each, or mask 0 where an episode ends.",
        )
    return r, m, table.astype(np.int32), w


def _vector(values: ArrayLike, name: str, rows: int) -> NDArray[np.float64]:
    vector = np.asarray(values, np.float64)
    if vector.shape != (rows,):
        raise UserError(f"must have shape ({rows},), not {vector.shape}.", where=name)
    if not np.isfinite(vector).all():
        row = int((~np.isfinite(vector)).argmax())
        raise UserError("is not finite (NaN or Inf).", where=f"{name}, row {row}")
    return vector
