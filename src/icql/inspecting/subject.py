"""One run under inspection: what it would do in states, what it thinks of them, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.evidence.alarm import Alarm
from icql.evidence.behind import WITHIN, Doubles, Grounds, Rows, outcomes
from icql.files import default_cache_dir
from icql.graph.critic import GraphCritic
from icql.nn.policies import MemoryPolicy
from icql.retrieval import ContextSettings, Retriever, find_space
from icql.settings.grid import Member
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder
from icql.training.trained import alarm_space, critic_on, has_critic, load_policy, run_discount
from icql.training.trained_critic import TrainedCritic, Which

BLOCK = 1024  # states at once
AROUND = 20  # nearest rows shown where no critic says how many count
SHOWN = 20  # of the rows behind a value, at most
BINS = 12  # of the outcomes nearby

Fields = dict[str, NDArray[Any]]  # by name, each with a leading axis of states


class Subject:
    """A finished run with its data, ready to be asked.

    Raises:
        UserError: there is no such run, or it is not finished.
    """

    def __init__(self, run: str | Path, member: int = 0) -> None:
        self.folder = RunFolder.open(run)
        self.plan = Plan.read(self.folder)
        self.policy = load_policy(run)
        self.member = _member(self.policy.members, member)
        self._which: Which = {"seed": self.member.seed, "settings": self.member.settings}
        self.signals = self.policy.signals
        self.data: Transitions
        self.alarm: Alarm | None = None
        self.critic: TrainedCritic | GraphCritic | None = None

    def prepare(self, data: Transitions, alarm: Alarm | None) -> None:
        """Take the run's data and its alarm, which two runs may share."""
        self.data, self.alarm = data, alarm
        if has_critic(self.folder.path):
            critic = critic_on(self.folder.path, data)
            chunked = self.remembers and isinstance(critic, TrainedCritic)
            self.critic = None if chunked else critic  # values of chunks are not those of actions

    @property
    def remembers(self) -> bool:
        """Whether the policy's action depends on what it did before."""
        return isinstance(self.policy.policies.policy, MemoryPolicy)

    @property
    def space(self) -> Any:
        """Where the alarm measures distances."""
        return alarm_space(self.plan)

    @property
    def explains(self) -> bool:
        """Whether values fall apart into parts of logged rows."""
        if isinstance(self.critic, GraphCritic):
            return True
        return self._layered or (self.critic is not None and self.critic.critics.ridge is not None)

    @property
    def _layered(self) -> bool:
        critic = self.critic
        return isinstance(critic, TrainedCritic) and critic.critics.td is not None

    @cached_property
    def outcome(self) -> Doubles:
        """What followed every logged row, discounted as the run does: (N,)."""
        if self.critic is not None:
            return self.critic.outcome
        return outcomes(self.data, run_discount(self.plan))

    def columns(self, rows: Rows) -> Fields:
        """What the map and the episodes show of logged rows: one number each."""
        states, logged = self.data.states[rows], self.data.actions[rows]
        chosen = self._act(states)
        found: Fields = {"outcome": self.outcome[rows], "away": self._away(chosen, logged)}
        if self.critic is not None:
            found["value"], found["logged_value"] = _by_block(
                self._values, states, chosen, logged
            ).T
            found["advantage"] = found["logged_value"] - found["value"]
        if self.alarm is not None:
            found["far"] = self._far(states, rows)
        return found

    def _q(self, states: Any, actions: Any) -> NDArray[Any]:
        """The critic's values (B,); a graph is the same for all members."""
        assert self.critic is not None
        if isinstance(self.critic, GraphCritic):
            return self.critic.q(states, actions)
        return self.critic.q(states, actions, **self._which)

    def _values(self, states: Any, chosen: Any, logged: Any) -> NDArray[Any]:
        """Values (B, 2) of two actions in each state: asked at once, contexts are found once."""
        both = self._q(np.concatenate([states, states]), np.concatenate([chosen, logged]))
        return np.asarray(both).reshape(2, -1).T

    def details(self, states: NDArray[np.float32], rows: Rows | None) -> Fields:
        """All that is shown of states (B, obs): `rows` of the log, or None for states of no log."""
        parts = []
        for i in range(0, len(states), BLOCK):
            some = None if rows is None else rows[i : i + BLOCK]
            parts.append(self._details(states[i : i + BLOCK], some))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _details(self, states: NDArray[np.float32], rows: Rows | None) -> Fields:
        chosen = self._act(states)
        logged = None if rows is None else self.data.actions[rows]
        found: Fields = {"action": self.in_units(chosen)}
        if logged is not None:
            found["away"] = self._away(chosen, logged)
        if self.alarm is not None:
            found["far"] = self._far(states, rows)
        near, distance = self._near(states, rows, chosen, found)
        if self.critic is not None and logged is not None and "logged_value" not in found:
            found["logged_value"] = np.asarray(self._q(states, logged))
        around = self.outcome[near]
        for name in ("value", "logged_value"):
            if name in found:
                found[f"{name}_rank"] = _rank(around, found[name])
        found |= _histogram(around)
        shown = slice(None), slice(SHOWN)
        found |= {
            "near": near[shown],
            "near_episode": np.asarray(self.data.episode)[near[shown]],
            "near_step": np.asarray(self.data.step)[near[shown]],
            "near_distance": distance[shown],
            "near_outcome": around[shown],
        }
        if self._layered:
            assert isinstance(self.critic, TrainedCritic)
            traced = self.critic.trace(states, chosen, contexts=near, **self._which)
            found["trace"] = np.asarray(traced).T
        return found

    def _near(
        self, states: NDArray[np.float32], rows: Rows | None, chosen: Any, found: Fields
    ) -> tuple[Rows, Doubles]:
        """The rows behind the values, or else the nearest ones; values go to `found`."""
        if self.critic is not None and self.explains:
            n, asked = len(states), chosen
            if rows is not None:  # of both actions at once: contexts are found once
                states = np.concatenate([states, states])
                asked = np.concatenate([chosen, self.data.actions[rows]])
            if isinstance(self.critic, GraphCritic):
                every = self.critic.evidence(states, asked)
            else:
                every = self.critic.evidence(states, asked, **self._which)
            why = _part(every, slice(n))
            found |= {"value": why.value, "prior": why.prior, "near_part": why.influence[:, :SHOWN]}
            found["rest_part"] = why.influence[:, SHOWN:].sum(1)
            if rows is not None:
                also = _part(every, slice(n, None))
                found["logged_value"] = also.value
                found["near_logged_part"] = _in_order(also, why.rows)[:, :SHOWN]
            return why.rows, why.distance
        if self.critic is not None:
            found["value"] = np.asarray(self._q(states, chosen))
        near, distance = self._retriever(states, rows=rows)
        return near, np.asarray(distance, np.float64)

    @cached_property
    def _retriever(self) -> Retriever:
        """Finds the nearest logged states of other episodes, where the critic has no contexts."""
        lengths = np.unique(self.data.episode, return_counts=True)[1]
        others = len(self.data) - int(lengths.max())
        alone = others < 1  # a single episode: its own rows are all there is
        context = ContextSettings(
            k=min(AROUND, len(self.data) - 1 if alone else others),
            space=self.space,
            exclude="self" if alone else "episode",
        )
        found = find_space(self.data, context, cache_dir=default_cache_dir())
        return Retriever(self.data.states, None, context, episode=self.data.episode, space=found)

    def in_units(self, actions: NDArray[np.floating]) -> NDArray[Any]:
        """Actions (B, act) in the log's units; of choices the number of each, (B, 1)."""
        if self.signals.choices:
            return np.asarray(actions.argmax(-1)[:, None], np.float32)
        return self.signals.in_units(actions)

    def _act(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        def act(some: Any) -> NDArray[Any]:
            return self.policy.act(some, normalised=True, **self._which)

        return _by_block(act, states).astype(np.float32)[:, : self.data.action_dim]

    def _away(self, chosen: NDArray[np.floating], logged: NDArray[np.floating]) -> Doubles:
        """How far actions are from the logged ones: a share of their range, 0 or 1 of choices."""
        if self.signals.choices:
            return (chosen.argmax(-1) != logged.argmax(-1)).astype(np.float64)
        squares = np.square(chosen.astype(np.float64) - logged).mean(-1)
        return np.asarray(np.sqrt(squares) / 2)

    def _far(self, states: NDArray[np.float32], rows: Rows | None) -> Doubles:
        """How far states are from the nearest logged one; logged ones from other episodes'."""
        assert self.alarm is not None
        if rows is None:
            return self.alarm(states).distance
        return self.alarm.logged(states, rows)


def _member(members: tuple[Member, ...], place: int) -> Member:
    """The one that is shown, counted from 0."""
    if not 0 <= place < len(members):
        every = "; ".join(f"{i}: {member.label}" for i, member in enumerate(members))
        raise UserError(f"there is no member {place}; there are {every}.", where="--member")
    return members[place]


def _by_block(ask: Callable[..., Any], *arrays: Any) -> NDArray[Any]:
    """What `ask` says of rows, asked of some at a time: contexts of all would fill the memory."""
    count = len(arrays[0])
    every = range(0, max(count, 1), BLOCK)
    return np.concatenate([np.asarray(ask(*(x[i : i + BLOCK] for x in arrays))) for i in every])


def _part(why: Grounds, some: slice) -> Grounds:
    """The grounds of some of the pairs."""
    return Grounds(**{f.name: getattr(why, f.name)[some] for f in fields(why)})


def _in_order(why: Grounds, rows: Rows) -> Doubles:
    """Influences of the same rows in another order: (B, k)."""
    order = np.argsort(why.rows, axis=1, kind="stable")
    back = np.argsort(np.argsort(rows, axis=1, kind="stable"), axis=1, kind="stable")
    influence = np.take_along_axis(why.influence, order, 1)
    return np.take_along_axis(influence, back, 1)


def _rank(around: Doubles, value: NDArray[np.floating]) -> Doubles:
    """The share of outcomes (B, k) that are below values (B,)."""
    below = (around < value[:, None]) + 0.5 * (around == value[:, None])
    return np.asarray(below.mean(1))


def _histogram(around: Doubles) -> Fields:
    """Outcomes (B, k) counted in bins of equal width, and between which nine tenths lie."""
    low, high = around.min(1), around.max(1)
    wide = np.maximum(high - low, np.finfo(np.float64).tiny)
    place = ((around - low[:, None]) / wide[:, None] * BINS).astype(np.int64).clip(0, BINS - 1)
    counts = (place[:, :, None] == np.arange(BINS)).sum(1)
    span = np.stack([low, high], 1)
    return {"counts": counts, "span": span, "most": np.quantile(around, WITHIN, axis=1).T}
