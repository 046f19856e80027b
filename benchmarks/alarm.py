"""What the alarm catches, and how often it rings for nothing, on held-out episodes of real logs.

    python benchmarks/alarm.py hopper.npz walker2d.npz kitchen-partial-v0 [--repeats 40]

Every fifth of the episodes is held out once; the alarm is fitted on the others. Counted are the
states at which it rings: of the held-out episodes as they are, of the same with one sensor stuck at
a value, for every column that varies, and of the other logs, which are other tasks: states of other
widths, which are refused as they are, without their last columns or with zeros after them. A stuck
sensor gives, at every state: zero; the median of its log, which is as harmless as a wrong number
can be; the largest value of its log; ten spreads beyond that, the end of its scale.

One state is asked at a time; what only an episode can show is measured by `benchmarks/stuck.py`.

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
from icql.evidence.alarm import Alarm, fit_alarm, limit_of
from icql.retrieval.metric import spreads

States = NDArray[np.float32]
RATES = (0.01, 0.05, 0.1)
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
    """Stated false alarms where something is wrong; as they are, 1, 5 and 10 %."""
    splits: int = 5
    """How many of the fifths are held out, one after another."""
    repeats: int = 1
    """How often the fifths are drawn; all but false alarms are counted the first time alone."""
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
            found.info.name: as_wide(np.asarray(found.states), log.observation_dim)
            for other, found in logs.items()
            if other != name
        }
        told = {"data": log.info.name, **of_log(log, others, asked)}
        print(as_markdown(told) if asked.markdown else json.dumps(told), flush=True)


def of_log(log: Transitions, others: dict[str, States], asked: Options) -> dict[str, Any]:
    """All rates of one log, means over the splits."""
    rng = np.random.default_rng(0)
    episodes = np.unique(log.episode)
    false: dict[float, list[float]] = {rate: [] for rate in RATES}
    stuck: dict[str, list[NDArray[np.float64]]] = {kind: [] for kind in STUCK}
    strange: dict[str, list[float]] = {other: [] for other in others}
    varies = np.ptp(np.asarray(log.states), axis=0) > 0
    for repeat in range(asked.repeats):
        for held in np.array_split(rng.permutation(episodes), 5)[: asked.splits]:
            out = np.isin(log.episode, held)
            alarm = fit_alarm(log.subset(~out), rate=asked.rate, states=asked.states)
            new = np.asarray(log.states)[np.flatnonzero(out)]
            new = new[rng.permutation(len(new))[: asked.asked]]
            away = alarm(new).distance
            for rate in RATES:
                false[rate].append(float((away > limit_of(alarm.scores, rate)).mean()))
            if repeat:
                continue
            known = np.asarray(log.states)[~out]
            for kind, value in STUCK.items():
                stuck[kind].append(caught(alarm, new[:100], value(known, spreads(known)), varies))
            for other, states in others.items():
                some = states[rng.permutation(len(states))[: asked.asked]]
                strange[other].append(float(alarm(some).rings.mean()))
    by_column = {kind: np.mean(found, axis=0) for kind, found in stuck.items()}
    return {
        "rows": len(log),
        "episodes": len(episodes),
        "columns": int(varies.sum()),
        "false_alarms": {rate: of_rate(found, asked.repeats) for rate, found in false.items()},
        "stuck": {kind: round(float(found.mean()), 4) for kind, found in by_column.items()},
        "columns_caught": {kind: int((x >= 0.95).sum()) for kind, x in by_column.items()},
        "other_tasks": {other: round(float(np.mean(x)), 4) for other, x in strange.items()},
    }


def as_wide(states: States, width: int) -> States:
    """States of another width cut off, or filled up with zeros."""
    short = max(0, width - states.shape[1])
    return np.pad(states[:, :width], ((0, 0), (0, short)))


def of_rate(found: list[float], repeats: int) -> dict[str, float]:
    """The mean over draws of the fifths, its error, and how far a single fifth is off."""
    means = np.array(found).reshape(repeats, -1).mean(axis=1)
    error = means.std() / np.sqrt(max(repeats - 1, 1))
    told = {"mean": means.mean(), "error": error, "deviation": np.std(found)}
    return {name: round(float(x), 4) for name, x in told.items()}


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


def some_episodes(log: Transitions, rows: int) -> Transitions:
    """Whole episodes, evenly from the whole log, of so many rows at most."""
    ids, lengths = np.unique(log.episode, return_counts=True)
    order = np.random.default_rng(0).permutation(len(ids))
    kept = ids[order[np.cumsum(lengths[order]) <= rows]]
    return log if len(kept) == len(ids) else log.subset(np.isin(log.episode, kept))


def as_markdown(told: dict[str, Any]) -> str:
    """One row of the tables in docs/alarm.md."""
    cells = [
        told["data"],
        f"{told['rows']:,} / {told['episodes']:,}",
        *(
            f"{100 * x['mean']:.1f} ± {100 * x['error']:.1f} (± {100 * x['deviation']:.1f})"
            for x in told["false_alarms"].values()
        ),
        *(
            f"{100 * told['stuck'][kind]:.0f} ({told['columns_caught'][kind]} of {told['columns']})"
            for kind in STUCK
        ),
        ", ".join(f"{100 * x:.1f} ({other})" for other, x in told["other_tasks"].items()) or "–",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
