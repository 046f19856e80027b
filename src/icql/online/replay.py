"""The replay on the device: a ring of packed rows, written and sampled inside compiled code."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.base import Transition


class Replay(eqx.Module):
    """The last `capacity` transitions; each row is (s, a, r, s', mask) side by side.

    One packed array means one scatter per write and one gather per batch.
    """

    rows: Float[Array, "capacity width"]
    seen: Int[Array, ""]  # rows ever written
    observation_dim: int = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    @staticmethod
    def empty(capacity: int, observation_dim: int, action_dim: int) -> Replay:
        """Return a ring that holds `capacity` transitions, none of them written yet."""
        width = 2 * observation_dim + action_dim + 2
        return Replay(
            jnp.zeros((capacity, width)), jnp.zeros((), jnp.int32), observation_dim, action_dim
        )

    def add(self, new: Float[Array, "n width"]) -> Replay:
        """Write `n` packed rows over the oldest ones."""
        n, capacity = len(new), len(self.rows)
        slots = (self.seen + jnp.arange(n)) % capacity
        return Replay(
            self.rows.at[slots].set(new), self.seen + n, self.observation_dim, self.action_dim
        )

    def sample(self, key: PRNGKeyArray, n: int) -> Transition:
        """`n` transitions drawn uniformly, with replacement, from those written."""
        filled = jnp.minimum(self.seen, len(self.rows))
        return self.unpack(self.rows[jax.random.randint(key, (n,), 0, filled)])

    def unpack(self, rows: Float[Array, "n width"]) -> Transition:
        """(s, a, r, s', mask) of packed rows; a' is the policy's to draw, so it stays zero."""
        d, m = self.observation_dim, self.action_dim
        s, a, r, s_next, mask = jnp.split(rows, [d, d + m, d + m + 1, 2 * d + m + 1], axis=-1)
        return Transition(s, a, r[..., 0], s_next, jnp.zeros_like(a), mask[..., 0])
