"""One run, or two on the same data, as the page shows them: map, states and episodes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql._version import __version__
from icql.data.pictures import fit_plane
from icql.data.signals import Names, Signals
from icql.errors import UserError
from icql.evidence.alarm import Alarm, fit_alarm, some_rows
from icql.inspecting.choice import EpisodeList, spread
from icql.inspecting.subject import Fields, Subject
from icql.progress import Display
from icql.training.trained import data_of
from icql.training.trained_critic import TrainedCritic

MAPPED = 20_000  # states at most on the map
KEPT, KEPT_NUMBERS = 2_000, 800_000  # states of a file with all their details, numbers of these
PER_RUN = 200  # numbers of one state's details, about
EPISODES, EPISODE_ROWS = 24, 8_000  # of a file, in all
LONGEST = 1_000  # rows of one episode
NAMED_EPISODES = 20_000  # to choose from on a served page


class View:
    """What both pages are made of.

    Raises:
        UserError: a run is not finished, its data is elsewhere, or two runs saw different data.
    """

    def __init__(
        self,
        runs: Sequence[str | Path],
        *,
        dataset: str | Path | None,
        rate: float,
        display: Display,
        member: int = 0,
    ) -> None:
        self.runs = [Subject(run, member) for run in runs]
        hashes = {subject.folder.manifest["data_hash"] for subject in self.runs}
        if len(hashes) > 1:
            first, second = (subject.folder.path for subject in self.runs)
            raise UserError(
                f"was made on other data than {first}; two runs are shown on one map of the "
                "same states.",
                where=str(second),
                fix="Inspect each by itself.",
            )
        first_run = self.runs[0]
        self.data = data_of(first_run.folder, dataset=dataset)
        display.say(f"{len(self.data):,} transitions; fitting the alarm")
        alarms: dict[str, tuple[Alarm | None, str]] = {}
        for subject in self.runs:
            if subject.space not in alarms:
                alarms[subject.space] = self._alarm(subject.space, rate)
            subject.prepare(self.data, alarms[subject.space][0])
        self.no_alarm = [alarms[subject.space][1] for subject in self.runs]
        self.rate, self.display = rate, display
        self.episodes = EpisodeList.of(self.data)
        self.columns: int = self.data.observation_dim
        self.names: list[str] = list(self.signals.observation)

    def _alarm(self, space: Any, rate: float) -> tuple[Alarm | None, str]:
        try:
            return fit_alarm(self.data, rate=rate, space=space), ""
        except UserError as error:
            if error.where == "rate":  # what was asked cannot be
                raise
            return None, error.what

    @property
    def signals(self) -> Signals:
        """What the data's numbers are called."""
        return self.runs[0].signals

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        """The rows on the map, ascending."""
        return some_rows(len(self.data), MAPPED, seed=0)

    @cached_property
    def plane(self) -> Any:
        """Where the map lies."""
        return fit_plane(self.data.states[self.rows])

    def head(self) -> dict[str, Any]:
        """What the page needs at once: names, the map, and each run's numbers on it."""
        rows = self.rows
        self.display.say(f"the map: {len(rows):,} states")
        places = self.plane(self.data.states[rows])
        return {
            "version": __version__,
            "data": Path(self.data.info.name).name,
            "transitions": len(self.data),
            "columns": _named(self.signals, self.signals.observation, self.columns),
            "actions": self._actions(),
            "choices": list(self.signals.choices),
            "reward": self.signals.reward,
            "runs": [self._about(i) for i in range(len(self.runs))],
            "map": packed({"place": places, **self._where(rows)}),
            "maps": [packed(subject.columns(rows)) for subject in self.runs],
        }

    def details(
        self, states: NDArray[np.float32], rows: NDArray[np.integer] | None
    ) -> list[Fields]:
        """What is shown of states: what all runs share first, then each run's own."""
        shared: Fields = {"state": states, "place": self.plane(states)}
        if rows is not None:
            shared |= self._where(rows)
            shared["logged"] = self.runs[0].in_units(np.asarray(self.data.actions[rows]))
        own = []
        for subject in self.runs:
            found = subject.details(states, rows)
            near = found["near"]
            flat = self.plane(self.data.states[near.ravel()])
            own.append({**found, "near_place": flat.reshape(len(near), -1)})
        return [shared, *own]

    def row(self, row: int) -> dict[str, Any]:
        """One row of the log."""
        rows = np.array([row])
        return _one(self.details(np.asarray(self.data.states[rows], np.float32), rows))

    def state(self, state: NDArray[np.float32]) -> dict[str, Any]:
        """One state (1, obs) that need not be in the log."""
        return _one(self.details(state, None))

    def episode(self, place: int) -> dict[str, Any]:
        """One episode as series; `packed` or listed by who sends it."""
        rows = self.episodes.rows(place, LONGEST)
        return {
            "episode": int(self.episodes.ids[place]),
            "length": int(self.episodes.length[place]),
            "return": float(self.episodes.paid[place]),
            "series": {**self._where(rows), "reward": np.asarray(self.data.rewards[rows])},
            "runs": [subject.columns(rows) for subject in self.runs],
        }

    def kept(self) -> dict[str, Any]:
        """What a file holds besides the head: some states and episodes with all that is shown."""
        per_state = self.columns + (PER_RUN + self.data.action_dim) * len(self.runs)
        most = min(KEPT, max(50, KEPT_NUMBERS // per_state))
        chosen = spread(self.plane(self.data.states[self.rows]), most)
        rows = self.rows[chosen]
        self.display.say(f"evidence: {len(rows):,} states")
        found = self.details(np.asarray(self.data.states[rows], np.float32), rows)
        places = self.episodes.some(EPISODES, EPISODE_ROWS)
        self.display.say(f"episodes: {len(places):,}")
        series = [self.episode(int(place)) for place in places]
        for one in series:
            one["series"] = packed(one["series"])
            one["runs"] = [packed(own) for own in one["runs"]]
        kept = [packed(fields) for fields in found]
        return {"points": packed({"point": chosen}), "kept": kept, "series": series}

    def list_episodes(self) -> dict[str, Any]:
        """All episodes to choose from, or the first of very many."""
        every, some = self.episodes, slice(NAMED_EPISODES)
        named = {"id": every.ids, "length": every.length, "paid": every.paid}
        return packed({name: array[some] for name, array in named.items()})

    def _where(self, rows: NDArray[np.integer]) -> Fields:
        episode, step = np.asarray(self.data.episode)[rows], np.asarray(self.data.step)[rows]
        return {"row": rows, "episode": episode, "step": step}

    def _actions(self) -> list[dict[str, Any]]:
        signals = self.signals
        if signals.choices:
            name = signals.action[0].rpartition("=")[0] if signals.action else "action"
            return [{"name": name, "unit": "", "low": 0, "high": len(signals.choices) - 1}]
        named = _named(signals, signals.action, self.data.action_dim, "action")
        low = signals.action_low or (-1.0,) * self.data.action_dim
        high = signals.action_high or (1.0,) * self.data.action_dim
        return [
            {**one, "low": float(a), "high": float(b)}
            for one, a, b in zip(named, low, high, strict=True)
        ]

    def _about(self, i: int) -> dict[str, Any]:
        """What the page says of a run; paths stay on this machine."""
        subject = self.runs[i]
        members, alarm = subject.policy.members, subject.alarm
        notes = []
        if len(members) > 1:
            shown = f"Of its {len(members)} members one is shown: {subject.member.label}."
            notes.append(f"{shown} Another is shown by --member.")
        if subject.remembers:
            notes.append(
                "Its policy remembers its episode: here each state is taken as an episode's first."
            )
        if subject.critic is None:
            notes.append("It has no critic of states and single actions: there are no values.")
        elif not subject.explains:
            notes.append(
                "Its values come from a network and not from retrieved rows: the nearest logged "
                "states are shown beside them, and no part of a value is theirs."
            )
        if isinstance(subject.critic, TrainedCritic):
            done = subject.critic.normaliser
            if (done.reward_scale, done.reward_shift) != (1.0, 0.0):
                notes.append(
                    "Values and outcomes are in rewards as training scaled them: "
                    f"× {done.reward_scale:.4g} {done.reward_shift:+.4g}."
                )
        if alarm is None:
            notes.append(f"There is no alarm: {self.no_alarm[i]}")
        return {
            "name": subject.folder.path.resolve().name,
            "algo": subject.plan.algo,
            "values": subject.critic is not None,
            "explains": subject.explains,
            "limit": None if alarm is None else alarm.limit,
            "rate": self.rate,
            "notes": notes,
        }


def _named(signals: Signals, names: Names, width: int, other: str = "column") -> list[Any]:
    """Names and units of columns, numbered where the log has no names."""
    given = names or tuple(f"{other} {i}" for i in range(width))
    return [{"name": name, "unit": signals.units.get(name, "")} for name in given]


def packed(fields: Fields) -> dict[str, Any]:
    """Arrays as base64 of 32-bit numbers, with the width of a row of each."""
    return {name: _packed(array) for name, array in fields.items()}


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    whole = array.dtype.kind in "iub"
    narrow = array.astype("<i4" if whole else "<f4")
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    text = base64.b64encode(np.ascontiguousarray(narrow).tobytes()).decode()
    return {"kind": "int" if whole else "float", "width": width, "data": text}


def listed(fields: Fields) -> dict[str, Any]:
    """Arrays as lists of JSON; what is not a number is null."""
    found = {}
    for name, array in fields.items():
        flat = array.reshape(-1)
        found[name] = [x if np.isfinite(x) else None for x in flat.tolist()]
    return found


def _one(found: list[Fields]) -> dict[str, Any]:
    return {"shared": listed(found[0]), "runs": [listed(own) for own in found[1:]]}
