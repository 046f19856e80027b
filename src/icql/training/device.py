"""The dataset on the device, and batches drawn from it there."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.base import Batch, DataSettings, Transition
from icql.data.transitions import Floats, Transitions
from icql.retrieval import Neighbours


@dataclass(frozen=True)
class Normaliser:
    """What was done to states and rewards, so that it can be recorded and undone."""

    mean: Floats
    std: Floats
    reward_scale: float
    constant: tuple[int, ...]  # state dimensions that never change in the data


class DeviceData(eqx.Module):
    """All transitions, one packed row each, and the neighbour tables, resident on the device."""

    rows: Float[Array, "n width"]  # s, a, r, s', a', mask side by side: one gather per batch
    neighbours: Int[Array, "n k"] | None
    neighbours_next: Int[Array, "n k"] | None
    observation_dim: int = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def take(self, index: Int[Array, "..."]) -> Transition:
        """Return the transitions at `index`, with its shape as leading axes."""
        o, a = self.observation_dim, self.action_dim
        rows = self.rows[index]
        s, action, r, s_next, a_next, mask = jnp.split(
            rows, np.cumsum([o, a, 1, o, a]).tolist(), axis=-1
        )
        return Transition(s, action, r[..., 0], s_next, a_next, mask[..., 0])

    def batch(self, index: Int[Array, " batch"]) -> Batch:
        """Return the transitions at `index` with their contexts, where tables are loaded."""
        if self.neighbours is None or self.neighbours_next is None:
            return Batch(self.take(index))
        return Batch(
            self.take(index),
            self.take(self.neighbours[index]),
            self.take(self.neighbours_next[index]),
        )

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        """Draw `size` transitions uniformly with replacement."""
        return self.batch(jax.random.randint(key, (size,), 0, self.rows.shape[0]))


def fit_normaliser(data: Transitions, settings: DataSettings) -> Normaliser:
    """Measure the data: state mean and spread, constant dimensions, reward scale."""
    std = data.states.std(0, dtype=np.float64)
    constant = tuple(int(i) for i in np.flatnonzero(std < 1e-6))
    scale = settings.reward_scale
    if settings.normalise_returns:
        returns = data.info.episode_returns
        scale *= 1000.0 / max(max(returns) - min(returns), 1e-6)
    if settings.normalise_states:
        mean = data.states.mean(0, dtype=np.float64)
        # a constant dimension has no scale of its own, and dividing a simulator's offset by a tiny
        # number would blow it up: constant ones are only centred, nearly constant ones floored
        moving = std[std >= 1e-6]
        floor = 0.1 * float(np.median(moving)) if moving.size else 1.0
        spread = np.where(std < 1e-6, 1.0, np.maximum(std, floor))
    else:
        mean, spread = np.zeros_like(std), np.ones_like(std)
    return Normaliser(mean.astype(np.float32), spread.astype(np.float32), float(scale), constant)


def to_device(
    data: Transitions, normaliser: Normaliser, neighbours: Neighbours | None
) -> DeviceData:
    """Normalise, pack and move the data; it stays there for the whole run."""
    rows = np.concatenate(
        [
            (data.states - normaliser.mean) / normaliser.std,
            data.actions,
            (data.rewards * np.float32(normaliser.reward_scale))[:, None],
            (data.next_states - normaliser.mean) / normaliser.std,
            data.next_actions,
            data.mask[:, None],
        ],
        axis=1,
        dtype=np.float32,
    )
    return DeviceData(
        jnp.asarray(rows),
        None if neighbours is None else jnp.asarray(neighbours.state, jnp.int32),
        None if neighbours is None else jnp.asarray(neighbours.next_state, jnp.int32),
        data.observation_dim,
        data.action_dim,
    )
