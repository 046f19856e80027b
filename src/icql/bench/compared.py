"""A report of a few finished runs: the same page as that of a suite, without published numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icql.bench.records import Asked, CellGroup
from icql.bench.report import Report, unequal
from icql.bench.runner import outcome_of, update_seconds
from icql.bench.suites import Suite
from icql.bench.tables import Table, TableCell
from icql.errors import UserError
from icql.settings.grid import combinations, say_settings
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder

SUITE = Suite(id="runs", title="Runs side by side")


def report_of(runs: Sequence[Path], *, maps: bool = False) -> Report:
    """Return the report of finished runs that have scores, a row for each and each combination.

    `maps` asks their data and critics, too, for value maps and all that goes with them. It says of
    a run whose data is not at hand that it has none.
    """
    found: list[tuple[Path, TableCell]] = []
    notes: list[str] = []
    known: dict[str, dict[str, Any]] = {}
    for run in runs:
        own = _cells(run)
        try:
            own = _looked_into(run, own, known) if maps else own
        except UserError as error:
            notes.append(f"no value map of {run}: {error.where}: {error.what}")
        found += [(run, cell) for cell in own]
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
        notes=(*unequal([table]), *notes),
    )


def _looked_into(
    run: Path, cells: list[TableCell], known: dict[str, dict[str, Any]]
) -> list[TableCell]:
    """A run's cells with what its data and its critics say; `known` data is not asked again."""
    from icql.analysis.brief import brief_of_data, brief_of_run
    from icql.training.trained import data_of

    data, found = data_of(RunFolder.open(run)), []
    for i, cell in enumerate(cells):
        seeds = cell.group.seeds
        if cell.group.data_hash not in known:
            known[cell.group.data_hash] = brief_of_data(data)
        said = brief_of_run(run, data, slice(i * len(seeds), (i + 1) * len(seeds)))
        critics = None if said is None else {"seed": seeds[0], **said}
        looked = dataclasses.replace(cell, data=known[cell.group.data_hash], critics=critics)
        found.append(looked)
    return found


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
