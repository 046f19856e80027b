"""What the alarm sees of a stuck sensor, by how it is stuck, on held-out episodes of real logs.

    python benchmarks/stuck.py hopper.npz kitchen-complete-v0 [--rate 0.05] [--markdown]

Every fifth of the episodes is held out once, the alarm fitted on the others. In some of the
held-out episodes every column that varies is stuck in turn, in each of the ways of `WAYS`: at its
first value for the whole episode, or from a moment in the middle third on at its last value, at
zero, at its log's median, at its log's largest value. Counted are the states from then on at which

    single  `alarm(states)` rings, which asks about each state by itself
    stuck   `alarm.stuck(states)` names this column, in at most `rate` of episodes wrongly
    watch   `alarm.watch(states)` rings by this column or by distance, at `rate` of states wrongly

of all of them, and of the wrong ones, in which the true value is farther from the stuck one than a
tenth of the column's spread. In the others the sensor says the truth, stuck or not: `right` is
their share, of which none can be told but where a sensor that works would move. That other columns,
which now contradict the stuck one, may ring too is not counted.

As they are, the held-out episodes give the false alarms of all three. With --still, in their place:
what a policy file can tell, that a column stands still for longer than its limit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray

import icql
from alarm import RATES, some_episodes
from icql.data.transitions import Transitions
from icql.evidence.alarm import Alarm, fit_alarm, limit_of
from icql.evidence.movement import NOISE
from icql.evidence.still_limits import fit_still_limits
from icql.evidence.stillness import FOREVER, States, courses, runs
from icql.evidence.watch import shared_limits
from icql.retrieval.metric import spreads

Counts = NDArray[np.int64]
WAYS: dict[str, Callable[[States, NDArray[np.float32]], float]] = {
    "first value": lambda known, column: column[0],
    "last value": lambda known, column: column[-1],
    "zero": lambda known, column: 0.0,
    "median": lambda known, column: float(np.median(known)),
    "largest": lambda known, column: float(known.max()),
}
SEEN = ("single", "stuck", "watch")


@dataclass(frozen=True)
class Options:
    """Which logs, and how."""

    data: tyro.conf.Positional[tuple[str, ...]]
    """Names or files."""
    rate: float = 0.05
    """Stated false alarms where sensors are stuck; elsewhere they are 1, 5 and 10 %."""
    splits: int = 5
    """How many of the fifths are held out, one after another."""
    episodes: int = 5
    """Held-out ones of each split in which sensors are stuck."""
    whole: int = 40
    """Held-out ones of each split that are asked as they are."""
    rows: int = 100_000
    """Of each log at most, as whole episodes."""
    every: int = 5
    """Of the states one in so many is counted."""
    seed: int = 0
    """Of the fifths."""
    markdown: bool = False
    """Print rows of tables instead of JSON."""
    still: bool = False
    """Only what a policy file can tell."""


def main() -> None:
    asked = tyro.cli(Options)
    for name in asked.data:
        log = some_episodes(icql.load_dataset(name), asked.rows)
        if asked.still:
            print(json.dumps({"data": log.info.name, **by_standing_still(log, asked)}), flush=True)
            continue
        told = {"data": log.info.name, **of_log(log, asked)}
        print(as_markdown(told) if asked.markdown else json.dumps(told), flush=True)


def of_log(log: Transitions, asked: Options) -> dict[str, Any]:
    """All rates of one log, over the splits."""
    rng, episodes = np.random.default_rng(asked.seed), np.unique(log.episode)
    varies = np.flatnonzero(np.ptp(np.asarray(log.states), axis=0) > 0)
    counts = np.zeros((len(varies), len(WAYS), 2, 1 + len(SEEN)), np.int64)
    false: dict[float, list[False_]] = {rate: [] for rate in RATES}
    for held in np.array_split(rng.permutation(episodes), 5)[: asked.splits]:
        out = np.isin(log.episode, held)
        alarm = fit_alarm(log.subset(~out), rate=asked.rate)
        known = np.asarray(log.states)[~out]
        new = [np.asarray(log.states)[log.episode == one] for one in held[: asked.whole]]
        for rate in RATES:
            false[rate] += as_they_are(alarm, new, rate)
        for i, column in enumerate(varies if asked.episodes else []):
            some = new[: asked.episodes]
            for way, found in of_column(alarm, known, some, int(column), asked, rng):
                counts[i, way] += found
    return {
        "episodes": len(episodes),
        "columns": len(varies),
        "false": {rate: of_false(found) for rate, found in false.items()},
        "ways": {way: of_way(counts[:, j]) for j, way in enumerate(WAYS) if asked.episodes},
        "by_column": by_column(counts.sum(axis=1), varies),
    }


def by_standing_still(log: Transitions, asked: Options) -> dict[str, Any]:
    """Shares of states, all and wrong, at which a stuck column exceeds its limit; false alarms."""
    rng, episodes = np.random.default_rng(asked.seed), np.unique(log.episode)
    states = np.asarray(log.states)
    varies = np.flatnonzero(np.ptp(states, axis=0) > 0)
    counts, called = np.zeros((2, 2), np.int64), []
    for held in np.array_split(rng.permutation(episodes), 5)[: asked.splits]:
        out = np.isin(log.episode, held)
        limits, known = fit_still_limits(log.subset(~out), rate=asked.rate), states[~out]
        new = [states[log.episode == one] for one in held[: asked.whole]]
        called += [(runs(one) > limits.states).any() for one in new]
        least = NOISE * spreads(known)
        for one, column in itertools.product(new[: asked.episodes], varies):
            middle = int(rng.integers(len(one) // 3, max(2 * len(one) // 3, len(one) // 3 + 1)))
            for way, value in WAYS.items():
                start, held_at = 0 if way == "first value" else middle, one[:, [column]].copy()
                held_at[start:] = value(known[:, column], one[: start + 1, column])
                seen = (runs(held_at) > limits.states[column])[start:, 0]
                wrong = np.abs(held_at[start:, 0] - one[start:, column]) > least[column]
                counts += [[len(seen), seen.sum()], [wrong.sum(), seen[wrong].sum()]]
    shares = counts[:, 1] / counts[:, 0]
    return {
        "episodes_called": round(float(np.mean(called)), 4),
        "promised": limits.rate,
        "columns_with_a_limit": int((limits.states < FOREVER)[varies].sum()),
        "columns": len(varies),
        "all": round(float(shares[0]), 4),
        "wrong": round(float(shares[1]), 4),
    }


False_ = tuple[int, int, int, int, float]  # states, rings of single and watch, called, promised


def as_they_are(alarm: Alarm, episodes: list[States], rate: float) -> Iterator[False_]:
    """Where the alarm rings at a rate in episodes in which nothing is stuck."""
    sensors = alarm.sensors.at(rate)
    limit = limit_of(alarm.scores, rate)
    limits = shared_limits(alarm.scored, alarm.scores, alarm.log.episode, sensors, rate)
    for states in episodes:
        distance, strange = alarm(states).distance, sensors.strange(states)
        watch = limits.far(distance) | limits.stuck(strange[0]).any(axis=1)
        single, called = distance > limit, sensors.called(strange).any()
        yield len(states), int(single.sum()), int(watch.sum()), int(called), sensors.rate


def of_false(found: list[False_]) -> dict[str, float]:
    """Shares of states, and of episodes."""
    states, single, watch, called, promised = np.array(found, np.float64).T
    shares = {
        "single": single.sum() / states.sum(),
        "watch": watch.sum() / states.sum(),
        "called": called.mean(),
        "promised": promised.mean(),
    }
    return {name: round(float(x), 4) for name, x in shares.items()}


def of_way(counts: Counts) -> dict[str, float]:
    """Shares of states over all columns (columns, all or wrong, states and seen)."""
    total = counts.sum(axis=0)
    shares = total[:, 1:] / np.maximum(total[:, :1], 1)
    found = {"right": 1 - total[1, 0] / total[0, 0]}
    for kind, row in zip(("all", "wrong"), shares, strict=True):
        found |= {f"{kind}_{seen}": x for seen, x in zip(SEEN, row, strict=True)}
    return {name: round(float(x), 4) for name, x in found.items()}


def by_column(counts: Counts, columns: NDArray[np.int64]) -> dict[int, float]:
    """The share of wrong states that `watch` sees, of all ways together."""
    return {
        int(column): round(float(wrong[-1] / wrong[0]), 3)
        for column, (_, wrong) in zip(columns, counts, strict=True)
        if wrong[0]
    }


def of_column(
    alarm: Alarm,
    known: States,
    episodes: list[States],
    column: int,
    asked: Options,
    rng: np.random.Generator,
) -> list[tuple[int, Counts]]:
    """For every way and episode: counts of states, all and wrong, and of those that are seen."""
    frozen, truth, begun = [], [], []
    for one in episodes:
        middle = int(rng.integers(len(one) // 3, max(2 * len(one) // 3, len(one) // 3 + 1)))
        for way, value in WAYS.items():
            start = 0 if way == "first value" else middle
            copy = one.copy()
            copy[start:, column] = value(known[:, column], one[: start + 1, column])
            frozen.append(copy)
            truth.append(one[:, column])
            begun.append(start)
    course = courses(frozen)
    # others are not looked at: they have just moved
    run, leap = np.ones_like(course.run), np.zeros_like(course.leap)
    run[:, column], leap[:, column] = course.run[:, column], course.leap[:, column]
    course = replace(course, run=run, leap=leap)
    parts = alarm.sensors.parts
    strange = [part.habits.strange(course)[:, column] for part in parts]
    least = NOISE * spreads(known)[column]
    found = []
    for i, (start, true) in enumerate(zip(begun, truth, strict=True)):
        first = course.starts[i]
        rows = np.arange(first + start + rng.integers(asked.every), first + len(true), asked.every)
        rings = alarm(course.states[rows])
        mine = [one[rows] for one in strange]
        limits = alarm.shared
        watch = limits.far(rings.distance) | limits.stuck(mine[0])
        seen = np.stack([np.ones(len(rows), bool), rings.rings, alarm.sensors.called(mine), watch])
        wrong = np.abs(course.states[rows, column] - true[rows - first]) > least
        found.append((i % len(WAYS), np.stack([seen.sum(axis=1), seen[:, wrong].sum(axis=1)])))
    return found


def as_markdown(told: dict[str, Any]) -> str:
    """Rows of the tables in docs/alarm.md."""
    rows = []
    for rate, found in told["false"].items():
        single, watch, called, promised = (f"{100 * x:.1f}" for x in found.values())
        cells = (told["data"], told["episodes"], f"{100 * rate:g}", single, watch, called, promised)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    for way, found in told["ways"].items():
        shown = " | ".join(f"{100 * x:.0f}" for x in found.values())
        rows.append(f"| {told['data']} | {way} | {shown} |")
    shares = np.array(list(told["by_column"].values()))
    few = {k: round(100 * v) for k, v in told["by_column"].items() if v < 0.95}
    rows.append(f"columns at 95 %: {(shares >= 0.95).sum()} of {len(shares)}; below: {few}")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
