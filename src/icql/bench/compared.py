"""A report of a few finished runs: the same page as that of a suite, without published numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icql.bench.records import Asked, CellGroup
from icql.bench.report import Report, Table, TableCell, unequal
from icql.bench.runner import outcome_of, update_seconds
from icql.bench.suites import Suite
from icql.settings.grid import combinations, say_settings
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder

SUITE = Suite(id="runs", title="Runs side by side")


def report_of(runs: Sequence[Path]) -> Report:
    """Return the report of finished runs that have scores, a row for each and each combination."""
    found = [(run, cell) for run in runs for cell in _cells(run)]
    names = Counter((cell.place.row, cell.place.task) for _, cell in found)
    cells: dict[tuple[str, str], TableCell] = {}
    for run, cell in found:
        row, task = cell.place.row, cell.place.task
        if names[row, task] > 1:  # two runs of one method: their folders tell them apart
            row = f"{row} in {run}"
        place = dataclasses.replace(cell.place, row=row, name=row)
        cells[row, task] = dataclasses.replace(cell, place=place)
    rows = {row: row for row, _ in cells}
    tasks = tuple(dict.fromkeys(task for _, task in cells))
    table = Table(suite=SUITE, rows=tuple(rows.items()), tasks=tasks, cells=cells)
    return Report(
        tables=(table,),
        failures=(),
        unfinished=(),
        superseded=(),
        notes=tuple(unequal([table])),
    )


def _cells(run: Path) -> list[TableCell]:
    folder = RunFolder.open(run)
    plan, result = Plan.read(folder), folder.result()
    rows = list(folder.rows())
    evaluations = [row for row in rows if row["kind"] == "evaluation" and "score" in row]
    shared = {
        "together": list(plan.seeds),
        "preset": plan.preset,
        "dataset": Path(plan.dataset).name,
        "resumed_at": [],
        "seconds": update_seconds(rows, []),
        "updates_per_second": result["updates_per_second"],
        "versions": folder.manifest["versions"],
        "time": folder.manifest.get("time", ""),
    }
    found = []
    for i, settings in enumerate(combinations(plan.grid)):
        label = f"{plan.algo} {say_settings(settings)}".rstrip()
        task = plan.task or Path(plan.dataset).stem
        group = CellGroup(
            algo=plan.algo,
            task=task,
            data_hash=result["data_hash"],
            settings=dataclasses.asdict(plan.settings) | {"grid": dict(settings)},
            run=dataclasses.asdict(plan.run),
            preset=plan.preset,
            dataset=plan.dataset,
            changes=dict(settings),
            seeds=plan.seeds,
            asked=(Asked(SUITE.id, label, label, task, plan.run.steps),),
        )
        records: list[dict[str, Any]] = []
        for j, seed in enumerate(plan.seeds):
            outcome = outcome_of(result, evaluations, i * len(plan.seeds) + j)
            records.append({"cell": group.cell(seed), "outcome": outcome, "run": shared})
        place = group.asked[0]
        found.append(TableCell(group=group, place=place, records=tuple(records), published=()))
    return found
