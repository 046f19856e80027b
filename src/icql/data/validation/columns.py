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
        for column, name in enumerate(names):
            facts = _facts(array, column, valid, _units(signals, role, column))
            empty = gaps.get(name.split("=")[0] if name not in gaps else name, 0)
            found.append(
                ColumnFacts(
                    name,
                    role,
                    signals.units.get(name, ""),
                    **facts | {"gaps": max(facts["gaps"], empty)},
                )
            )
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


def _units(signals: Signals, role: str, column: int) -> tuple[float, float]:
    """Factor and shift that give an action in the units of the log."""
    if role != "action" or not signals.action_low:
        return 1.0, 0.0
    low, high = signals.action_low[column], signals.action_high[column]
    return (high - low) / 2, (high + low) / 2


def _facts(
    array: Floats, column: int, valid: Bools | None, units: tuple[float, float]
) -> dict[str, Any]:
    """Range, mean, spread, gaps, different values and histogram of one column."""

    def parts() -> Iterator[tuple[Doubles, int]]:
        for block in blocks(len(array)):
            values = array[block, column]
            usable = np.isfinite(values)
            gaps = ~usable if valid is None else ~usable & valid[block]
            keep = usable if valid is None else usable & valid[block]
            yield values[keep].astype(np.float64) * units[0] + units[1], int(gaps.sum())

    count, total, gaps, low, high = 0, 0.0, 0, np.inf, -np.inf
    different = np.empty(0)
    for values, missing in parts():
        gaps += missing
        if not values.size:
            continue
        count, total = count + values.size, total + float(values.sum())
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        if len(different) < DIFFERENT:
            different = np.unique(np.concatenate([different, values]))
    if not count:
        empty = dict.fromkeys(("low", "high", "mean", "spread"))
        return {**empty, "gaps": gaps, "different": 0, "histogram": ()}
    mean, square, bins = total / count, 0.0, np.zeros(BINS, np.int64)
    for values, _ in parts():
        square += float(((values - mean) ** 2).sum())
        if low < high:
            bins += np.histogram((values - low) / (high - low), BINS, (0, 1))[0]
    return {
        "low": low,
        "high": high,
        "mean": mean,
        "spread": float(np.sqrt(square / count)),
        "gaps": gaps,
        "different": min(len(different), DIFFERENT),
        "histogram": tuple(bins.tolist()) if low < high else (count,),
    }
