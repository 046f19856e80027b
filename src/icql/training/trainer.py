"""A whole run: data → neighbours → updates with evaluations in between → a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from icql.algos.base import Algorithm
from icql.algos.registry import make_algorithm
from icql.data.arrays import memory_limit
from icql.data.datasets import examine, is_store
from icql.data.tasks import Task, get_task
from icql.data.transitions import Transitions
from icql.errors import OutOfTime, UserError
from icql.evaluation.rollout import EnvPool
from icql.files import check_writable, default_cache_dir
from icql.graph.logged import Comparison, compare_rows
from icql.progress import Display, Work
from icql.retrieval import Neighbours, Space, build_neighbours
from icql.retrieval.cache import read_fitted, write_fitted
from icql.retrieval.metric import fitted_space
from icql.settings.change import differences, leaves
from icql.settings.grid import check_names
from icql.settings.shared import AlgorithmSettings
from icql.training.callbacks import Callback
from icql.training.choose import choose, standardised
from icql.training.corrective import Corrective, corrective_of, effect_of
from icql.training.desk import Bystander, Desk, Prepared, check_finite
from icql.training.device import Normaliser, fit_normaliser
from icql.training.draws import alias_of
from icql.training.loop import Loop, check_memory, make_mesh
from icql.training.machine import keep_threads, machine, say_changes
from icql.training.plan import AUTO, Plan
from icql.training.processes import agree, is_first, join_group, share, stopping_together
from icql.training.run_folder import RunFolder
from icql.training.spec import spec_of
from icql.training.stream import Streamed, feed
from icql.training.vary import check_grid, columns
from icql.training.versions import versions


def run_training(
    plan: Plan,
    *,
    out: Path,
    resume: bool = False,
    display: Display,
    memory: int | None = None,
    devices: int | None = None,
    given: Collection[str] = (),
    until: float | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train as planned; returns what `result.json` says. With `resume`, go on where it stopped.

    `memory` is what the data may take (see `icql.training.stream`), `devices` how many train (see
    `icql.training.loop`); they decide no outcome. `given` are the settings that were asked for by
    name, which the data does not decide (`icql.training.choose`). `until` is when to stop, by the
    clock `time.monotonic`: at the last mark that fits, with a checkpoint. `callbacks` are told how
    it goes (`icql.training.callbacks`). In a group of processes only the first has a folder and a
    result; the others return what was trained.

    Raises:
        OutOfTime: the time was up; resumed, the run ends as one that was never stopped.
    """
    join_group()
    if resume and RunFolder(out).manifest_path.is_file():
        keep_threads(RunFolder(out).manifest.get("machine", {}).get("threads"))
    if not is_first():
        display = Display(quiet=True)
    with contextlib.ExitStack() as owning:
        return _run(
            plan,
            out,
            display,
            owning,
            resume=resume,
            memory=memory,
            devices=devices,
            given=given,
            until=until,
            callbacks=callbacks,
        )


def _run(
    plan: Plan,
    out: Path,
    display: Display,
    owning: contextlib.ExitStack,
    *,
    resume: bool,
    memory: int | None,
    devices: int | None,
    given: Collection[str],
    until: float | None,
    callbacks: Sequence[Callback],
) -> dict[str, Any]:
    """As `run_training`; the folder stays owned, once it is there, until `owning` is closed."""
    with stopping_together():
        if is_first() and not resume:
            RunFolder.check_free(out)
            check_writable(out)
        begun = RunFolder.open(out) if is_first() and resume else None
        if begun is not None:
            owning.enter_context(begun.owned())
        with begun.missing(plan.dataset) if begun else contextlib.nullcontext():
            findings, _ = examine(plan.dataset, task=plan.task, columns=plan.columns)
        data = findings.usable(plan.dataset)
        for warning in findings.warnings:
            display.say(f"warning: {warning.message}")
        if begun is not None:
            begun.check_data(data)
    plan = dataclasses.replace(plan, task=plan.task or data.info.task)
    if plan.algo == AUTO:
        plan, why = choose(plan, data, given)
        display.say(f"algorithm: {why}")
    if not resume:
        usual, plan = plan, standardised(plan, data, given)
        if "policy.layer_norm" in differences(
            dict(leaves(usual.settings)), dict(leaves(plan.settings))
        ):
            display.say("policy: no LayerNorm, as for any log of one's own (--policy.layer-norm)")
    if plan.settings.data.normalise_states and data.info.own:
        display.say("states: each column standardised (--data.no-normalise-states: as they are)")
    if memory is None and is_store(plan.dataset):
        memory = memory_limit()
    with stopping_together():
        kept = RunFolder(out).space_path if resume else None
        ready, states = prepare(plan, data, display, memory=memory, devices=devices, kept=kept)
    desk = Bystander()
    if is_first():
        # only now is everything known to fit together: a refused run leaves no folder behind
        if begun is None:
            owning.enter_context(RunFolder(out).owned())
        space = space_of(ready.neighbours)
        folder = open_folder(plan, data, out, display, resume=resume, space=space)
        if space is not None:
            folder.check_space(space.digest)
            if not folder.space_path.exists():
                write_fitted(folder.space_path, space.fitted)
        display.say(f"run: {out}")
        desk = Desk(ready, folder, display, resume=resume, until=until, callbacks=callbacks)
    with contextlib.closing(desk):
        return desk.finish(drive(plan, ready.loop, states, desk))


def drive(plan: Plan, loop: Loop, states: Any, desk: Bystander) -> Any:
    """Run every update that is left; returns the final states.

    Every process of a group runs this, and so asks for the same things in the same order; what
    only the first one does is done at its desk.
    """
    with stopping_together():
        saved, states = desk.start(loop.gather(states))
    step = agree(saved)
    states = loop.place(share(states) if step else states)
    while step < plan.run.steps:
        goal = plan.next_mark(step)
        while step < goal:
            updates = agree(desk.updates(goal - step))
            begin = time.perf_counter()
            states, means = loop.advance(states, step, updates)
            step += updates
            check_finite(means, plan.members, step, loop.algorithm.remedies)
            desk.note(step, updates, time.perf_counter() - begin, means)
        looks = plan.evaluates_at(step) or plan.saves_at(step)
        desk.mark(step, loop.gather(states) if looks else None)
        # only at marks, after which metrics begin anew: a stop leaves no trace in what follows
        left = plan.next_mark(step) - step
        if left > 0 and agree(int(desk.late(left))):
            desk.save(step, loop.gather(states))
            raise OutOfTime(f"the time was up after update {step:,}")
    return loop.gather(states)


def prepare(
    plan: Plan,
    data: Transitions,
    display: Display,
    *,
    memory: int | None,
    devices: int | None,
    kept: Path | None = None,
) -> tuple[Prepared, Any]:
    """Check that everything fits together; returns that and the states before the first update.

    `kept` is where the space of the run's contexts lies, if it has one and was begun before.
    """
    members, task = plan.members, None if plan.task is None else get_task(plan.task)
    check_names(plan.grid, plan.settings)
    for name, why in plan.without_effect().items():
        display.say(f"warning: --{name.replace('_', '-')} has no effect: {why}")
    mesh = make_mesh(devices, len(members))
    normaliser = fit_normaliser(data, plan.settings.data)
    spec = spec_of(plan, task, data, normaliser)
    algorithm = make_algorithm(plan.algo, plan.settings, spec)
    uniform = uniform_rows(algorithm)
    neighbours = find_contexts(algorithm, data, display, memory, kept)
    comparison = compare(plan.settings, data, display, memory)
    fed = feed(
        algorithm,
        data,
        normaliser,
        neighbours,
        alias=None if comparison is None else alias_of(comparison.weights, uniform),
        corrective=make_corrective(algorithm, data, normaliser, display),
        seeds=len(members),
        memory=memory,
    )
    if isinstance(fed, Streamed):
        if jax.process_count() > 1:  # each would cut the data into parts of its own
            raise UserError(
                "data that is read from disk as it is needed cannot be shared by several "
                "processes.",
                where=plan.dataset,
                fix="Train in one process, or allow enough --memory for all of the data.",
            )
        display.say(f"data: read from disk as it is needed, {fed.updates:,} updates at a time")
    seeds = [member.seed for member in members]
    loop = Loop(algorithm, fed, seeds, varied=columns(members), mesh=mesh)
    check_grid(algorithm, plan.grid, loop.batch_shape())
    states = loop.init()
    check_memory(loop, states)
    played = is_first() and task is not None and plan.run.episodes > 0
    environments = open_environments(task, data) if played and task is not None else None
    ready = Prepared(plan, task, data, normaliser, neighbours, comparison, loop, environments)
    return ready, states


def find_contexts(
    algorithm: Algorithm[Any],
    data: Transitions,
    display: Display,
    memory: int | None = None,
    kept: Path | None = None,
) -> Neighbours | None:
    """Return the tables of neighbours, cached, where the algorithm needs contexts.

    `memory` is what the search may take; None: no limit. `kept` may be a file with their space.
    """
    context = algorithm.needs.context
    if context is None:
        return None
    space = None
    if kept is not None and kept.exists():
        space = fitted_space(context.metric, read_fitted(kept))
    with display.work("retrieving contexts", 1000) as work:
        told = partial(_tell, work)
        neighbours = build_neighbours(
            data,
            context,
            cache_dir=default_cache_dir(),
            progress=told,
            memory=memory,
            space=space,
        )
    display.say(f"contexts: {neighbours.report}")
    return neighbours


def space_of(neighbours: Neighbours | None) -> Space | None:
    """Return the space of contexts where it takes something from the data, to be kept."""
    space = None if neighbours is None else neighbours.space
    return space if space is not None and space.fitted else None


def compare(
    settings: AlgorithmSettings, data: Transitions, display: Display, memory: int | None
) -> Comparison | None:
    """Weigh rows by local comparison, where the settings draw by it; None: all alike."""
    if settings.draw.by == "uniform":
        return None
    with display.work("comparing similar states", 1000) as work:
        told = partial(_tell, work)
        found = compare_rows(
            data, settings.draw, cache_dir=default_cache_dir(), progress=told, memory=memory
        )
    among = f"{found.compared} similar states" if found.compared else "all states"
    display.say(
        f"draws: by {settings.draw.by} among {among} of other episodes; "
        f"effective share of the rows {100 * found.share:.1f} %"
    )
    return found


def make_corrective(
    algorithm: Algorithm[Any], data: Transitions, normaliser: Normaliser, display: Display
) -> Corrective | None:
    """Learn from the log what actions do, where rows are to be corrective; None: they are not."""
    width = algorithm.settings.data.corrective
    if not width or algorithm.needs.kind == "sequences":
        return None
    effect = effect_of(data)
    display.say(f"corrective rows: {effect}")
    return corrective_of(effect, width, normaliser.std)


def uniform_rows(algorithm: Algorithm[Any]) -> int:
    """How many of an update's rows, the first, are drawn uniformly beside those drawn by weight."""
    settings, needs = algorithm.settings, algorithm.needs
    if settings.policy_rows and not needs.uniform:
        raise UserError(
            "this algorithm has no rows that are its policy's alone.",
            where="draw.rows policy",
            fix="Take --draw.rows all.",
        )
    return int(settings.batch_size * needs.uniform)


def _tell(work: Work, label: str, share: float) -> None:
    work.update(int(1000 * share), label)


def open_environments(task: Task, data: Transitions) -> EnvPool:
    """Build the first environment before hours of training, and check that it fits the data."""
    pool = EnvPool(task, data.info.signals)
    (first,) = pool.take(1)
    sizes = (first.observation_space.shape, first.action_space.shape)
    if sizes != ((data.observation_dim,), (data.action_dim,)):
        pool.close()
        raise UserError(
            f"{task.env_id} has observations {sizes[0]} and actions {sizes[1]}, the data has "
            f"({data.observation_dim},) and ({data.action_dim},).",
            where=f"--task {task.name}",
            fix="Name the task the data was logged in, or --episodes 0 to train without one.",
        )
    return pool


def open_folder(
    plan: Plan,
    data: Transitions,
    out: Path,
    display: Display,
    *,
    resume: bool,
    space: Space | None = None,
) -> RunFolder:
    """Make the run folder, or record what a resumed run may change: its length, its data's place.

    A result that is there stays until the run is finished again.
    """
    if resume:
        folder = RunFolder.open(out)
        moved = folder.record(
            dataset=plan.dataset,
            columns=plan.columns,
            steps=plan.run.steps,
            place=versions() | machine(),
        )
        if moved:
            display.say(say_changes(moved))
        return folder
    manifest = {
        **dataclasses.asdict(plan),
        "data_hash": data.content_hash(),
        "observation_dim": data.observation_dim,
        "action_dim": data.action_dim,
        "signals": data.info.signals.as_json(),
        "space": None if space is None else space.digest,
        "versions": versions(),
        "machine": machine(),
    }
    return RunFolder.create(out, manifest)
