"""What a table costs: hours of a device by the records' own clocks, beside the paper's time.

Seconds are those of updates alone, without compilation and evaluation; of seeds trained side by
side they are counted once. Hours of different devices are never added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from icql.bench.tables import Table, TableCell
from icql.training.plan import AUTO

SEEDS = 5  # of every cell of the paper's tables
SOURCE = "tab:all_time_flop_mem, its machine"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Hours that the cells of a table took on one kind of device."""

    device: str
    cells: int
    seeds: int
    measured: float  # hours as they were
    full: float  # at full length, in proportion
    paper: float | None  # the cells it has, same seeds, by the paper's time per update
    paper_cells: int  # how many those are
    whole: float  # every method that was timed, on every task with 5 seeds
    paper_whole: float | None  # the same by the paper's times; None where it has not all of them
    timed: tuple[str, ...]  # which these are
    untimed: tuple[str, ...]  # methods of the table that were not timed on this device

    @property
    def unit(self) -> str:
        """GPU-hours, CPU-hours …"""
        return f"{self.device.partition(':')[0].upper() or 'DEVICE'}-hours"

    @property
    def name(self) -> str:
        """Of the device, as people say it: its kind, where it has no other name."""
        platform, _, kind = self.device.partition(": ")
        return platform if kind in ("", platform) else kind

    def said(self, suite: str) -> str:
        """One sentence for people."""
        text = (
            f"{suite} on {self.name}: {_hours(self.measured)} {self.unit} for {self.cells} cells "
            f"({self.seeds} seeds in all), {_hours(self.full)} at full length"
        )
        if self.paper is not None:
            every = "them" if self.paper_cells == self.cells else f"the {self.paper_cells} it has"
            text += f"; the paper's time per update gives {_hours(self.paper)} hours for {every}"
        if not self.timed:  # methods that have no row in the table
            return f"{text}."
        text += f". The whole table, {SEEDS} seeds"
        if self.untimed:
            text += f", of {'; '.join(self.timed)} alone (no other was timed on this device)"
        text += f": about {_hours(self.whole)} {self.unit}"
        if self.paper_whole is not None:
            text += f", the paper's {_hours(self.paper_whole)} hours"
        return f"{text}."

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return vars(self) | {"unit": self.unit}


def costs(table: Table) -> list[Cost]:
    """What the cells of a table cost, for each kind of device."""
    by_device: dict[str, list[TableCell]] = {}
    for cell in table.cells.values():
        by_device.setdefault(device_of(cell), []).append(cell)
    return [_cost(table, device, cells) for device, cells in sorted(by_device.items())]


def device_of(cell: TableCell) -> str:
    """What a cell was trained on, as its records name it."""
    return str(cell.records[0]["run"]["versions"].get("device", "unknown"))


def _cost(table: Table, device: str, cells: list[TableCell]) -> Cost:
    rows = [row for row in table.suite.rows if row.algo != AUTO]  # whose cells are another row's
    of_row = [(row, [cell for cell in cells if cell.place.row == row.id]) for row in rows]
    timed = [(row, own) for row, own in of_row if own]
    tasks = len(table.suite.tasks)
    # cloning is not in the paper's table of times, and costs next to nothing
    asked = [cell.hours["paper"] for row, own in timed if row.algo != "bc" for cell in own]
    cells = list({cell.group.key: cell for cell in cells}.values())  # in two rows, and run once
    papers = [cell.hours["paper"] for cell in cells]
    return Cost(
        device=device,
        cells=len(cells),
        seeds=sum(len(cell.records) for cell in cells),
        measured=_sum(cell.hours["measured"] for cell in cells),
        full=_sum(cell.hours["full"] for cell in cells),
        paper=_sum(papers) if any(hours is not None for hours in papers) else None,
        paper_cells=sum(hours is not None for hours in papers),
        whole=tasks * sum(_five_seeds(own, "full") for _, own in timed),
        paper_whole=tasks * sum(_five_seeds(own, "paper") for _, own in timed)
        if asked and None not in asked
        else None,
        timed=tuple(row.name for row, _ in timed),
        untimed=tuple(row.name for row, own in of_row if not own),
    )


def _five_seeds(cells: list[TableCell], clock: str) -> float:
    """Hours of one method on one task with 5 seeds, by the mean of the seeds that were run."""
    return SEEDS * _sum(cell.hours[clock] for cell in cells) / sum(len(c.records) for c in cells)


def _sum(hours: Iterable[float | None]) -> float:
    return sum(found for found in hours if found is not None)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
