"""`icql data list`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tyro

from icql.cli.data_shared import Options
from icql.data.datasets import D4RL_DIR, EMBEDDED, find_d4rl, suffixes
from icql.data.download import datasets_dir
from icql.data.tasks import get_task, list_tasks

DESCRIPTION = f"""List the tasks, the transitions the paper counts in their datasets, and where
their files are: in the package, in ${D4RL_DIR}, or among the fetched ones."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse and list."""
    options = tyro.cli(Options, prog="icql data list", description=DESCRIPTION, args=argv)
    tasks = [_task(name) for name in list_tasks()]
    files = _other_files({task["path"] for task in tasks})
    if options.json:
        return {"tasks": tasks, "files": files, "cache": str(datasets_dir())}
    for task in tasks:
        count = f"{task['transitions']:,}" if task["transitions"] else ""
        fetch = f"icql data fetch {task['name']}" if task["can_be_fetched"] else ""
        place = "in the package" if task["embedded"] else task["path"] or fetch
        print(f"{task['name']:<28} {task['environment']:<20} {count:>10}  {place}")
    for file in files:
        print(file)
    return None


def _task(name: str) -> dict[str, Any]:
    task, embedded = get_task(name), name in EMBEDDED
    path = None if embedded else find_d4rl(name)
    return {
        "name": name,
        "environment": task.env_id,
        "domain": task.domain,
        "transitions": task.transitions,
        "embedded": embedded,
        "path": None if path is None else str(path),
        "can_be_fetched": task.d4rl_file is not None,
    }


def _other_files(known: set[str | None]) -> list[str]:
    """Files of a readable kind in the known folders that no task stands for."""
    folders = [Path(folder).expanduser()] if (folder := os.environ.get(D4RL_DIR)) else []
    return [
        str(path)
        for folder in (*folders, datasets_dir())
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in suffixes() and str(path) not in known
    ]
