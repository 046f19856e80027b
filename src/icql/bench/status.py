"""How far a benchmark folder has come."""

from __future__ import annotations

from typing import Any

from icql.bench.records import BenchFolder, CellGroup
from icql.locks import holder
from icql.training.run_folder import RunFolder


def status(folder: BenchFolder) -> dict[str, Any]:
    """Every group with the state of its cells: done, running, failed or waiting; by suite, task."""
    groups, wrong = folder.groups()
    rows = sorted(
        (_standing(folder, group) for group in groups),
        key=lambda row: (row["suites"], row["task"], row["what"]),
    )
    return {
        "folder": str(folder.path),
        "cells": sum(row["cells"] for row in rows),
        "finished": sum(row["finished"] for row in rows),
        "damaged": wrong + [reason for row in rows for reason in row["damaged"]],
        "groups": rows,
    }


def _standing(folder: BenchFolder, group: CellGroup) -> dict[str, Any]:
    found, wrong = folder.records(group)
    lost = list[str]()  # rows of metrics
    who, failure = holder(folder.lock_path(group.key)), folder.failure(group)
    if who is not None:
        state = "running"
    elif len(found) == len(group.seeds):
        state = "done"
    else:
        state = "waiting" if failure is None else "failed"
    return {
        "group": group.key,
        "suites": sorted({place.suite for place in group.asked}),
        "what": group.label,
        "algo": group.algo,
        "task": group.asked[0].task,
        "cells": len(group.seeds),
        "finished": len(found),
        "state": state,
        "steps": group.run["steps"],
        "step": _step(folder, group, lost) if state != "done" else group.run["steps"],
        "holder": who,
        "error": None if failure is None or state == "done" else failure["error"],
        "damaged": [*wrong.values(), *lost],
    }


def _step(folder: BenchFolder, group: CellGroup, lost: list[str]) -> int:
    """The last update that a begun run has written down; damaged rows are told to `lost`."""
    runs = [RunFolder(path) for _, path in folder.begun(group.key)]
    steps = (row["step"] for run in runs for row in run.rows(lost.append))
    return max(steps, default=0)
