"""A log column by column: range, spread, gaps and a small histogram, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from icql.data.arrays import Bools, Doubles, Floats, blocks
from icql.data.signals import Signals
from icql.data.transitions import Source, Transitions

BINS = 12  # of a histogram
DIFFERENT = 1_000  # values at most that are told apart
BARS = "▁▂▃▄▅▆▇█"
SHOWN = 60  # columns at most that are listed for people


@dataclass(frozen=True)
class ColumnFacts:
    """One column of states, actions or rewards in the units of the log; None: no number in it."""

    name: str
    role: str
    unit: str
    low: float | None
    high: float | None
    mean: float | None
    spread: float | None  # standard deviation
    gaps: int  # cells without a number, filled ones included
    different: int  # values, up to DIFFERENT
    histogram: tuple[int, ...]  # counts in BINS equal parts of low … high

    @property
    def constant(self) -> bool:
        """Whether all numbers are the same."""
        return self.different == 1

    @property
    def bars(self) -> str:
        """The histogram in one line of text."""
        most = max(self.histogram, default=0)
        if not most:
            return ""
        tall = (-(-count * len(BARS) // most) for count in self.histogram)
        return "".join(BARS[height - 1] if height else " " for height in tall)

    def as_json(self) -> dict[str, Any]:
        """All of it, with `constant` and `bars`."""
        return {
            **asdict(self),
            "histogram": list(self.histogram),
            "constant": self.constant,
            "bars": self.bars,
        }


def describe(data: Source | Transitions) -> list[ColumnFacts]:
    """Every column of the observations, the actions and the rewards.

    Actions that were mapped to [-1, 1] are described in the units of the log.
    """
    signals, found = data.info.signals, list[ColumnFacts]()
    gaps = {} if isinstance(data, Transitions) else data.gaps
    for role, array, names, valid in _arrays(data, signals):
        all_facts = _facts(array, valid, *_units(signals, role, array))
        for name, facts in zip(names, all_facts, strict=True):
            filled = gaps.get(name if name in gaps else name.partition("=")[0], 0)
            facts["gaps"] = max(facts["gaps"], filled)
            found.append(ColumnFacts(name, role, signals.units.get(name, ""), **facts))
    return found


def table(columns: Sequence[ColumnFacts]) -> Iterator[str]:
    """Lines for people: one per column."""
    heads = ("column", "unit", "min", "max", "mean", "spread", "gaps", "values")
    rows = [heads, *((f.name, f.unit, *_cells(f)) for f in columns[:SHOWN])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    for i, row in enumerate(rows):
        cells = (
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"{'  '.join(cells)}  {'' if i == 0 else columns[i - 1].bars}".rstrip()
    if len(columns) > SHOWN:
        yield f"… and {len(columns) - SHOWN:,} more columns: --json or --report has all of them"


def _cells(facts: ColumnFacts) -> tuple[str, ...]:
    numbers = (facts.low, facts.high, facts.mean, facts.spread)
    values = f"{facts.different:,}{'+' if facts.different >= DIFFERENT else ''}"
    said = "constant" if facts.constant else values
    return (*("–" if x is None else f"{x:.4g}" for x in numbers), f"{facts.gaps:,}", said)


def _arrays(
    data: Source | Transitions, signals: Signals
) -> Iterator[tuple[str, Floats, Sequence[str], Bools | None]]:
    """The role, numbers (T, columns), names and usable rows of each array."""
    if isinstance(data, Transitions):
        states, actions, rewards, valid = data.states, data.actions, data.rewards, None
    else:
        steps = data.steps
        states, actions, rewards = steps.observations, steps.actions, steps.rewards
        valid = steps.valid
    numbered = [f"observation[{i}]" for i in range(states.shape[1])]
    yield "observation", states, signals.observation or numbered, valid
    numbered = [f"action[{i}]" for i in range(actions.shape[1])]
    yield "action", actions, signals.action or numbered, valid
    yield "reward", rewards[:, None], [signals.reward or "reward"], valid


def _units(signals: Signals, role: str, array: Floats) -> tuple[Doubles, Doubles]:
    """Factors and shifts (columns,) that give actions in the units of the log."""
    if role != "action" or not signals.action_low:
        return np.ones(array.shape[1]), np.zeros(array.shape[1])
    low, high = np.asarray(signals.action_low), np.asarray(signals.action_high)
    return (high - low) / 2, (high + low) / 2


def _facts(
    array: Floats, valid: Bools | None, factor: Doubles, shift: Doubles
) -> list[dict[str, Any]]:
    """Range, mean, spread, gaps, different values and histogram of every column, in two passes."""
    width = array.shape[1]

    def parts() -> Iterator[tuple[Doubles, Bools, Bools]]:
        for block in blocks(*array.shape):
            values = array[block].astype(np.float64) * factor + shift
            finite = np.isfinite(values)
            rows = np.ones(len(values), np.bool_) if valid is None else valid[block]
            yield values, finite & rows[:, None], ~finite & rows[:, None]

    count, gaps = np.zeros(width, np.int64), np.zeros(width, np.int64)
    total, square = np.zeros(width), np.zeros(width)
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    different = [np.empty(0)] * width
    for values, keep, missing in parts():
        count, gaps = count + keep.sum(0), gaps + missing.sum(0)
        total += np.where(keep, values, 0).sum(0)
        low = np.minimum(low, np.where(keep, values, np.inf).min(0))
        high = np.maximum(high, np.where(keep, values, -np.inf).max(0))
        for i, known in enumerate(different):
            if len(known) < DIFFERENT:
                different[i] = np.unique(np.concatenate([known, values[keep[:, i], i]]))
    mean, extent = total / np.maximum(count, 1), np.where(high > low, high - low, 1)
    bins = np.zeros((width, BINS), np.int64)
    for values, keep, _ in parts():
        square += (np.where(keep, values - mean, 0) ** 2).sum(0)
        for i in np.flatnonzero(high > low).tolist():
            inside = (values[keep[:, i], i] - low[i]) / extent[i]
            bins[i] += np.histogram(inside, BINS, (0, 1))[0]
    spread = np.sqrt(square / np.maximum(count, 1))
    found = []
    for i in range(width):
        numbers = {"low": low[i], "high": high[i], "mean": mean[i], "spread": spread[i]}
        shown = bins[i].tolist() if high[i] > low[i] else [int(count[i])] if count[i] else []
        found.append(
            {name: float(x) if count[i] else None for name, x in numbers.items()}
            | {
                "gaps": int(gaps[i]),
                "different": min(len(different[i]), DIFFERENT),
                "histogram": tuple(shown),
            }
        )
    return found
