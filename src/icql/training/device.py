"""The dataset on the device, and batches drawn from it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import NDArray

from icql.algos.base import Batch, DataSettings, Transition, Window
from icql.data.transitions import Floats, Transitions
from icql.errors import UserError
from icql.retrieval import Neighbours


@dataclass(frozen=True)
class Normaliser:
    """What was done to states and rewards, so that it can be recorded and undone."""

    mean: Floats
    std: Floats
    reward_scale: float


class Episodes(eqx.Module):
    """Where each row stands in its episode, so that windows can be cut on the device."""

    last: Int[Array, " n"]  # the last row of the unbroken run of steps that holds this one
    step: Int[Array, " n"]
    to_go: Float[Array, " n"]  # scaled, undiscounted, over the rest of the logged episode
    episode: Int[Array, " n"]
    length: int = eqx.field(static=True)  # steps of a window

    def rows(self, index: Int[Array, " batch"]) -> tuple[Array, Array]:
        """The rows of the window that begins at each index, and which of them are valid.

        A row beyond the end of the run is invalid and stands for the run's last one.
        """
        rows = index[:, None] + jnp.arange(self.length)
        last = self.last[index][:, None]
        return jnp.minimum(rows, last), rows <= last


class DeviceData(eqx.Module):
    """All transitions, one packed row each, and the neighbour tables, resident on the device."""

    rows: Float[Array, "n width"]  # s, a, r, s', a', mask side by side: one gather per batch
    neighbours: Int[Array, "n k"] | None
    neighbours_next: Int[Array, "n k"] | None
    observation_dim: int = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)
    episodes: Episodes | None = None

    def take(self, index: Int[Array, "..."]) -> Transition:
        """Return the transitions at `index`, with its shape as leading axes."""
        o, a = self.observation_dim, self.action_dim
        rows = self.rows[index]
        s, action, r, s_next, a_next, mask = jnp.split(
            rows, np.cumsum([o, a, 1, o, a]).tolist(), axis=-1
        )
        return Transition(s, action, r[..., 0], s_next, a_next, mask[..., 0])

    def batch(self, index: Int[Array, " batch"]) -> Batch:
        """Return the transitions at `index` with their contexts or windows, where loaded."""
        if self.episodes is not None:
            return Batch(self.take(index), window=self.window(index))
        if self.neighbours is None or self.neighbours_next is None:
            return Batch(self.take(index))
        return Batch(
            self.take(index),
            self.take(self.neighbours[index]),
            self.take(self.neighbours_next[index]),
        )

    def window(self, index: Int[Array, " batch"]) -> Window:
        """Return the steps of the episode that begin at each index."""
        assert self.episodes is not None
        e = self.episodes
        rows, valid = e.rows(index)
        return Window(self.take(rows), valid, e.step[rows], e.to_go[rows], e.episode[index])

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        """Draw `size` transitions uniformly with replacement."""
        return self.batch(jax.random.randint(key, (size,), 0, self.rows.shape[0]))


def fit_normaliser(data: Transitions, settings: DataSettings) -> Normaliser:
    """Measure the data: state mean and spread, reward scale."""
    std = data.states.std(0, dtype=np.float64)
    scale = settings.reward_scale
    if settings.normalise_returns:
        returns = data.info.episode_returns
        if not returns:
            raise UserError(
                "the data has no whole episode whose return could set the scale.",
                where="data.normalise_returns",
                fix="Turn it off and give --data.reward-scale.",
            )
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
    return Normaliser(mean.astype(np.float32), spread.astype(np.float32), float(scale))


def to_device(
    data: Transitions,
    normaliser: Normaliser,
    neighbours: Neighbours | None,
    *,
    length: int | None = None,
) -> DeviceData:
    """Normalise, pack and move the data; it stays there for the whole run.

    `length` asks for windows of that many steps (see :class:`Episodes`).
    """
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
        None if length is None else find_episodes(data, normaliser.reward_scale, length),
    )


def find_episodes(data: Transitions, reward_scale: float, length: int) -> Episodes:
    """Find the unbroken runs of steps in the data, and the return to go from each step.

    Rows of an episode must lie together and in order. A row that was left out (marked invalid)
    breaks a run. The last step of a truncated episode is no transition, so its reward is in no
    return to go.

    Raises:
        UserError: the rows are shuffled, or no run has `length` steps.
    """
    source = data.info.source or data.info.name
    begins = np.append(True, np.diff(data.episode) != 0)  # of episodes
    later = np.diff(data.step) > 0
    if len(np.unique(data.episode)) != begins.sum() or not (later | begins[1:]).all():
        raise UserError(
            "its transitions are shuffled; sequences need the steps of an episode in order.",
            where=source,
            fix="Give the log as it was recorded, or take an algorithm without sequences.",
        )
    breaks = begins | np.append(True, np.diff(data.step) != 1)
    last = _per_group(np.append(np.flatnonzero(breaks)[1:], len(data)) - 1, breaks)
    longest = int(np.diff(np.append(np.flatnonzero(breaks), len(data))).max())
    if longest < length:
        raise UserError(
            f"{length} steps are more than its longest episode has ({longest} transitions).",
            where=f"sequence length, {source}",
            fix="Take shorter sequences.",
        )
    rewards = data.rewards.astype(np.float64) * reward_scale
    before = np.cumsum(rewards) - rewards  # of all rows before this one
    ends = np.append(np.flatnonzero(begins)[1:], len(data)) - 1
    to_go = _per_group((before + rewards)[ends], begins) - before
    return Episodes(
        jnp.asarray(last, jnp.int32),
        jnp.asarray(data.step, jnp.int32),
        jnp.asarray(to_go, jnp.float32),
        jnp.asarray(data.episode, jnp.int32),
        length,
    )


def _per_group(values: NDArray[Any], begins: NDArray[np.bool_]) -> NDArray[Any]:
    """One value per group, given to each of its rows."""
    spread: NDArray[Any] = values[np.cumsum(begins) - 1]
    return spread
