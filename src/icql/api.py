"""`icql.train` and what the command line shares with it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icql.algos.presets import PresetName, resolve_preset
from icql.algos.registry import check_offline
from icql.data import Task, Transitions, get_task
from icql.data.arrays import memory_limit, read_size
from icql.data.datasets import examine, is_store
from icql.data.tasks import find_task
from icql.errors import UserError
from icql.progress import Display
from icql.settings.change import override
from icql.settings.grid import Grid, plain_grid
from icql.settings.run import RunSettings
from icql.training.group import is_first, join_group, stopping_together
from icql.training.plan import Plan, recorded_settings
from icql.training.run_folder import RunFolder
from icql.training.trainer import run_training

DEFAULT_DATASET = "hopper-mini"


@dataclasses.dataclass(frozen=True)
class Request:
    """What to train, before anything is loaded; every default is resolved."""

    algo: str
    task: str | None
    dataset: str
    settings: Any
    run: RunSettings
    seeds: tuple[int, ...]
    sources: tuple[str, ...]
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)


def make_request(
    algo: str = "icql",
    *,
    task: str | None = None,
    dataset: str | None = None,
    preset: PresetName = "quick",
    seed: int = 0,
    seeds: int = 1,
    grid: Grid | None = None,
) -> Request:
    """Resolve task, dataset and preset from what was given."""
    if seeds < 1:
        raise UserError("must be at least 1.", where="seeds")
    check_offline(algo)
    dataset = dataset or task or DEFAULT_DATASET
    named: Task | None = get_task(task) if task is not None else find_task(dataset)
    chosen = resolve_preset(algo, preset, None if named is None else named.name)
    return Request(
        algo,
        None if named is None else named.name,
        dataset,
        chosen.settings,
        chosen.run,
        tuple(range(seed, seed + seeds)),
        chosen.sources,
        plain_grid(grid or {}),
    )


def request_of(out: Path) -> Request:
    """Return the request that started the run in `out`: what `--resume` goes on with."""
    folder = RunFolder.open(out)
    manifest = folder.manifest
    return Request(
        manifest["algo"],
        manifest["task"],
        manifest["dataset"],
        *recorded_settings(folder),
        tuple(manifest["seeds"]),
        tuple(manifest["sources"]),
        plain_grid(manifest.get("grid", {})),
    )


def default_out(request: Request) -> Path:
    """Return a new folder under `runs/`, named after the run and the time."""
    stem = Path(request.dataset).stem.replace("/", "-").replace(":", "-")
    return Path("runs") / f"{request.algo}-{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def load_valid(dataset: str, task: str | None, display: Display) -> Transitions:
    """Load a dataset that may be trained on: errors stop here, warnings are said."""
    findings, _ = examine(dataset, task=task)
    data = findings.usable(dataset)
    for warning in findings.warnings:
        display.say(f"warning: {warning.message}")
    return data


def execute(
    request: Request,
    *,
    out: Path | None = None,
    resume: bool = False,
    display: Display,
    memory: int | None = None,
    devices: int | None = None,
) -> dict[str, Any]:
    """Join the group of processes, if there is one; load the data, validate it and train."""
    join_group()
    if not is_first():
        display = Display(quiet=True)
    with stopping_together():
        data = load_valid(request.dataset, request.task, display)
    if memory is None and is_store(request.dataset):
        memory = memory_limit()
    name = request.task or data.info.task
    plan = Plan(
        request.algo,
        request.dataset,
        None if name is None else get_task(name),
        request.settings,
        request.run,
        request.seeds,
        request.sources,
        request.grid,
    )
    return run_training(
        plan,
        data,
        out or default_out(request),
        resume=resume,
        display=display,
        memory=memory,
        devices=devices,
    )


def train(
    algo: str = "icql",
    *,
    task: str | None = None,
    dataset: str | None = None,
    preset: PresetName = "quick",
    steps: int | None = None,
    seeds: int = 1,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    memory: str | int | None = None,
    devices: int | None = None,
    grid: Grid | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a policy from logged data and return what `result.json` says.

    Args:
        algo: an algorithm by name (`icql algos` lists them).
        task: a task of the table; gives the environment, the score and the task's settings.
        dataset: a name or a file; by default the task's own data, or the embedded `hopper-mini`.
        preset: `quick` finishes on two CPU cores in minutes, `paper` holds the paper's values.
        steps: updates; by default the preset's.
        seeds: how many seeds to train side by side, `seed` being the first.
        out: run folder to make; by default a new one under `runs/`.
        resume: go on with the run in `out`.
        settings: changes to the algorithm's settings by dotted name, e.g. {"local.layers": 8}.
        run: changes to steps, evaluation, logging and checkpoints by name.
        memory: what the data may take, in bytes or as "500MB"; by default half of the machine's
            memory. A store (`.icql`) beyond it is read from disk as it is needed, with the same
            result to the bit. Networks, compiled programs and environments come on top.
        devices: how many train together, 0 for all; by default one, or all of a group of processes
            (`icql.training.group`). The result is that of one, up to rounding.
        grid: settings to vary, each by its dotted name with its values: {"beta": [1, 3, 10]}. Every
            combination is trained with every seed, side by side in one program.
        quiet: show nothing on standard error.
    """
    budget = None if memory is None else read_size(memory)
    if resume:
        if out is None:
            raise UserError("say which run to resume.", where="out")
        request = request_of(Path(out))
        if grid is not None:
            request = dataclasses.replace(request, grid=plain_grid(grid))
    else:
        request = make_request(
            algo, task=task, dataset=dataset, preset=preset, seed=seed, seeds=seeds, grid=grid
        )
    changes = {**(run or {}), **({} if steps is None else {"steps": steps})}
    request = dataclasses.replace(
        request,
        settings=override(request.settings, dict(settings or {})),
        run=override(request.run, changes),
    )
    return execute(
        request,
        out=None if out is None else Path(out),
        resume=resume,
        display=Display(quiet=quiet),
        memory=budget,
        devices=devices,
    )
