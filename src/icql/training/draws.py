"""Drawing rows, uniformly or in proportion to weights, in constant time on the device."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import NDArray


class Alias(eqx.Module):
    """Walker's alias table: row i stands for itself with probability keep_i, else for other_i."""

    keep: Float[Array, " n"]
    other: Int[Array, " n"]
    uniform: int = eqx.field(static=True, default=0)  # of an update's rows, the first that are not


def alias_of(weights: NDArray[np.floating], uniform: int = 0) -> Alias:
    """The table by which rows are drawn in proportion to `weights` (N,), but for the first ones.

    Every row has room for the mean weight. Those below it fill up from those above, both in order:
    a light row's gap is filled by the heavy row whose surplus is being spent, and a heavy row whose
    last gift was larger than what it had left fills its own gap from the next heavy one.
    """
    share = np.asarray(weights, np.float64)
    share = share / share.mean()
    full = share >= min(1.0, share.max())  # of equal weights rounding may leave none at 1
    light, heavy = np.flatnonzero(~full), np.flatnonzero(full)
    gaps, surplus = np.cumsum(1 - share[light]), np.cumsum(share[heavy] - 1)
    keep, other = np.ones(len(share)), np.arange(len(share))
    last = len(heavy) - 1
    begins = np.append(0.0, gaps)[:-1]
    keep[light] = share[light]
    other[light] = heavy[np.minimum(np.searchsorted(surplus, begins, side="right"), last)]
    # the first light row whose gap goes beyond what a heavy row and those before it can give: it
    # takes from the heavy row what that lacks, unless it begins where the heavy row is used up
    beyond = np.searchsorted(gaps, surplus, side="right")
    spent = np.searchsorted(begins, surplus) > beyond
    spent &= np.arange(len(heavy)) < last  # the last has only rounding
    keep[heavy[spent]] = 1 + surplus[spent] - gaps[beyond[spent]]
    other[heavy[:-1]] = heavy[1:]
    return Alias(jnp.asarray(keep, jnp.float32), jnp.asarray(other, jnp.int32), uniform)


def draw(
    key: PRNGKeyArray, size: int, total: int, alias: Alias | None = None
) -> Int[Array, " size"]:
    """Draw `size` of `total` rows with replacement, uniformly or by the table."""
    if alias is None:
        return jax.random.randint(key, (size,), 0, total)
    row_key, coin_key = jax.random.split(key)
    rows = jax.random.randint(row_key, (size,), 0, total)
    kept = jax.random.uniform(coin_key, (size,)) < alias.keep[rows]
    kept = kept | (jnp.arange(size) < alias.uniform)
    return jnp.where(kept, rows, alias.other[rows])
