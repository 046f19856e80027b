"""What an online run has seen: the journal on the host, and the replay on the device.

The journal holds rows (time, environment) in the order they came. It is the medium-replay dataset
of D4RL's protocol, what the replay is rebuilt from after a kill, and what tells how far each
environment's episode has got. On disk it is a folder of parts, each written once and whole. The
replay is a ring of packed rows, written and sampled inside compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.base import Transition
from icql.data.sealed_arrays import read_arrays, write_arrays
from icql.data.transitions import Steps
from icql.errors import UserError
from icql.online.envs import Bools, EnvGroup, Floats

PART_BYTES = 15_000_000  # of uncompressed arrays in one file
ARRAYS = ("observations", "actions", "rewards", "successors", "terminals", "timeouts")
Episode = tuple[int, slice]  # environment, rows


@dataclass
class Journal:
    """The first `length` rows are written; the arrays have room for the whole run."""

    observations: Floats  # (rows, envs, obs)
    actions: Floats  # (rows, envs, act)
    rewards: Floats  # (rows, envs)
    successors: Floats  # (rows, envs, obs)
    terminals: Bools  # (rows, envs)
    timeouts: Bools  # (rows, envs)
    length: int = 0
    saved: int = 0  # rows that are on disk
    of: str = ""  # what tells its parts from those of other runs

    @staticmethod
    def empty(rows: int, group: EnvGroup, of: str = "") -> Journal:
        """Return a journal with room for `rows` steps of every environment of the group."""
        shape = (rows, len(group.observations))
        s, s_next = np.zeros((2, *shape, group.observation_dim), np.float32)
        a, r = np.zeros((*shape, group.action_dim), np.float32), np.zeros(shape, np.float32)
        terminals, timeouts = np.zeros((2, *shape), np.bool_)
        return Journal(s, a, r, s_next, terminals, timeouts, of=of)

    def step(self, group: EnvGroup, actions: Floats) -> Floats:
        """Step the group, append what happened, and return it packed for the device replay."""
        t = self.length
        self.observations[t], self.actions[t] = group.observations, actions
        outcome = group.step(actions)
        self.successors[t], self.rewards[t] = outcome.successors, outcome.rewards
        self.terminals[t], self.timeouts[t] = outcome.terminals, outcome.timeouts
        self.length += 1
        return self.packed(t, t + 1)

    def packed(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) as (s, a, r, s', mask), time by time, environment by environment."""
        rows = slice(start, stop)
        packed = np.concatenate(
            [
                self.observations[rows],
                self.actions[rows],
                self.rewards[rows, :, None],
                self.successors[rows],
                1 - self.terminals[rows, :, None].astype(np.float32),
            ],
            -1,
        )
        return packed.reshape(-1, packed.shape[-1])

    def episodes(self, rows: int | None = None) -> list[Episode]:
        """Every episode among the first `rows` rows, in the order of their ends; cut ones last."""
        length = self.length if rows is None else rows
        ended = (self.terminals | self.timeouts)[:length]
        found = []
        for env in range(ended.shape[1]):
            stops = [*(np.flatnonzero(ended[:, env]) + 1).tolist(), length]
            starts = [0, *stops[:-1]]
            pairs = zip(starts, stops, strict=True)
            found += [(env, slice(start, stop)) for start, stop in pairs if start < stop]
        return sorted(found, key=lambda episode: (episode[1].stop, episode[0]))

    def steps(self, episodes: list[Episode]) -> Steps:
        """Episodes one after another; one that was cut by the end of the log is timed out."""

        def join(array: np.ndarray) -> np.ndarray:
            return np.concatenate([array[rows, env] for env, rows in episodes])

        terminals, timeouts = join(self.terminals), join(self.timeouts)
        last = np.cumsum([rows.stop - rows.start for _, rows in episodes]) - 1
        timeouts[last] = ~terminals[last]
        s, a, r = join(self.observations), join(self.actions), join(self.rewards)
        return Steps(s, a, r, terminals, timeouts, join(self.successors))

    def save(self, folder: Path) -> None:
        """Write the rows that are not on disk yet, as parts named by their first row."""
        row_bytes = sum(getattr(self, name)[:1].nbytes for name in ARRAYS)
        rows = max(1, PART_BYTES // row_bytes)
        while self.saved < self.length:
            stop = min(self.saved + rows, self.length)
            part = {name: getattr(self, name)[self.saved : stop] for name in ARRAYS}
            path = folder / f"rows-{self.saved:09d}.npz"
            write_arrays(path, part, f"{self.of}/{path.name}")
            self.saved = stop

    def load(self, folder: Path, rows: int | None = None) -> None:
        """Read the parts up to `rows`; later ones, left by a kill, are removed."""
        for path in sorted(folder.glob("rows-*.npz")):
            if rows is not None and int(path.stem.removeprefix("rows-")) >= rows:
                path.unlink()
                continue
            part = read_arrays(path, f"{self.of}/{path.name}")
            stop = self.length + len(part["rewards"])
            if path.stem != f"rows-{self.length:09d}" or stop > len(self.rewards):
                raise UserError(
                    f"does not go on from row {self.length}.",
                    where=str(path),
                    fix="The folder is incomplete: collect into a new one.",
                )
            for name in ARRAYS:
                getattr(self, name)[self.length : stop] = part[name]
            self.length = stop
        if rows is not None and self.length != rows:
            raise UserError(
                f"holds {self.length} rows, but {rows} were saved.",
                where=str(folder),
                fix="The folder is incomplete: collect into a new one.",
            )
        self.saved = self.length

    def restore(self, group: EnvGroup) -> None:
        """Bring the environments to where they stood after the last row."""
        for env in range(self.rewards.shape[1]):
            ends = np.flatnonzero((self.terminals | self.timeouts)[: self.length, env])
            start = int(ends[-1]) + 1 if len(ends) else 0
            group.restore(env, len(ends), self.actions[start : self.length, env])
            last = self.length - 1
            if start <= last and (group.observations[env] != self.successors[last, env]).any():
                raise UserError(
                    "replaying the actions of an episode in progress led to another state.",
                    where=f"environment {env}",
                    fix="Resume with the simulator version and machine that the run began with.",
                )


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
        slots = (self.seen + jnp.arange(len(new))) % len(self.rows)
        return replace(self, rows=self.rows.at[slots].set(new), seen=self.seen + len(new))

    def sample(self, key: PRNGKeyArray, n: int) -> Transition:
        """`n` transitions drawn uniformly, with replacement, from those written."""
        filled = jnp.minimum(self.seen, len(self.rows))
        return self.unpack(self.rows[jax.random.randint(key, (n,), 0, filled)])

    def unpack(self, rows: Float[Array, "n width"]) -> Transition:
        """(s, a, r, s', mask) of packed rows; a' is the policy's to draw, so it stays zero."""
        d, m = self.observation_dim, self.action_dim
        s, a, r, s_next, mask = jnp.split(rows, [d, d + m, d + m + 1, 2 * d + m + 1], axis=-1)
        return Transition(s, a, r[..., 0], s_next, jnp.zeros_like(a), mask[..., 0])
