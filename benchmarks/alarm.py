"""What the alarm catches, and how often it rings for nothing, on held-out episodes of real logs.

    python benchmarks/alarm.py hopper.npz walker2d.npz kitchen-partial-v0 [--rate 0.05] [--markdown]

Every fifth of the episodes is held out once; the alarm is fitted on the others. Counted are the
states at which it rings: of the held-out episodes as they are, of the same with one sensor stuck at
a value, for every column that varies, and of the other logs with as many columns, which are other
tasks. A stuck sensor gives, at every state: zero; the median of its log, which is as harmless as a
wrong number can be; the largest value of its log; ten spreads beyond that, the end of its scale.

One state is asked at a time. What only an episode can show is for `fit_sensors`, which is asked
about whole held-out episodes: in how many it calls any column stuck; and, with a column stuck at
its first value, at which share of the states, of all and of those in which the true value is
farther from the stuck one than a tenth of the column's spread: else a stuck sensor says the truth.

States come in bundles, so of few episodes one split says little: `--repeats 40` draws the fifths so
often and counts the false alarms of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray

import icql
from icql.data.transitions import Transitions
from icql.evidence.alarm import Alarm, fit_alarm
from icql.evidence.movement import NOISE
from icql.evidence.sensors import Sensors, fit_sensors
from icql.evidence.stillness import runs
from icql.retrieval.metric import spreads

States = NDArray[np.float32]
STUCK: dict[str, Callable[[States, NDArray[np.float64]], NDArray[np.float64]]] = {
    "zero": lambda states, spread: np.zeros(states.shape[1]),
    "median": lambda states, spread: np.median(states, axis=0).astype(np.float64),
    "largest": lambda states, spread: states.max(axis=0).astype(np.float64),
    "beyond": lambda states, spread: states.max(axis=0) + 10 * spread,
}


@dataclass(frozen=True)
class Options:
    """Which logs, and how."""

    data: tyro.conf.Positional[tuple[str, ...]]
    """Names or files."""
    rate: float = 0.05
    """Stated false alarms."""
    splits: int = 5
    """How many of the fifths are held out, one after another."""
    repeats: int = 1
    """How often the fifths are drawn; all but false alarms are counted the first time alone."""
    episodes: int = 40
    """Held-out ones of each split that are gone through whole."""
    rows: int = 100_000
    """Of each log at most, as whole episodes."""
    asked: int = 5_000
    """Held-out states of each split; of each stuck column a hundred."""
    states: int | None = None
    """How many states the alarm keeps; by default all, 20,000 in an exported file."""
    markdown: bool = False
    """Print rows of a table instead of JSON."""


def main() -> None:
    asked = tyro.cli(Options)
    logs = {name: some_episodes(icql.load_dataset(name), asked.rows) for name in asked.data}
    for name, log in logs.items():
        others = {
            other: np.asarray(found.states)
            for other, found in logs.items()
            if other != name and found.observation_dim == log.observation_dim
        }
        told = {"data": log.info.name, **of_log(log, others, asked)}
        print(as_markdown(told) if asked.markdown else json.dumps(told), flush=True)


def of_log(log: Transitions, others: dict[str, States], asked: Options) -> dict[str, Any]:
    """All rates of one log, means over the splits."""
    rng = np.random.default_rng(0)
    episodes = np.unique(log.episode)
    silent: list[float] = []
    stuck: dict[str, list[NDArray[np.float64]]] = {kind: [] for kind in STUCK}
    strange: dict[str, list[float]] = {other: [] for other in others}
    varies = np.ptp(np.asarray(log.states), axis=0) > 0
    watched: list[Watched] = []
    for repeat in range(asked.repeats):
        for held in np.array_split(rng.permutation(episodes), 5)[: asked.splits]:
            out = np.isin(log.episode, held)
            alarm = fit_alarm(log.subset(~out), rate=asked.rate, states=asked.states)
            new = np.asarray(log.states)[np.flatnonzero(out)]
            new = new[rng.permutation(len(new))[: asked.asked]]
            silent.append(float(alarm(new).rings.mean()))
            if repeat:
                continue
            known = np.asarray(log.states)[~out]
            for kind, value in STUCK.items():
                stuck[kind].append(caught(alarm, new[:100], value(known, spreads(known)), varies))
            watched.append(of_sensors(log, out, held[: asked.episodes], varies, asked.rate))
            for other, states in others.items():
                some = states[rng.permutation(len(states))[: asked.asked]]
                strange[other].append(float(alarm(some).rings.mean()))
    by_column = {kind: np.mean(found, axis=0) for kind, found in stuck.items()}
    means = np.array(silent).reshape(asked.repeats, -1).mean(axis=1)
    return {
        "rows": len(log),
        "episodes": len(episodes),
        "columns": int(varies.sum()),
        "false_alarms": np.round(silent, 4).tolist(),
        "mean_false_alarms": round(float(means.mean()), 4),
        # of the mean over draws of the fifths, and how far a single fifth is off
        "error": round(float(means.std() / np.sqrt(max(asked.repeats - 1, 1))), 4),
        "deviation": round(float(np.std(silent)), 4),
        "stuck": {kind: round(float(found.mean()), 4) for kind, found in by_column.items()},
        "columns_caught": {kind: int((x >= 0.95).sum()) for kind, x in by_column.items()},
        "sensors": of_watched(watched, np.flatnonzero(varies)),
        "other_tasks": {other: round(float(np.mean(x)), 4) for other, x in strange.items()},
    }


@dataclass(frozen=True)
class Watched:
    """Counts of one split: episodes, and states (columns,) with one of the columns stuck."""

    promised: float
    episodes: int
    wrong: int  # episodes in which a column is called stuck
    states: NDArray[np.int64]
    caught: NDArray[np.int64]
    differ: NDArray[np.int64]  # states in which the stuck value is not the true one
    caught_differ: NDArray[np.int64]


def of_watched(splits: list[Watched], columns: NDArray[np.int64]) -> dict[str, Any]:
    """Rates over all splits; of columns that ever differ, means over these."""
    total = {
        name: np.sum([getattr(one, name) for one in splits], axis=0)
        for name in ("episodes", "wrong", "states", "caught", "differ", "caught_differ")
    }
    ever = total["differ"] > 0
    share = total["caught_differ"][ever] / total["differ"][ever]
    return {
        "promised": round(float(np.mean([one.promised for one in splits])), 4),
        "false_alarms_per_episode": round(float(total["wrong"] / total["episodes"]), 4),
        "caught_of_all": round(float((total["caught"] / total["states"]).mean()), 4),
        "caught": round(float(share.mean()), 4),
        "columns": int(ever.sum()),
        "columns_caught": int((share >= 0.95).sum()),
        "by_column": dict(zip(columns[ever].tolist(), np.round(share, 3).tolist(), strict=True)),
    }


def caught(
    alarm: Alarm, states: States, value: NDArray[np.float64], varies: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The share of states that ring, for every column that is stuck at its value."""
    shares = []
    for column in np.flatnonzero(varies):
        wrong = states.copy()
        wrong[:, column] = value[column]
        shares.append(alarm(wrong).rings.mean())
    return np.array(shares)


def of_sensors(
    log: Transitions,
    out: NDArray[np.bool_],
    held: NDArray[Any],
    varies: NDArray[np.bool_],
    rate: float,
) -> Watched:
    """In how many new episodes a column is called stuck, and where each is that really is."""
    known = log.subset(~out)
    sensors, spread = fit_sensors(known, rate=rate), spreads(np.asarray(known.states))
    columns = np.flatnonzero(varies)
    counts = np.zeros((4, len(columns)), np.int64)
    wrong = 0
    for episode in held:
        states = np.asarray(log.states)[log.episode == episode]
        wrong += int(sensors(states).any())
        for i, column in enumerate(columns):
            called = called_stuck(sensors, states, int(column))
            differs = np.abs(states[:, column] - states[0, column]) > NOISE * spread[column]
            counts[:, i] += [len(states), called.sum(), differs.sum(), (called & differs).sum()]
    return Watched(sensors.rate, len(held), wrong, *counts)


def called_stuck(sensors: Sensors, states: States, column: int) -> NDArray[np.bool_]:
    """Where a column that is stuck at its first value is called so; others are not looked at."""
    frozen = states.copy()
    frozen[:, column] = frozen[0, column]
    still = np.ones(frozen.shape, np.int64)
    still[:, column] = runs(frozen)[:, column]
    found: NDArray[np.bool_] = still[:, column] > sensors.still[column]
    if sensors.movement is not None:
        found |= sensors.movement.missed(frozen, still)[:, column] > sensors.missed[column]
    return found


def some_episodes(log: Transitions, rows: int) -> Transitions:
    """Whole episodes, evenly from the whole log, of so many rows at most."""
    ids, lengths = np.unique(log.episode, return_counts=True)
    order = np.random.default_rng(0).permutation(len(ids))
    kept = ids[order[np.cumsum(lengths[order]) <= rows]]
    return log if len(kept) == len(ids) else log.subset(np.isin(log.episode, kept))


def as_markdown(told: dict[str, Any]) -> str:
    """One row of the table in docs/evidence.md."""
    false, sensors = np.array(told["false_alarms"]), told["sensors"]
    cells = [
        told["data"],
        f"{told['rows']:,} / {told['episodes']:,}",
        f"{100 * false.mean():.1f} ± {100 * told['error']:.1f} "
        f"(one fifth: ± {100 * told['deviation']:.1f})",
        *(
            f"{100 * told['stuck'][kind]:.0f} ({told['columns_caught'][kind]} of {told['columns']})"
            for kind in STUCK
        ),
        f"{100 * sensors['caught']:.0f} ({sensors['columns_caught']} of {sensors['columns']})",
        f"{100 * sensors['caught_of_all']:.0f}",
        f"{100 * sensors['false_alarms_per_episode']:.1f} of {100 * sensors['promised']:.0f}",
        ", ".join(f"{100 * x:.0f}" for x in told["other_tasks"].values()) or "–",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
