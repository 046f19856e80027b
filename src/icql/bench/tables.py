"""A suite as a table: every method on every task, and statistics over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from icql.bench.published import KINDS, Published, citations, paper_costs, published, remarks
from icql.bench.records import Asked, CellGroup
from icql.bench.statistics import (
    Interval,
    aggregate,
    fullest_block,
    performance_profile,
    probability_of_improvement,
)
from icql.bench.suites import Suite, suites
from icql.data.tasks import find_task
from icql.evaluation.scores import Summary, summary

CLEAR = 10.0  # points: an interval wider than ± this holds too much to have reproduced anything
PAIRS = 500  # samples of a bootstrap for each pair of methods
THRESHOLDS = 101  # points of a performance profile


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """One method on one task: all seeds of it that are finished."""

    group: CellGroup
    place: Asked
    records: tuple[dict[str, Any], ...]  # by seed
    published: tuple[Published, ...]
    data: Mapping[str, Any] | None = None  # what its data looks like (`icql.bench.analyses`)
    critics: Mapping[str, Any] | None = None  # what its critics say, where it has any

    @cached_property
    def scores(self) -> list[float]:
        """Final score of each seed."""
        found = (record["outcome"]["score"] for record in self.records)
        return [float(score) for score in found if score is not None]

    @cached_property
    def summary(self) -> Summary | None:
        """Mean, spread and interval; None where no episode was played."""
        return summary(self.scores) if self.scores else None

    @property
    def half(self) -> float | None:
        """Half of Student's 95 % interval of the mean over seeds."""
        if self.summary is None or self.summary["ci95"] is None:
            return None
        low, high = self.summary["ci95"]
        return (high - low) / 2

    @property
    def best(self) -> float | None:
        """Mean of the best scores seen during training: no result, kept apart."""
        found = [r["outcome"]["best"]["score"] for r in self.records if r["outcome"]["best"]]
        return float(np.mean(found)) if found else None

    @property
    def steps(self) -> int:
        """Updates."""
        return int(self.group.run["steps"])

    @property
    def episodes(self) -> int:
        """Episodes that the score of each seed is the mean of."""
        return int(self.group.run["episodes"])

    @property
    def short(self) -> bool:
        """Whether there were fewer updates than the suite's preset has."""
        return self.steps < self.place.full_steps

    @property
    def verdicts(self) -> list[tuple[Published, str]]:
        """Every published number with how ours compares."""
        return [(number, self._verdict(number)) for number in self.published]

    @property
    def verdict(self) -> str:
        """How the cell compares with the first published number, the paper's where it has one."""
        if not self.published:
            return "no published number"
        return self._verdict(self.published[0])

    def _verdict(self, number: Published) -> str:
        if self.summary is None:
            return "no score"
        if self.short:
            return "short"
        if self.other_data:
            return "other data"
        if self.other_preset:
            return "other settings"
        if self.half is None:
            return "no interval"
        if abs(self.summary["mean"] - number.mean) <= self.half:
            return "reproduced" if self.half <= CLEAR else "unclear"
        return "above" if self.summary["mean"] > number.mean else "below"

    @property
    def other_data(self) -> bool:
        """Whether the data was named by the user and is not called as the task's own."""
        dataset = self.group.dataset
        named = find_task(dataset)
        return dataset != self.group.task and (named is None or named.name != self.group.task)

    @property
    def other_preset(self) -> bool:
        """Whether the settings are those of another preset than the suite's."""
        suite = suites().get(self.place.suite)
        return suite is not None and self.group.preset != suite.preset

    @property
    def curve(self) -> list[tuple[int, float, float, float]]:
        """Update, mean score over seeds, and the least and the largest one."""
        by_step: dict[int, list[float]] = {}
        for record in self.records:
            for step, score in record["outcome"]["curve"]:
                by_step.setdefault(step, []).append(score)
        return [
            (step, float(np.mean(found)), min(found), max(found))
            for step, found in sorted(by_step.items())
        ]

    @property
    def behaviour(self) -> float | None:
        """Mean score of the logged episodes."""
        return next((r["outcome"]["behaviour_score"] for r in self.records), None)

    @property
    def seconds(self) -> float:
        """Seconds that updates took, those of seeds trained together counted once."""
        programs = {tuple(r["run"]["together"]): r["run"]["seconds"] for r in self.records}
        return float(sum(programs.values()))

    @property
    def hours(self) -> dict[str, float | None]:
        """Device hours: measured, at full length, and what the paper's time per update gives."""
        measured, paper = self.seconds / 3600, paper_costs()["algorithms"].get(self.group.algo)
        theirs = None
        if paper is not None:
            steps = paper.get("per_update", 1) * self.place.full_steps
            theirs = paper["train_ms"] * steps * len(self.records) / 3.6e6
        full = measured * self.place.full_steps / self.steps
        return {"measured": measured, "full": full, "paper": theirs}


@dataclass(frozen=True, kw_only=True)
class Table:
    """One suite: methods × tasks."""

    suite: Suite
    rows: tuple[tuple[str, str], ...]  # id and name of every method
    tasks: tuple[str, ...]
    cells: dict[tuple[str, str], TableCell]  # by id of the method, and task
    failed: dict[tuple[str, str], str] = field(default_factory=dict)  # why there is no cell

    @property
    def over(self) -> str:
        """What means and aggregates are over, in words."""
        count = len(self.common)
        short = ", without short runs" if self.left_short else ""
        return f"{count} common task{'' if count == 1 else 's'}{short}"

    @property
    def sources(self) -> dict[str, str]:
        """Where the published numbers beside ours are from, and how that is cited."""
        used = dict.fromkeys(n.source for cell in self.cells.values() for n in cell.published)
        return {name: citations()[name] for name in used}

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be said about published numbers."""
        return (*remarks(self.suite.id, self.sources), *self.legend)

    @property
    def legend(self) -> tuple[str, ...]:
        """What the kinds of published numbers beside ours mean, but for plain runs."""
        kinds = {n.kind for cell in self.cells.values() for n in cell.published}
        return tuple(f"{kind}: {meaning}." for kind, meaning in KINDS.items() if kind in kinds)

    @property
    def caption(self) -> str:
        """What the numbers are."""
        return (
            "Final scores, D4RL-normalised: mean ± half of Student's 95 % interval over seeds; "
            f"{self.sizes}"
        )

    @property
    def sizes(self) -> str:
        """Seeds, episodes and updates of all cells."""
        return _sizes(cell for cell in self.cells.values() if cell.scores)

    @property
    def counted_sizes(self) -> str:
        """Those of the cells that statistics are of."""
        return _sizes(self.cells[row, task] for row, by in self.scored.items() for task in by)

    @cached_property
    def scored(self) -> dict[str, dict[str, list[float]]]:
        """Scores by method and task that statistics are of, of the methods that have any.

        Short ones say nothing about a method at full length: they count only where all are short.
        """
        counted = {key: cell.scores for key, cell in self.cells.items() if cell.scores}
        if self.left_short:
            counted = {key: found for key, found in counted.items() if not self.cells[key].short}
        by_row = {
            row: {task: counted[row, task] for task in self.tasks if (row, task) in counted}
            for row, _ in self.rows
        }
        return {row: found for row, found in by_row.items() if found}

    @cached_property
    def left_short(self) -> bool:
        """Whether statistics leave out short cells: some are short, and some are not."""
        return len({cell.short for cell in self.cells.values() if cell.scores}) > 1

    @cached_property
    def scores(self) -> dict[str, dict[str, list[float]]]:
        """Those that aggregates are of: as many methods × tasks as leave no gap."""
        methods, tasks = fullest_block(self.scored)
        common = [task for task in self.tasks if task in tasks]
        return {row: {task: self.scored[row][task] for task in common} for row in methods}

    @property
    def common(self) -> list[str]:
        """The tasks that aggregates are over."""
        return list(next(iter(self.scores.values()), {}))

    @cached_property
    def iqm(self) -> dict[str, Interval]:
        """Interquartile mean of every method over the common tasks."""
        return {row: aggregate(found) for row, found in self.scores.items() if found}

    def mean_of(self, row: str) -> float | None:
        """Mean over the common tasks of the means over seeds."""
        found = self.scores.get(row, {})
        return float(np.mean([np.mean(values) for values in found.values()])) if found else None

    def published_mean(self, row: str) -> float | None:
        """The paper's mean over the same tasks, where it has all of them."""
        firsts = [published(self.suite.id, row, task)[:1] for task in self.common]
        found = [first[0].mean for first in firsts if first]
        return float(np.mean(found)) if found and len(found) == len(firsts) else None

    @cached_property
    def improvement(self) -> dict[tuple[str, str], Interval]:
        """P(a run of the first scores above one of the second), over the tasks that both have."""
        found: dict[tuple[str, str], Interval] = {}
        rows = list(self.scored)
        for i, first in enumerate(rows):
            for second in rows[i + 1 :]:
                ours, theirs = self.scored[first], self.scored[second]
                if not ours.keys() & theirs.keys():
                    continue
                one = probability_of_improvement(ours, theirs, samples=PAIRS)
                found[first, second] = one
                found[second, first] = Interval(
                    value=1 - one["value"], low=1 - one["high"], high=1 - one["low"]
                )
        return found

    @cached_property
    def profile(self) -> tuple[list[float], dict[str, list[float]]]:
        """Thresholds, and the share of runs of every method above each."""
        every = [x for found in self.scores.values() for values in found.values() for x in values]
        if not every:
            return [], {}
        limits = np.linspace(min(0.0, *every), max(every), THRESHOLDS)
        shares = {row: performance_profile(self.scores[row], limits) for row in self.iqm}
        return limits.tolist(), {row: share.tolist() for row, share in shares.items()}


def _sizes(cells: Iterable[TableCell]) -> str:
    scored = list(cells)
    return (
        f"{_span(len(cell.scores) for cell in scored)} seeds × "
        f"{_span(cell.episodes for cell in scored)} episodes, "
        f"{_span(cell.steps for cell in scored)} updates."
    )


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    if not found:
        return "0"
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
