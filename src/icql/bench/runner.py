"""Runs suites, and never loses work: finished cells stay, killed runs go on, failures are kept."""

from __future__ import annotations

import dataclasses
import gc
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icql.algos.presets import resolve_preset
from icql.bench.analyses import analyse
from icql.bench.records import (
    Asked,
    BenchFolder,
    CellGroup,
    Damaged,
    read_sealed,
)
from icql.bench.suites import Row, Suite
from icql.data.datasets import EMBEDDED, examine, find_d4rl
from icql.data.tasks import get_task
from icql.data.transitions import Transitions
from icql.errors import OutOfTime, UserError
from icql.files import move
from icql.locks import held, holder
from icql.progress import Display
from icql.seals import plain, write_sealed
from icql.settings.change import leaves, names_of
from icql.training.plan import AUTO, Plan
from icql.training.run_folder import RunFolder

KEPT = 8  # groups whose compiled programs are kept: small ones are shared
WAIT = 2.0  # seconds between two looks at groups that other processes hold
GroupRunner = Callable[[BenchFolder, Iterable[CellGroup], Display], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is wanted of a suite; a task is one of the table, or task@data for one's own data."""

    suite: Suite
    tasks: tuple[str, ...] = ()  # none: the suite's
    algos: tuple[str, ...] = ()  # none: all rows
    datasets: Mapping[str, str] = field(default_factory=dict)  # where the data of a task is
    preset: str | None = None  # the suite's, if none
    seeds: int = 5
    seed: int = 0  # the first
    run: Mapping[str, Any] = field(default_factory=dict)  # changes of run settings

    def groups(self, say: Callable[[str], None] = lambda line: None) -> list[CellGroup]:
        """Everything that is wanted, once it is known that all of it can be run.

        `say` is told what the data decided for, and why.

        Raises:
            UserError: something is unknown or does not fit, or data is missing; all of it at once.
        """
        from icql.training.choose import choose, standardised  # JAX: only where something is run

        suite = self.suite.runnable()
        if self.run.get("episodes") == 0:
            raise UserError("a table needs scores, and no episodes give none.", where="--episodes")
        tasks = tuple(dict.fromkeys(self.tasks)) or suite.tasks
        if unused := sorted(set(self.datasets) - set(tasks)):
            raise UserError(
                f"no task {', '.join(unused)} is run.", where="--dataset", fix="Add it to --tasks."
            )
        data = self._data(tasks)
        rows = suite.chosen(self.algos)
        # every plan fits before any data is read, and of that one task's at a time
        plans = {task: [self._plan(task, row, data[task]) for row in rows] for task in tasks}
        groups: dict[str, CellGroup] = {}
        for task in tasks:
            log = _log(task, data[task])
            for row, plan in zip(rows, plans[task], strict=True):
                given = [*names_of(row.settings), *self.run]
                if plan.algo == AUTO:  # a cell has the name of what is run
                    plan, why = choose(plan, log, given)
                    say(f"{task}: {why}")
                decided = standardised(plan, log, given)
                group = self._group(task, row, decided, log.content_hash())
                same = groups.get(group.key)
                groups[group.key] = group if same is None else same.joined(group)
        return list(groups.values())

    def _data(self, tasks: Iterable[str]) -> dict[str, str]:
        """Where the data of every task is."""
        found, fetched, others = dict[str, str](), list[str](), list[str]()
        for task in tasks:
            table = get_task(task.partition("@")[0])
            own = table.name == task
            if task in self.datasets:
                found[task] = self.datasets[task]
            elif task in EMBEDDED or (own and find_d4rl(task) is not None):
                found[task] = task
            else:
                (fetched if own and table.d4rl_file is not None else others).append(task)
        if missing := fetched + others:
            more = ", and so on" if len(fetched) > 1 else ""
            ways = [f"Fetch it: icql data fetch {fetched[0]}{more}."] if fetched else []
            ways += [f"Say where it is: --dataset {task}=FILE" for task in others[:1]]
            ways += ["or collect some: icql data collect --help."] if others else []
            here = " ".join(found) or EMBEDDED[0]
            raise UserError(
                f"there is no data of {', '.join(missing)}.",
                where="icql bench run",
                fix=f"{' '.join(ways)} ICQL_D4RL_DIR may name the folder that holds D4RL's files. "
                f"To run what is here alone: --tasks {here}",
            )
        return found

    def _plan(self, task: str, row: Row, dataset: str) -> Plan:
        plan = Plan.make(
            row.algo,
            task=task.partition("@")[0],
            dataset=dataset,
            preset=self.preset or self.suite.preset,
        )
        return plan.asked(
            seed=self.seed, seeds=self.seeds, settings=row.settings, run=dict(self.run)
        )

    def _group(self, task: str, row: Row, plan: Plan, data_hash: str) -> CellGroup:
        full = resolve_preset(plan.algo, self.suite.preset, plan.task).run.steps
        return CellGroup(
            algo=plan.algo,
            task=str(plan.task),
            data_hash=data_hash,
            settings=plain(dataclasses.asdict(plan.settings)),
            run=plain(dataclasses.asdict(plan.run)),
            preset=plan.preset,
            dataset=plan.dataset,
            changes=plain(dict(row.settings)),
            seeds=plan.seeds,
            asked=(Asked(self.suite.id, row.id, row.name, task, full),),
        )


def _log(task: str, dataset: str) -> Transitions:
    findings, _ = examine(dataset, task=task.partition("@")[0])
    return findings.usable(dataset)


def run_suite(
    request: Request, out: Path, display: Display, work: GroupRunner | None = None
) -> dict[str, Any]:
    """Run what is not finished yet of a suite; returns how many cells are, and what failed.

    `work` runs the groups: `run_groups`, where none is given, or a cluster (`icql.bench.on_ray`).

    Raises:
        UserError: nothing was begun, because not all of it can be run.
    """
    groups = request.groups(display.say)
    folder = BenchFolder.make(out)
    for group in groups:
        folder.ask(group)
    before = sum(len(folder.records(group)[0]) for group in groups)
    out_of_time = False
    try:
        (work or run_groups)(folder, groups, display)
    except OutOfTime:
        out_of_time = True
    left = [group for group in groups if not is_done(folder, group)]
    failed = [(group, failure) for group in left if (failure := folder.failure(group))]
    return {
        "suite": request.suite.id,
        "folder": str(out),
        "cells": sum(len(group.seeds) for group in groups),
        "finished": sum(len(folder.records(group)[0]) for group in groups),
        "found_finished": before,
        "out_of_time": out_of_time,
        "failed": [
            {"group": group.key, "what": group.label, "error": failure["error"]}
            for group, failure in failed
        ],
    }


def run_groups(
    folder: BenchFolder,
    groups: Iterable[CellGroup],
    display: Display,
    *,
    until: float | None = None,
) -> None:
    """Run every group that nobody else runs; wait for, or take over, those of other processes.

    `until` is when to stop, by the clock `time.monotonic`; then `OutOfTime` is raised.
    """
    left, began = list(enumerate(groups, start=1)), _now()
    total, awaited = len(left), set[str]()
    while left:
        others = []
        for number, group in left:
            if is_done(folder, group):
                continue
            if until is not None and time.monotonic() > until:
                raise OutOfTime
            failure = folder.failure(group) if group.key in awaited else None
            if failure is not None and failure.get("time", "") >= began:
                continue  # the other process tried it just now
            with held(folder.lock_path(group.key)) as mine:
                if mine:
                    display.say(f"[{number}/{total}] {group.label}")
                    settle(folder, group, display, until=until)
                    if number % KEPT == 0:
                        _forget_programs()
                else:
                    others.append((number, group))
        for _, group in others:
            if group.key not in awaited:
                who = holder(folder.lock_path(group.key)) or "another process"
                display.say(f"waiting: {group.label} is run by {who}")
                awaited.add(group.key)
        if others and len(others) == len(left):
            time.sleep(WAIT)
        left = others


def is_done(folder: BenchFolder, group: CellGroup) -> bool:
    """Whether every cell of a group has a record."""
    return len(folder.records(group)[0]) == len(group.seeds)


def settle(
    folder: BenchFolder, group: CellGroup, display: Display, *, until: float | None = None
) -> None:
    """Finish every cell of a group that is not, or write down why that failed."""
    found, wrong = folder.records(group)
    for reason in wrong.values():
        display.say(f"warning: {reason}: it is made again")
    try:
        for seeds in spans(folder, group, [s for s in group.seeds if s not in found]):
            train_cells(folder, group, seeds, display, until=until)
    except Exception as error:  # whatever it is, it is recorded, and the other groups go on
        failure = write_failure(folder, group, error)
        display.say(f"failed: {group.label}: {failure['error']}")
    else:
        folder.failure_path(group.key).unlink(missing_ok=True)


def write_failure(folder: BenchFolder, group: CellGroup, error: Exception) -> dict[str, Any]:
    """Write down why a group failed; returns what was written."""
    failure = {
        "error": str(error) or type(error).__name__,
        "kind": type(error).__name__,
        "group": group.key,
        "trace": "".join(traceback.format_exception(error, limit=-8)),
        "time": _now(),
    }
    write_sealed(folder.failure_path(group.key), failure)
    return failure


def spans(folder: BenchFolder, group: CellGroup, missing: list[int]) -> Iterator[range]:
    """Seeds to train together: those of runs that were begun, then what is left, in a row."""
    left = set(missing)
    for seeds, _ in folder.begun(group.key):
        if left & set(seeds):
            yield seeds
            left -= set(seeds)
    while left:
        first = last = min(left)
        while last + 1 in left:
            last += 1
        yield range(first, last + 1)
        left -= set(range(first, last + 1))


def train_cells(
    folder: BenchFolder,
    group: CellGroup,
    seeds: range,
    display: Display,
    *,
    until: float | None = None,
) -> None:
    """Train these seeds side by side, or go on with that; write a record for each."""
    plan = Plan.make(group.algo, task=group.task, dataset=group.dataset, preset=group.preset)
    plan = plan.asked(seed=seeds[0], seeds=len(seeds), settings=group.settings, run=dict(group.run))
    out = folder.runs_path(group.key) / f"{seeds[0]}-{seeds[-1]}"
    begin = time.perf_counter()
    result = _finished(out)
    if result is None:
        result = _trained(plan, out, display, until)
    run = RunFolder.open(out)
    if result["data_hash"] != group.data_hash:
        raise UserError("the data changed after the run was begun.", where=group.dataset)
    shared = {
        "together": list(seeds),
        "preset": group.preset,
        "dataset": Path(group.dataset).name,
        "resumed_at": _resumes(out),
        "seconds": update_seconds(run.rows(), _resumes(out)),
        "updates_per_second": result["updates_per_second"],
        "last_wall_seconds": round(time.perf_counter() - begin, 3),  # since the last kill
        "versions": run.manifest["versions"],
        "time": _now(),
    }
    evaluations = [r for r in run.rows() if r["kind"] == "evaluation" and "score" in r]
    if result["score"] is not None and (
        not evaluations or evaluations[-1]["step"] != result["steps"]
    ):
        raise UserError(
            "the last evaluation is missing.",
            where=str(run.metrics_path),
            fix=f"Move {out} away: the run is then made again.",
        )
    analyse(folder, group, out, display)  # before the records: whatever is finished has been tried
    there, _ = folder.records(dataclasses.replace(group, seeds=tuple(seeds)))
    for place, seed in enumerate(seeds):
        if seed in there:  # a finished cell is never written again
            continue
        outcome = outcome_of(result, evaluations, place)
        folder.write_record(group, seed, {"outcome": outcome, "run": shared})


def _trained(plan: Plan, out: Path, display: Display, until: float | None) -> dict[str, Any]:
    """Train in `out`, from its last checkpoint if it has one; a folder of no use is set aside."""
    from icql.training.trainer import run_training

    resumed = _begun(plan, out, display)
    if resumed is not None:
        _note_resume(out)
        try:
            return run_training(resumed, out=out, resume=True, display=display, until=until)
        except UserError as error:
            if error.where != str(out / "checkpoints"):
                raise  # the training's own failure, not that of what was saved
            _set_aside(out, error, display)
    decided = [name for name, _ in leaves(plan.settings)]  # nothing is left for the data to say
    return run_training(plan, out=out, resume=False, display=display, given=decided, until=until)


def _begun(plan: Plan, out: Path, display: Display) -> Plan | None:
    """The plan to go on with in `out`; None where there is nothing to go on with."""
    if not out.exists():
        return None
    try:
        return Plan.read(RunFolder.open(out)).resumed(plan)
    except UserError as error:
        _set_aside(out, error, display)
        return None


def _set_aside(out: Path, error: UserError, display: Display) -> None:
    """Move a folder that cannot be gone on with out of the way; nothing is deleted."""
    aside = out.with_name(f"{out.name}.aside.{time.time_ns()}")
    move(out, aside)
    _resumes_path(out).unlink(missing_ok=True)
    display.say(f"warning: {error} It is {aside.name} now, and the run begins anew.")


def _finished(out: Path) -> dict[str, Any] | None:
    """What a finished run says."""
    if not RunFolder(out).result_path.is_file():
        return None
    try:
        return RunFolder.open(out).result()
    except UserError:
        return None


def outcome_of(
    result: Mapping[str, Any], evaluations: list[dict[str, Any]], place: int
) -> dict[str, Any]:
    """What decides nothing but follows from the cell: the final score, and the best apart."""
    curve = [[row["step"], row["score"][place]] for row in evaluations]
    final, returns = _final(result, place)
    best = max(curve, key=lambda point: point[1]) if curve else None
    return {
        "score": final,
        "returns": returns,
        "best": None if best is None else {"step": best[0], "score": best[1]},
        "curve": curve,
        "behaviour_score": result["behaviour_score"],
        "warnings": result["warnings"],
        "parameter_hash": result["parameter_hash"],  # of all seeds that were trained together
    }


def _final(result: Mapping[str, Any], place: int) -> tuple[float | None, list[float]]:
    """Final score and returns of one member; not of the curve, whose last row may be lost."""
    if (scores := result["score"]) is None:
        return None, []
    parts = scores.get("combinations", [scores])
    per_seed = [score for part in parts for score in part["per_seed"]]
    return per_seed[place], [returns for part in parts for returns in part["returns"]][place]


def update_seconds(rows: Iterable[Mapping[str, Any]], resumed_at: Iterable[int]) -> float:
    """Seconds that updates took; the clock of the rows starts anew wherever a run was resumed."""
    marks, total, last = sorted(resumed_at), 0.0, 0.0
    for row in rows:
        if row["kind"] != "train":
            continue
        while marks and row["step"] > marks[0]:
            total, last = total + last, 0.0
            marks.pop(0)
        last = row["seconds"]
    return round(total + last, 3)


def _resumes(out: Path) -> list[int]:
    """The updates after which a run was resumed."""
    try:
        return list((read_sealed(_resumes_path(out)) or {"steps": []})["steps"])
    except (Damaged, KeyError):
        return []  # times alone follow from it


def _note_resume(out: Path) -> None:
    """Write down that a run goes on from its last checkpoint."""
    steps = [int(path.name) for path in (out / "checkpoints").glob("*") if path.name.isdigit()]
    last = max(steps, default=0)
    before = [step for step in _resumes(out) if step < last]
    write_sealed(_resumes_path(out), {"steps": [*before, last] if last else []})


def _resumes_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.resumed.json")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _forget_programs() -> None:
    """Free what was compiled: the programs of hundreds of groups would fill the memory."""
    import jax

    jax.clear_caches()
    gc.collect()
