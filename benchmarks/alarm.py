"""What the alarm catches, and how often it rings for nothing, on held-out episodes of real logs.

    python benchmarks/alarm.py hopper.npz walker2d.npz kitchen-partial-v0 [--rate 0.05] [--markdown]

Every fifth of the episodes is held out once; the alarm is fitted on the others. Counted are the
states at which it rings: of the held-out episodes as they are, of the same with one sensor stuck at
a value, for every column that varies, and of the other logs with as many columns, which are other
tasks. A stuck sensor gives, at every state: zero; the median of its log, which is as harmless as a
wrong number can be; the largest value of its log; ten spreads beyond that, the end of its scale.

One state is asked at a time. That a number has not moved for a while is for `fit_stillness`, which
is asked about whole held-out episodes: in how many it calls any column stuck, and, with a column
stuck at its first value, at which share of the states.
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
from icql.evidence.stillness import fit_stillness
from icql.retrieval.metric import spreads

States = NDArray[np.float32]
EPISODES = 200  # held-out ones at most that are gone through whole
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
    still: dict[str, list[Any]] = {"wrong": [], "caught": []}
    for held in np.array_split(rng.permutation(episodes), 5)[: asked.splits]:
        out = np.isin(log.episode, held)
        alarm = fit_alarm(log.subset(~out), rate=asked.rate, states=asked.states)
        new = np.asarray(log.states)[np.flatnonzero(out)]
        new = new[rng.permutation(len(new))[: asked.asked]]
        silent.append(float(alarm(new).rings.mean()))
        known = np.asarray(log.states)[~out]
        for kind, value in STUCK.items():
            stuck[kind].append(caught(alarm, new[:100], value(known, spreads(known)), varies))
        wrong, frozen = of_stillness(log, out, held, varies)
        still["wrong"].append(wrong)
        still["caught"].append(frozen)
        for other, states in others.items():
            some = states[rng.permutation(len(states))[: asked.asked]]
            strange[other].append(float(alarm(some).rings.mean()))
    by_column = {kind: np.mean(found, axis=0) for kind, found in stuck.items()}
    return {
        "rows": len(log),
        "episodes": len(episodes),
        "columns": int(varies.sum()),
        "false_alarms": np.round(silent, 4).tolist(),
        "stuck": {kind: round(float(found.mean()), 4) for kind, found in by_column.items()},
        "columns_caught": {kind: int((x >= 0.95).sum()) for kind, x in by_column.items()},
        "still": {
            "false_alarms_per_episode": round(float(np.mean(still["wrong"])), 4),
            "caught": round(float(np.mean(still["caught"])), 4),
            "columns_caught": int((np.mean(still["caught"], axis=0) >= 0.95).sum()),
        },
        "other_tasks": {other: round(float(np.mean(x)), 4) for other, x in strange.items()},
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


def of_stillness(
    log: Transitions, out: NDArray[np.bool_], held: NDArray[Any], varies: NDArray[np.bool_]
) -> tuple[float, NDArray[np.float64]]:
    """In how many new episodes a column is called stuck, and where each is that really is."""
    watch, wrong = fit_stillness(log.subset(~out)), []
    shares = []
    for episode in held[:EPISODES]:
        states = np.asarray(log.states)[log.episode == episode]
        wrong.append(watch(states).any())
        frozen = np.repeat(states[:1], len(states), axis=0)
        shares.append(watch(frozen).mean(axis=0)[varies] * len(states))
    steps = sum(int((log.episode == episode).sum()) for episode in held[:EPISODES])
    return float(np.mean(wrong)), np.sum(shares, axis=0) / steps


def some_episodes(log: Transitions, rows: int) -> Transitions:
    """Whole episodes, evenly from the whole log, of so many rows at most."""
    ids, lengths = np.unique(log.episode, return_counts=True)
    order = np.random.default_rng(0).permutation(len(ids))
    kept = ids[order[np.cumsum(lengths[order]) <= rows]]
    return log if len(kept) == len(ids) else log.subset(np.isin(log.episode, kept))


def as_markdown(told: dict[str, Any]) -> str:
    """One row of the table in docs/evidence.md."""
    false = np.array(told["false_alarms"])
    cells = [
        told["data"],
        f"{told['rows']:,} / {told['episodes']:,}",
        f"{100 * false.mean():.1f} ({100 * false.min():.1f} to {100 * false.max():.1f})",
        *(
            f"{100 * told['stuck'][kind]:.0f} ({told['columns_caught'][kind]} of {told['columns']})"
            for kind in STUCK
        ),
        f"{100 * told['still']['caught']:.0f} "
        f"({told['still']['columns_caught']} of {told['columns']})",
        f"{100 * told['still']['false_alarms_per_episode']:.1f}",
        ", ".join(f"{100 * x:.0f}" for x in told["other_tasks"].values()) or "–",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
