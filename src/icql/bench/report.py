"""Records → what a report says: tables beside published numbers, cost, misses, notes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icql.bench.analyses import analyses_of
from icql.bench.published import Published, published
from icql.bench.records import BenchFolder
from icql.bench.suites import Suite, suites
from icql.bench.tables import Table, TableCell
from icql.files import atomic


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a folder holds, ready to be written."""

    tables: tuple[Table, ...]
    failures: tuple[tuple[str, str], ...]  # what, and why
    unfinished: tuple[tuple[str, int, int], ...]  # what, finished, wanted
    superseded: tuple[str, ...]  # groups that a longer one stands for
    notes: tuple[str, ...]

    def cells(self) -> list[TableCell]:
        """Every cell of every table."""
        return [cell for table in self.tables for cell in table.cells.values()]

    def counts(self) -> dict[str, int]:
        """How much there is."""
        records = {(c.group.key, r["cell"]["seed"]) for c in self.cells() for r in c.records}
        return {
            "suites": len(self.tables),
            "cells": len(records),
            "failures": len(self.failures),
            "misses": len(self.misses()),
        }

    def misses(self) -> list[tuple[TableCell, Published]]:
        """Full-length cells whose interval lies below the first published number."""
        found = [(cell, cell.verdicts[0]) for cell in self.cells() if cell.verdicts]
        return [(cell, number) for cell, (number, verdict) in found if verdict == "below"]


def gather(folder: BenchFolder) -> Report:
    """Read a folder; what is damaged is said and left out."""
    groups, notes = folder.groups()
    places: dict[tuple[str, str, str], list[TableCell]] = {}
    failed: dict[tuple[str, str, str], tuple[str, str]] = {}
    failures, unfinished = [], []
    for group in groups:
        records, wrong = folder.records(group)
        notes += [f"{group.label}: {reason}; run its suite again." for reason in wrong.values()]
        if len(records) < len(group.seeds):
            unfinished.append((group.label, len(records), len(group.seeds)))
            if (failure := folder.failure(group)) is not None:
                failures.append((group.label, str(failure["error"])))
                for place in group.asked:
                    key = place.suite, place.row, place.task
                    failed[key] = place.name, str(failure["error"])
        if records:
            ordered = tuple(records[seed] for seed in sorted(records))
            data, critics = analyses_of(folder, group)
            if critics is not None and "error" in critics:
                notes.append(f"{group.label} could not be analysed: {critics['error']}")
                critics = None
            for place in group.asked:
                numbers = published(place.suite, place.row, place.task)
                cell = TableCell(
                    group=group,
                    place=place,
                    records=ordered,
                    published=numbers,
                    data=data,
                    critics=critics,
                )
                places.setdefault((place.suite, place.row, place.task), []).append(cell)
    chosen = {key: max(cells, key=_weight) for key, cells in places.items()}
    left = [c for key, cells in places.items() for c in cells if c is not chosen[key]]
    superseded = [
        f"{c.place.name} on {c.place.task}, {c.steps:,} updates, preset {c.group.preset}, data "
        f"{c.group.data_hash[:8]}, group {c.group.key[:8]}"
        for c in left
    ]
    failed = {key: told for key, told in failed.items() if key not in chosen}
    tables = [_table(name, chosen, failed) for name in dict.fromkeys(key[0] for key in chosen)]
    order = list(suites())
    tables.sort(key=lambda t: order.index(t.suite.id) if t.suite.id in order else len(order))
    return Report(
        tables=tuple(tables),
        failures=tuple(failures),
        unfinished=tuple(unfinished),
        superseded=tuple(sorted(superseded)),
        notes=tuple(notes) + tuple(unequal(tables)),
    )


def write_report(report: Report, path: Path, picture: Path | None = None) -> None:
    """Write a page (.html) or tables (.md, .tex), whole or not at all.

    `picture` is where to write the first table as SVG as well; Markdown then shows it.
    """
    from icql.bench import report_html, report_picture, report_text

    if picture is not None:
        _write(picture, report_picture.picture(report))
    if path.suffix == ".md":
        shown = None if picture is None else os.path.relpath(picture, path.parent)
        _write(path, report_text.markdown(report, picture=shown))
    else:
        writers = {".html": report_html.page, ".tex": report_text.latex}
        _write(path, writers[path.suffix](report))


def _write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _weight(cell: TableCell) -> tuple[int, str]:
    """Of several groups in one place of a table the longest counts, then the newest."""
    return cell.steps, max(record["run"]["time"] for record in cell.records)


def _table(
    name: str,
    chosen: dict[tuple[str, str, str], TableCell],
    failed: dict[tuple[str, str, str], tuple[str, str]],
) -> Table:
    suite = suites().get(name) or Suite(id=name, title=name)
    cells = {(row, task): cell for (of, row, task), cell in chosen.items() if of == name}
    errors = {(row, task): error for (of, row, task), (_, error) in failed.items() if of == name}
    names = {row: said for (of, row, _), (said, _) in failed.items() if of == name}
    names |= {row: cell.place.name for (row, _), cell in cells.items()}
    rows = _ordered(names, [row.id for row in suite.rows])
    tasks = _ordered({task for _, task in (*cells, *errors)}, suite.tasks)
    return Table(
        suite=suite,
        rows=tuple((row, names[row]) for row in rows),
        tasks=tuple(tasks),
        cells=cells,
        failed=errors,
    )


def _ordered(found: Iterable[str], order: Sequence[str]) -> list[str]:
    """As in `order`; what is not in it comes last, by name."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(found, key=lambda name: (places.get(name, len(places)), name))


def unequal(tables: Iterable[Table]) -> list[str]:
    """What keeps the numbers of a table from being compared as they stand."""
    notes = []
    for table in tables:
        cells = [cell for cell in table.cells.values() if cell.scores]
        for what, found in (
            ("numbers of episodes", {cell.episodes for cell in cells}),
            ("numbers of seeds", {len(cell.scores) for cell in cells}),
            ("presets", {cell.group.preset for cell in cells}),
            ("versions", {_versions(r) for cell in cells for r in cell.records}),
        ):
            if len(found) > 1:
                notes.append(f"{table.suite.id}: its cells have different {what}.")
        for task in table.tasks:
            if len({cell.group.data_hash for cell in cells if cell.place.task == task}) > 1:
                notes.append(f"{table.suite.id}: its cells of {task} have different data.")
        for alike in _one_set(cells):
            said = f"{' and '.join(alike)} are one set of data, which counts once for each name"
            notes.append(f"{table.suite.id}: {said} in its aggregates.")
        if any(len(cell.scores) == 1 for cell in cells):
            notes.append(f"{table.suite.id}: a single seed has no interval.")
        names = dict(table.rows)
        without = [task for task in table.tasks if task not in table.common]
        without += [names[row] for row in table.scored if row not in table.scores]
        if without:
            notes.append(f"{table.suite.id}: aggregates are without {', '.join(without)}.")
    return notes


def _one_set(cells: Iterable[TableCell]) -> list[list[str]]:
    """Tasks that have the same data: one set that was asked for under several names."""
    tasks: dict[str, set[str]] = {}
    for cell in cells:
        tasks.setdefault(cell.group.data_hash, set()).add(cell.place.task)
    return sorted(sorted(names) for names in tasks.values() if len(names) > 1)


def _versions(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in record["run"]["versions"].items())
