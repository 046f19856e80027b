"""Episodes → transitions: the one place that knows what happens at the end of an episode.

The rule (D4RL's, and the one TD needs):

* a true terminal step is kept, with `mask` 0: nothing is bootstrapped from its successor;
* the last step of a truncated (timed-out) episode has no next action, so it is left out;
* a log's very last row is kept only if it is terminal and its successor was recorded;
* a row marked invalid is left out, and so is the row whose successor it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import (
    IN_MEMORY,
    Bools,
    Floats,
    Ints,
    Room,
    Rows,
    blocks,
    flags,
    matrix,
    not_finite,
    vector,
)
from icql.data.faults import Fault, refuse
from icql.data.signals import Signals
from icql.data.tasks import Task, get_task, is_task
from icql.errors import UserError

ACTION_CLIP = 1 - 1e-5  # keeps the log-density of a tanh policy finite


@dataclass(frozen=True)
class Steps:
    """Logged steps in time order, episode after episode: what every source produces.

    `terminals` marks steps after which the task ended; `timeouts` marks steps after which the
    log was cut; a step with both marks ended the task. `next_observations` is given where the
    source records the successor of each step; otherwise the successor is the next row of the
    same episode.
    """

    observations: Floats  # (T, obs)
    actions: Floats  # (T, act)
    rewards: Floats  # (T,)
    terminals: Bools  # (T,)
    timeouts: Bools  # (T,)
    next_observations: Floats | None = None  # (T, obs)
    valid: Bools | None = None  # (T,) rows that can be used at all; None means every row
    drop_last: bool = False  # leave the last row out even if it is terminal, as D4RL does

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def ends(self) -> Bools:
        """Rows (T,) after which an episode ends."""
        return self.terminals | self.timeouts

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that are there, by name."""
        named = {name: getattr(self, name) for name in _CHECKS}
        return {name: array for name, array in named.items() if array is not None}

    def checked(self, source: str) -> Steps:
        """These steps with every array in its final type and shape, or a `UserError`."""
        arrays: dict[str, Any] = {
            name: _CHECKS[name](name, array, source) for name, array in self.arrays().items()
        }
        if len({len(array) for array in arrays.values()}) > 1:
            lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
            raise UserError(
                f"the arrays have different lengths: {lengths}.",
                where=source,
                fix="Give one row per step in each of them.",
            )
        if not len(arrays["rewards"]):
            raise UserError("there are no steps in it (zero rows).", where=source)
        widths = {arrays[n].shape[1] for n in ("observations", "next_observations") if n in arrays}
        if len(widths) > 1:
            raise UserError(
                "`observations` and `next_observations` have different numbers of columns.",
                where=source,
            )
        return replace(self, **arrays)

    def finite(self, source: str) -> Steps:
        """These steps, if every number in a row that is not marked invalid is finite.

        Apart from `checked`, so that `validate` can describe broken data that was read.
        """
        for name, array in self.arrays().items():
            row, at, count = not_finite(array, self.valid)
            if row is not None:
                column = "" if array.ndim == 1 else f", column {at}"
                more = f" ({count} such rows)" if count > 1 else ""
                raise UserError(
                    f"`{name}` is not a finite number at row {row}{column}{more}.",
                    where=source,
                    fix="Repair these rows, or mark them with 0 in an array `valid` to have them "
                    "left out.",
                )
        return self

    def kept(self, source: str) -> Bools:
        """Rows (T,) that become transitions, by the rule above; a `UserError` if there are none."""
        if not self.ends.any():
            raise UserError(
                f"no episode ends in its {len(self):,} rows: "
                "neither `terminals` nor `timeouts` is ever set.",
                where=source,
                fix="Set `terminals` to 1 where the task ended and `timeouts` to 1 on the last "
                "step of every episode that was cut off.",
            )
        keep = self.complete()
        if self.valid is not None:
            keep &= self.valid & (self.terminals | np.append(self.valid[1:], False))
        if not keep.any():
            raise UserError(f"its {len(self):,} rows hold no whole transition.", where=source)
        return keep

    def complete(self) -> Bools:
        """Rows (T,) with all they need: terminal, or followed by a row of their episode."""
        complete: Bools = self.terminals | ~self.timeouts
        recorded = self.next_observations is not None and not self.drop_last
        complete[-1] = self.terminals[-1] and recorded
        return complete

    def without_last_rule(self) -> Steps:
        """The same transitions without the rule about the log's very last row.

        A terminal last row that is no transition (D4RL's rule, or no recorded successor) is marked
        as cut, for formats that would otherwise make it one.
        """
        terminals, timeouts = self.terminals, self.timeouts
        if terminals[-1] and not self.complete()[-1]:
            terminals, timeouts = terminals.copy(), timeouts.copy()
            terminals[-1], timeouts[-1] = False, True
        return replace(self, terminals=terminals, timeouts=timeouts, drop_last=False)


_CHECKS: dict[str, Callable[[str, Any, str], NDArray[Any]]] = {
    "observations": matrix,
    "actions": matrix,
    "rewards": vector,
    "terminals": flags,
    "timeouts": flags,
    "next_observations": matrix,
    "valid": flags,
}


@dataclass(frozen=True)
class DataInfo:
    """Where the transitions come from and what was left out on the way."""

    name: str
    source: str = ""  # file or id, for messages
    task: str | None = None  # name in the task table, where known
    dropped: int = 0  # invalid rows left out (NaN, marked invalid)
    warnings: tuple[str, ...] = ()
    episode_returns: tuple[float, ...] = ()  # undiscounted, of whole logged episodes
    episode_lengths: tuple[int, ...] = ()
    episode_scores: tuple[float, ...] = ()  # what the task scores, before normalisation
    signals: Signals = field(default_factory=Signals)  # names, units, bounds of the numbers

    @property
    def own(self) -> bool:
        """Whether it is a log of one's own, in units of its own: D4RL's task is not its task."""
        return self.task is None or not (is_task(self.task) and get_task(self.task).d4rl)


@dataclass(frozen=True)
class Transitions:
    """N transitions (s, a, r, s', a') with terminal mask, episode id and step in the episode.

    The arrays are read-only, so `content_hash` can never be out of date. They may be mapped files
    (`icql.data.formats.store`), larger than memory: work on them block by block.
    """

    states: Floats  # (N, obs)
    actions: Floats  # (N, act)
    rewards: Floats  # (N,)
    next_states: Floats  # (N, obs)
    next_actions: Floats  # (N, act); zero where mask is 0
    mask: Floats  # (N,) 0 on terminal transitions, else 1
    episode: Ints  # (N,)
    step: Ints  # (N,)
    info: DataInfo = field(default_factory=lambda: DataInfo("unnamed"))

    def __post_init__(self) -> None:
        for name, array in self._arrays().items():
            if len(array) != len(self.rewards):
                raise ValueError(f"{name} has {len(array)} rows, rewards {len(self.rewards)}")
            frozen = array.view()
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)

    @classmethod
    def from_steps(
        cls,
        steps: Steps,
        info: DataInfo | None = None,
        *,
        task: Task | None = None,
        action_clip: float | None = ACTION_CLIP,
        room: Room = IN_MEMORY,
    ) -> Transitions:
        """Turn logged steps into the transitions TD needs (the rule at the top of this module).

        On a terminal transition s' is the recorded successor where there is one and otherwise s
        itself, never a row of another episode; a' is zero.

        Args:
            steps: the log.
            info: name and source, for messages; counts and episode returns are filled in here.
            task: says what an episode scores.
            action_clip: actions are clipped to ±this; None leaves them as they are.
            room: where the transitions are put.

        Raises:
            UserError: if the arrays do not fit together, no episode ends, or nothing is left.
        """
        info = info or DataInfo("unnamed")
        source = info.source or info.name
        steps = steps.checked(source).finite(source)
        keep, ends = steps.kept(source), steps.ends
        count = int(keep.sum())
        starts = np.flatnonzero(np.append(True, ends[:-1]))
        o, a = steps.observations.shape[1], steps.actions.shape[1]
        shapes = {"states": (o,), "actions": (a,), "next_states": (o,), "next_actions": (a,)}
        arrays = {
            f.name: room.empty(
                f.name,
                (count, *shapes.get(f.name, ())),
                np.int32 if f.name in ("episode", "step") else np.float32,
            )
            for f in fields(cls)
            if f.name != "info"
        }
        filled, wide, episodes = 0, 0, 0
        for block in blocks(len(steps), o + a):
            rows = block.start + np.flatnonzero(keep[block])
            ended = np.cumsum(ends[block])
            episode = episodes + (ended - ends[block])[keep[block]]  # ends before the row
            episodes += int(ended[-1])
            part = _transitions(steps, rows, action_clip)
            part |= {"episode": np.asarray(episode), "step": rows - starts[episode]}
            for name, values in part.items():
                arrays[name][filled : filled + len(rows)] = values
            filled += len(rows)
            wide += int((np.abs(steps.actions[rows]) > 1).any(axis=1).sum())
        warnings = list(info.warnings)
        if steps.valid is not None and not steps.valid.all():
            warnings.append(
                f"{source}: {(~steps.valid).sum():,} of {len(steps):,} rows are marked invalid and "
                f"left out; {count:,} of {steps.complete().sum():,} transitions remain."
            )
        if wide:
            clipped = f"they were clipped to ±{action_clip:g}." if action_clip is not None else ""
            unit = "policies act in [-1, 1], so scale the actions to that range."
            warnings.append(
                f"{source}: {wide:,} of {count:,} actions lie beyond ±1: {clipped or unit}"
            )
        info = _describe(info, steps, starts, np.flatnonzero(ends), task)
        return cls(**arrays, info=replace(info, warnings=tuple(warnings)))

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        kind = "choices" if self.info.signals.choices else "numbers"
        sizes = f"states of {self.observation_dim}, actions of {self.action_dim} {kind}"
        whole = f", {len(self.info.episode_lengths):,} whole episodes"
        return f"<Transitions {self.info.name}: {len(self):,} rows{whole}, {sizes}>"

    @property
    def observation_dim(self) -> int:
        """Dimension of a state."""
        return int(self.states.shape[1])

    @property
    def action_dim(self) -> int:
        """Dimension of an action."""
        return int(self.actions.shape[1])

    def subset(self, rows: NDArray[np.integer] | Bools | slice) -> Transitions:
        """The transitions at `rows`, in that order; `info` stays that of the whole data."""
        return Transitions(
            **{name: array[rows] for name, array in self._arrays().items()}, info=self.info
        )

    def content_hash(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all arrays, as hexadecimal digits."""
        return self._digest

    def episodes(self) -> int:
        """How many episodes have a transition here."""
        seen = [np.unique(self.episode[block]) for block in blocks(len(self))]
        return len(np.unique(np.concatenate(seen))) if seen else 0

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, array in self._arrays().items():
            digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
            for block in blocks(len(array), array[:1].size):
                digest.update(np.ascontiguousarray(array[block]).data)
        return digest.hexdigest()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "info"}


@dataclass(frozen=True)
class Source:
    """Steps as they were logged, with their name and task: what readers give and writers take."""

    steps: Steps
    info: DataInfo
    task: Task | None = None
    faults: tuple[Fault, ...] = ()  # what the reader found; with errors, steps hold NaN for them
    gaps: Mapping[str, int] = field(default_factory=dict)  # column → empty cells that it had
    mapping: str | None = None  # the mapping file that says what columns are, there or not

    def sound(self) -> Source:
        """This log, if its reader found no errors in it; else a `LogError` with all of them."""
        if self.faults:
            refuse(self.faults)
        return self

    def transitions(self, room: Room = IN_MEMORY) -> Transitions:
        """The transitions (s, a, r, s', a') of these steps, put into `room`."""
        actions = self.sound().steps.actions
        # Where bounds are unknown, only actions that lie in ±1 anyway are clipped.
        unit = (self.task is not None and self.task.unit_actions) or not any(
            (abs(actions[rows]) > 1).any() for rows in blocks(*actions.shape)
        )
        clip = ACTION_CLIP if unit and not self.info.signals.choices else None
        return Transitions.from_steps(
            self.steps, self.info, task=self.task, action_clip=clip, room=room
        )


def _transitions(steps: Steps, rows: Rows, clip: float | None) -> dict[str, NDArray[Any]]:
    """(s, a, r, s', a') and mask of these rows of the log."""
    terminal = steps.terminals[rows]
    successors = np.where(terminal, rows, rows + 1)
    actions, next_actions = steps.actions[rows], steps.actions[successors]
    if clip is not None:
        actions, next_actions = (np.clip(x, -clip, clip) for x in (actions, next_actions))
    next_actions[terminal] = 0
    following = steps.next_observations
    return {
        "states": steps.observations[rows],
        "actions": actions,
        "rewards": steps.rewards[rows],
        "next_states": steps.observations[successors] if following is None else following[rows],
        "next_actions": next_actions,
        "mask": ~terminal,
    }


def _describe(
    info: DataInfo, steps: Steps, starts: Rows, last_rows: Rows, task: Task | None
) -> DataInfo:
    """`info` with counts and, for every episode that ended and is all valid, its statistics."""
    returns, lengths, scores = [], [], []
    # a log may stop inside its last episode
    for first, last in zip(starts[: len(last_rows)].tolist(), last_rows.tolist(), strict=True):
        if steps.valid is not None and not steps.valid[first : last + 1].all():
            continue
        rewards = steps.rewards[first : last + 1].astype(np.float64)
        returns.append(float(rewards.sum()))
        lengths.append(len(rewards))
        if task is not None:
            scores.append(task.score_of(rewards))
    return replace(
        info,
        task=info.task if task is None else task.name,
        dropped=0 if steps.valid is None else int((~steps.valid).sum()),
        episode_returns=tuple(returns),
        episode_lengths=tuple(lengths),
        episode_scores=tuple(scores),
    )
