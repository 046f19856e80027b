"""The dataset on the device, and batches drawn from it there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray
from numpy.typing import NDArray

from icql.algos.base import Batch, Transition, Window
from icql.data.arrays import IN_MEMORY, Floats, Room, blocks, moments
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval import Neighbours
from icql.retrieval.metric import medians_and_spreads
from icql.settings.contexts import DataSettings
from icql.training.corrective import Corrective
from icql.training.draws import Alias, draw

FAR_OUT = 30.0  # spreads from the median
Doubles = NDArray[np.float64]
HostOrDevice = Array | np.ndarray
Keys = Key[Array, " members"]


@dataclass(frozen=True)
class Normaliser:
    """What was done to states, actions and rewards, so that it can be recorded and undone."""

    mean: Floats
    std: Floats
    reward_scale: float
    reward_shift: float = 0.0
    limit: float | None = None  # of a normalised state, either way
    lead: int = 0  # steps by which actions come earlier than they were logged

    def states(self, logged: Floats) -> Floats:
        """States as they are trained on."""
        seen = (logged - self.mean) / self.std
        return seen if self.limit is None else np.clip(seen, -self.limit, self.limit)

    def rewards(self, logged: Floats) -> Floats:
        """Rewards as they are trained on."""
        return logged * np.float32(self.reward_scale) + np.float32(self.reward_shift)

    def actions(self, data: Transitions, rows: NDArray[np.integer]) -> tuple[Floats, Floats]:
        """a and a' as they are trained on: those of `lead` steps later, or of the episode's last.

        Of rows whose a' would be that of an end, which has none, the last action is a' too.
        """
        later = steps_later(data, rows, self.lead)
        a, a_next = data.actions[later], data.next_actions[later]
        last = (data.mask[later] == 0) & (later != rows)
        return a, np.where(last[:, None], a, a_next)


def steps_later(data: Transitions, rows: NDArray[np.integer], steps: int) -> NDArray[np.integer]:
    """The row that comes so many steps later in each one's episode, or the last before that.

    Rows of an episode lie together and in order; some may have been left out.
    """
    later = rows
    for ahead in range(1, steps + 1):
        there = np.minimum(rows + ahead, len(data) - 1)
        passed = data.step[there] - data.step[rows]
        same = (data.episode[there] == data.episode[rows]) & (passed > 0) & (passed <= steps)
        later = np.where(same, there, later)
    return later


class Episodes(eqx.Module):
    """Where each row stands in its episode, so that windows can be cut on the device."""

    last: Int[HostOrDevice, " n"]  # the last row of the unbroken run of steps that holds this one
    step: Int[HostOrDevice, " n"]
    to_go: Float[HostOrDevice, " n"]  # scaled, undiscounted, over the rest of the logged episode
    episode: Int[HostOrDevice, " n"]
    length: int = eqx.field(static=True)  # steps of a window

    def rows(self, index: Int[Array, " batch"]) -> tuple[Array, Array]:
        """The rows of the window that begins at each index, and which of them are valid.

        A row beyond the end of the run is invalid and stands for the run's last one.
        """
        rows = index[:, None] + jnp.arange(self.length)
        last = self.last[index][:, None]
        return jnp.minimum(rows, last), rows <= last


class DeviceData(eqx.Module):
    """Transitions on the device, one packed row each, and their neighbour tables.

    All of the data, or the part that some updates need (`icql.training.stream`): then `ids` says
    which of its rows are here, in ascending order, and can be asked for; rows behind them are
    reached through `tables` only, which, like `episodes`, count rows as they stand here.
    """

    rows: Float[Array, "n width"]  # s, a, r, s', a', mask side by side: one gather per batch
    tables: tuple[Int[Array, "m k"], ...]  # neighbours of s and of s', or nothing
    observation_dim: int = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)
    total: int = eqx.field(static=True)  # rows of the whole data
    episodes: Episodes | None = None
    ids: Int[Array, " m"] | None = None
    alias: Alias | None = None  # how rows are drawn; None: uniformly
    corrective: Corrective | None = None  # what is done to drawn rows; None: nothing

    def at(self, streams: Keys, step: int, size: int) -> tuple[DeviceData, float]:
        """Return the data that update `step` needs, and the update up to which it serves."""
        return self, math.inf

    def probe(self, size: int) -> Batch:
        """Return the first `size` transitions, or all, as a batch."""
        return self.batch(jnp.arange(min(size, self.total)))

    def take(self, index: Int[Array, "..."]) -> Transition:
        """Return the rows that stand at `index`, with its shape as leading axes."""
        return unpack(self.rows[index], self.observation_dim, self.action_dim)

    def batch(self, index: Int[Array, " batch"]) -> Batch:
        """Return the data's rows at `index` with their contexts or windows, where loaded."""
        if self.ids is not None:
            index = jnp.searchsorted(self.ids, index)
        if self.episodes is not None:
            return Batch(self.take(index), window=self.window(index))
        near: Any = [self.take(table[index]) for table in self.tables]
        return Batch(self.take(index), *near)

    def window(self, index: Int[Array, " batch"]) -> Window:
        """Return the steps of the episode that begin at the row which stands at each index."""
        assert self.episodes is not None
        e = self.episodes
        rows, valid = e.rows(index)
        return Window(self.take(rows), valid, e.step[rows], e.to_go[rows], e.episode[index])

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        """Draw `size` transitions with replacement, moved aside where rows are corrective."""
        batch = self.batch(draw(key, size, self.total, self.alias))
        if self.corrective is None:
            return batch
        moved = self.corrective(batch.query, jax.random.fold_in(key, 1))
        return eqx.tree_at(lambda b: b.query, batch, moved)


def fit_normaliser(data: Transitions, settings: DataSettings) -> Normaliser:
    """Measure the data: middle and spread of the states, reward scale."""
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
    if not settings.normalise_states:
        mean, spread = np.zeros(data.observation_dim), np.ones(data.observation_dim)
    elif settings.spread == "quartiles":
        mean, spread = medians_and_spreads(data.states)
    elif settings.spread == "plain":
        mean, std = moments(data.states)
        spread = std + 1e-3
    else:
        mean, std = moments(data.states)
        # a constant dimension has no scale of its own, and dividing a simulator's offset by a tiny
        # number would blow it up: constant ones are only centred, nearly constant ones floored
        moving = std[std >= 1e-6]
        floor = 0.1 * float(np.median(moving)) if moving.size else 1.0
        spread = np.where(std < 1e-6, 1.0, np.maximum(std, floor))
    states = mean.astype(np.float32), spread.astype(np.float32)
    limit, lead = state_limit(settings), settings.lead
    return Normaliser(*states, float(scale), settings.reward_shift, limit, lead)


def state_limit(settings: DataSettings) -> float | None:
    """How far a normalised state may be from 0; None: any distance.

    Quartiles do not see a sensor that says -9999, so a critic would: what is beyond stands for
    "far out", about as far as the standard deviation of 1,000 rows would let one of them be.
    """
    robust = settings.normalise_states and settings.spread == "quartiles"
    return FAR_OUT if robust else None


def reward_range(data: Transitions, normaliser: Normaliser) -> tuple[float, float]:
    """The least and the largest reward, on the scale that is trained on."""
    least, largest = data.rewards.min(initial=np.inf), data.rewards.max(initial=-np.inf)
    scale, shift = normaliser.reward_scale, normaliser.reward_shift
    return float(least) * scale + shift, float(largest) * scale + shift


def to_device(
    data: Transitions,
    normaliser: Normaliser,
    neighbours: Neighbours | None,
    *,
    length: int | None = None,
    alias: Alias | None = None,
    corrective: Corrective | None = None,
) -> DeviceData:
    """Normalise, pack and move the data; it stays there for the whole run.

    `length` asks for windows of that many steps (see :class:`Episodes`); `alias` says how rows are
    drawn, `corrective` what is then done to them.
    """
    episodes = None if length is None else find_episodes(data, normaliser, length)
    return DeviceData(
        jnp.asarray(pack(data, normaliser)),
        tuple(jnp.asarray(table, jnp.int32) for table in tables_of(neighbours)),
        data.observation_dim,
        data.action_dim,
        len(data),
        jax.tree.map(jnp.asarray, episodes),
        alias=alias,
        corrective=corrective,
    )


def tables_of(neighbours: Neighbours | None) -> tuple[NDArray[np.int32], ...]:
    """The rows of each state's context and of each next state's; nothing without contexts."""
    return () if neighbours is None else (neighbours.state, neighbours.next_state)


def unpack(rows: Float[Array, "... width"], o: int, a: int) -> Transition:
    """Return packed rows as transitions with states of `o` and actions of `a` numbers."""
    edges = np.cumsum([o, a, 1, o, a]).tolist()
    s, action, r, s_next, a_next, mask = jnp.split(rows, edges, axis=-1)
    return Transition(s, action, r[..., 0], s_next, a_next, mask[..., 0])


def row_width(data: Transitions) -> int:
    """Numbers of a packed row."""
    return 2 * (data.observation_dim + data.action_dim + 1)


def pack(
    data: Transitions,
    normaliser: Normaliser,
    rows: NDArray[np.integer] | None = None,
    out: Floats | None = None,
) -> Floats:
    """Normalised s, a, r, s', a', mask side by side, of these rows or of all: (n, width).

    They are written to `out`, where it is given.
    """
    count, width = len(data) if rows is None else len(rows), row_width(data)
    packed = np.empty((count, width), np.float32) if out is None else out
    for block in blocks(count, width):
        at = np.arange(block.start, block.stop) if rows is None else rows[block]
        a, a_next = normaliser.actions(data, at)
        packed[block] = np.concatenate(
            [
                normaliser.states(data.states[at]),
                a,
                normaliser.rewards(data.rewards[at])[:, None],
                normaliser.states(data.next_states[at]),
                a_next,
                data.mask[at][:, None],
            ],
            axis=1,
            dtype=np.float32,
        )
    return packed


def find_episodes(
    data: Transitions, normaliser: Normaliser, length: int, room: Room = IN_MEMORY
) -> Episodes:
    """Find the unbroken runs of steps in the data, and the return to go from each step.

    Rows of an episode must lie together and in order. A row that was left out (marked invalid)
    breaks a run. The last step of a truncated episode is no transition, so its reward is in no
    return to go. The arrays are NumPy's, in `room`.

    Raises:
        UserError: the rows are shuffled, or no run has `length` steps.
    """
    source = data.info.source or data.info.name
    begins, breaks = (np.ones(len(data), np.bool_) for _ in range(2))  # of episodes, of runs
    ordered = True
    for block in blocks(len(data) - 1):
        here, after = block, slice(block.start + 1, block.stop + 1)
        begins[after] = data.episode[after] != data.episode[here]
        steps = data.step[after].astype(np.int64) - data.step[here]
        breaks[after] = begins[after] | (steps != 1)
        ordered = ordered and bool((begins[after] | (steps > 0)).all())
    if not ordered or data.episodes() != begins.sum():
        raise UserError(
            "its transitions are shuffled; sequences need the steps of an episode in order.",
            where=source,
            fix="Give the log as it was recorded, or take an algorithm without sequences.",
        )
    edges = np.append(np.flatnonzero(breaks), len(data))
    longest = int(np.diff(edges).max())
    if longest < length:
        raise UserError(
            f"{length} steps are more than its longest episode has ({longest} transitions).",
            where=f"sequence length, {source}",
            fix="Take shorter sequences.",
        )
    last = room.empty("last", (len(data),), np.int32)
    to_go = room.empty("to_go", (len(data),), np.float32)
    ends = np.append(np.flatnonzero(begins)[1:], len(data)) - 1
    total = np.empty(len(ends))  # of all rewards up to each episode's end
    for block, rewards, before in _sums(data, normaliser):
        inside = slice(*np.searchsorted(ends, (block.start, block.stop)))
        total[inside] = (before + rewards)[ends[inside] - block.start]
    run, number = -1, -1
    for block, _, before in _sums(data, normaliser):
        runs, numbers = run + np.cumsum(breaks[block]), number + np.cumsum(begins[block])
        last[block] = edges[runs + 1] - 1
        to_go[block] = total[numbers] - before
        run, number = int(runs[-1]), int(numbers[-1])
    arrays: Any = {"last": last, "step": data.step, "to_go": to_go, "episode": data.episode}
    return Episodes(**arrays, length=length)


def _sums(data: Transitions, normaliser: Normaliser) -> Iterator[tuple[slice, Doubles, Doubles]]:
    """Blocks of rows, their scaled rewards, and the sum of all rewards before each row."""
    carried, scale, shift = 0.0, normaliser.reward_scale, normaliser.reward_shift
    for block in blocks(len(data)):
        rewards = data.rewards[block].astype(np.float64) * scale + shift
        sums = np.cumsum(np.append(carried, rewards))[1:]
        carried = float(sums[-1])
        yield block, rewards, sums - rewards
