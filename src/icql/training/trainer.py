"""A whole run: data → neighbours → updates with evaluations in between → a run folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icql.algos.base import Algorithm, Batch, HasCritics, Spec
from icql.algos.registry import make_algorithm
from icql.data import Transitions
from icql.errors import UserError
from icql.evaluation import EnvPool
from icql.evaluation.policies import evaluate_policies
from icql.files import write_json
from icql.nn.policies import Standardised
from icql.progress import Display, Work
from icql.retrieval import Neighbours, build_neighbours, default_cache_dir
from icql.training.checkpoint import Checkpoints
from icql.training.device import DeviceData, Normaliser, fit_normaliser, reward_range
from icql.training.grid import check_grid, columns
from icql.training.group import agree, is_first, share, stopping_together
from icql.training.loop import Loop
from icql.training.memory import check_memory
from icql.training.mesh import make_mesh
from icql.training.metrics import MetricLog
from icql.training.plan import Plan, check_folder, make_manifest
from icql.training.plots import draw_run
from icql.training.run_folder import RunFolder
from icql.training.stream import Streamed, feed, rows_per_update
from icql.training.watch import Watch, check_finite
from icql.weights import save_weights, tree_hash

PROBE = 256  # transitions that diagnostics look at, the same ones every time


def run_training(
    plan: Plan,
    data: Transitions,
    out: Path,
    *,
    resume: bool,
    display: Display,
    memory: int | None = None,
    devices: int | None = None,
) -> dict[str, Any]:
    """Train as planned; returns what `result.json` says. With `resume`, go on where it stopped.

    `memory` is what the data may take (see `icql.training.stream`), `devices` how many train (see
    `icql.training.mesh`); they decide no outcome. In a group of processes only the first has a
    folder and a result; the others return what was trained.
    """
    manifest, members = make_manifest(plan, data), plan.members
    with stopping_together():
        if is_first():
            check_folder(out, manifest, resume=resume)
        mesh = make_mesh(devices, len(members))
        normaliser = fit_normaliser(data, plan.settings.data)
        rewards = reward_range(data, normaliser)
        sizes, run = (data.observation_dim, data.action_dim), plan.run
        spec = Spec(*sizes, run.steps, rewards, run.precision)
        algorithm = make_algorithm(plan.algo, plan.settings, spec)
        neighbours = find_contexts(algorithm, data, display, memory)
        fed = feed(algorithm, data, normaliser, neighbours, seeds=len(members), memory=memory)
        if isinstance(fed, Streamed):
            check_alone(out)
            display.say(f"data: read from disk as it is needed, {fed.updates:,} updates at a time")
        check_grid(algorithm, plan.grid, batch_shape(algorithm, fed))
        seeds = [member.seed for member in members]
        loop = Loop(algorithm, fed, seeds, varied=columns(members), mesh=mesh)
        states = loop.init()
        check_memory(loop, states)
        environments = open_environments(plan, data) if is_first() else None
    if not is_first():
        return follow(plan, loop, states)
    # only now is everything known to fit together: a refused run leaves no folder behind
    folder = RunFolder.open(out) if resume else RunFolder.create(out, manifest)
    watch = Watch(algorithm, members)
    session = _Session(plan, loop, fed, folder, normaliser, environments, watch, display)
    try:
        result = session.finish(session.train(states, resume=resume), data)
    finally:
        session.close()
    draw_run(folder, data, neighbours)
    return result


def follow(plan: Plan, loop: Loop, states: Any) -> dict[str, Any]:
    """Take part in the updates of the group's first process, which does all else."""
    step = agree(0)
    if step:
        states = loop.place(share(loop.gather(states)))
    while step < plan.run.steps:
        updates = agree(0)
        states, means = loop.advance(states, step, updates)
        step += updates
        check_finite(means, plan.members, step, loop.algorithm.remedies)
        if plan.evaluates_at(step) or plan.saves_at(step):
            loop.gather(states)
    return {"process": jax.process_index(), "parameter_hash": tree_hash(loop.gather(states))}


def check_alone(out: Path) -> None:
    """Refuse a group of processes: each would cut streamed data into parts of its own."""
    if jax.process_count() > 1:
        raise UserError(
            "data that is read from disk as it is needed cannot be shared by several processes.",
            where=str(out),
            fix="Train in one process, or allow enough --memory for all of the data.",
        )


def batch_shape(algorithm: Algorithm[Any], data: DeviceData | Streamed) -> Batch:
    """Shapes of the batch that one update gets."""
    part = data if isinstance(data, DeviceData) else data.load(np.zeros(1, np.int64))
    rows = jax.ShapeDtypeStruct((rows_per_update(algorithm),), jnp.int32)
    shapes: Batch = jax.eval_shape(part.batch, rows)
    return shapes


def find_contexts(
    algorithm: Algorithm[Any], data: Transitions, display: Display, memory: int | None = None
) -> Neighbours | None:
    """Return the tables of neighbours, cached, where the algorithm needs contexts.

    `memory` is what the search may take; None: no limit.
    """
    context = algorithm.needs.context
    if context is None:
        return None
    with display.work("retrieving contexts", 1000) as work:
        neighbours = build_neighbours(
            data,
            context,
            cache_dir=default_cache_dir(),
            progress=lambda label, fraction: work.update(int(1000 * fraction), label),
            memory=memory,
        )
    display.say(f"contexts: {neighbours.report}")
    return neighbours


def open_environments(plan: Plan, data: Transitions) -> EnvPool | None:
    """Build the first environment before hours of training, and check that it fits the data."""
    if plan.task is None or plan.run.episodes == 0:
        return None
    pool = EnvPool(plan.task)
    (first,) = pool.take(1)
    sizes = (first.observation_space.shape, first.action_space.shape)
    if sizes != ((data.observation_dim,), (data.action_dim,)):
        pool.close()
        raise UserError(
            f"{plan.task.env_id} has observations {sizes[0]} and actions {sizes[1]}, the data has "
            f"({data.observation_dim},) and ({data.action_dim},).",
            where=f"task {plan.task.name}",
            fix="Name the task the data was logged in, or --episodes 0 to train without one.",
        )
    return pool


class _Session:
    """The moving parts of one run."""

    def __init__(
        self,
        plan: Plan,
        loop: Loop,
        data: DeviceData | Streamed,
        folder: RunFolder,
        normaliser: Normaliser,
        environments: EnvPool | None,
        watch: Watch,
        display: Display,
    ) -> None:
        self.plan, self.loop, self.data = plan, loop, data
        self.folder, self.normaliser, self.display = folder, normaliser, display
        self.environments, self.watch = environments, watch
        self.members = plan.members
        self.pace = _Pace()
        self.checkpoints = Checkpoints(folder.path / "checkpoints")
        self.log: MetricLog | None = None
        self.note = ""

    def close(self) -> None:
        """Wait for checkpoints; close environments and logs."""
        self.checkpoints.close()
        if self.environments is not None:
            self.environments.close()
        if self.log is not None:
            self.log.close()

    def train(self, states: Any, *, resume: bool) -> Any:
        """Run every update that is left, with metrics, evaluations and checkpoints on the way."""
        plan = self.plan
        step = agree((self.checkpoints.latest or 0) if resume else 0)
        if step:
            stored = self.checkpoints.restore(step, self.loop.gather(states))
            states = self.loop.place(share(stored))
            self.display.say(f"resuming {self.folder.path} at update {step:,}")
        self.folder.keep_metrics_until(step)
        self.log = MetricLog(self.folder, members=self.members, purge_step=step)
        with self.display.work("training", plan.run.steps) as work:
            work.start_at(step)
            while step < plan.run.steps:
                states, step = self._advance(states, step, work)
                if plan.evaluates_at(step) or plan.saves_at(step):
                    gathered = self.loop.gather(states)
                if plan.evaluates_at(step):
                    self._evaluate(gathered, step)
                if plan.saves_at(step):
                    self.checkpoints.save(step, gathered)
        return self.loop.gather(states)

    def finish(self, states: Any, data: Transitions) -> dict[str, Any]:
        """Write the final policy, critic and scores. The final evaluation is the last row's."""
        save_weights(self.folder.policy_path, self._policies(states))
        if isinstance(self.loop.algorithm, HasCritics):
            critics = self.loop.each(lambda algorithm, state: algorithm.critic(state), states)
            save_weights(self.folder.critic_path, critics)
        task = self.plan.task
        rows = list(self.folder.rows())
        evaluations = [row for row in rows if row["kind"] == "evaluation"]
        last = next(row for row in reversed(rows) if row["kind"] == "train")
        result = {
            "run": str(self.folder.path),
            "algo": self.plan.algo,
            "dataset": self.plan.dataset,
            "data_hash": self.folder.manifest["data_hash"],
            "task": None if task is None else task.name,
            "steps": self.plan.run.steps,
            "seeds": list(self.plan.seeds),
            "grid": {name: list(values) for name, values in self.plan.grid.items()},
            "updates_per_second": self.pace.rate,
            "warnings": self.watch.warnings(last),
            "score": self._scores(evaluations) if self.environments is not None else None,
            "behaviour_score": None if task is None else task.behaviour_score(data.info),
            "behaviour_return": (
                float(np.mean(data.info.episode_returns)) if data.info.episode_returns else None
            ),
            "parameter_hash": tree_hash(states),
        }
        write_json(self.folder.result_path, result)
        return result

    def _advance(self, states: Any, step: int, work: Work) -> tuple[Any, int]:
        """Run updates up to the next mark, in pieces short enough to watch, and log their mean."""
        begin, goal, sums = step, self.plan.next_mark(step), dict[str, Any]()
        while step < goal:
            updates = agree(min(goal - step, self.pace.chunk()))
            with self.pace.timing(updates):
                states, means = self.loop.advance(states, step, updates)
            step += updates
            check_finite(means, self.members, step, self.loop.algorithm.remedies)
            if (warning := self.watch.first(means)) is not None:
                self.display.say(f"warning: before update {step:,} {warning}")
            for name, value in means.items():
                sums[name] = sums.get(name, 0.0) + value * updates
            work.update(step, self._describe(means))
        assert self.log is not None
        means = {name: total / (step - begin) for name, total in sums.items()}
        self.log.training(step, means, self.pace.seconds)
        return states, step

    def _describe(self, means: dict[str, np.ndarray]) -> str:
        loss = sum(float(v.mean()) for name, v in means.items() if name.endswith("_loss"))
        value = f"  value {means['q'].mean():.3g}" if "q" in means else ""
        rate = f"{self.pace.rate:,.0f} updates/s  " if self.pace.rate else ""
        return f"{rate}loss {loss:.3g}{value}{self.note}"

    def _policies(self, states: Any) -> Any:
        """Return every member's policy with its normaliser, stacked."""
        count = len(self.members)
        mean, std = (jnp.tile(x, (count, 1)) for x in (self.normaliser.mean, self.normaliser.std))
        policies = self.loop.each(lambda algorithm, state: algorithm.policy(state), states)
        return Standardised(policies, mean, std)

    def _evaluate(self, states: Any, step: int) -> None:
        """Log the algorithm's own looks and, where there is an environment, scores and returns."""
        assert self.log is not None
        probe = self.data.probe(PROBE)
        row = self.loop.each(lambda algorithm, state: algorithm.diagnose(state, probe), states)
        if self.environments is not None and self.plan.task is not None:
            rollouts = evaluate_policies(
                self._policies(states),
                self.environments,
                episodes=self.plan.run.episodes,
                seeds=[member.seed for member in self.members],
            )
            row["returns"] = np.stack([r.returns for r in rollouts])
            row["score"] = np.stack([r.normalized(self.plan.task).mean() for r in rollouts])
            self.note = f"  score {row['score'].mean():.1f}"
        self.log.evaluation(step, row)

    def _scores(self, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the final scores; of a grid, those of each combination of its settings."""
        if not self.plan.grid:
            return _scores(evaluations, slice(None))
        seeds = len(self.plan.seeds)
        return {
            "combinations": [
                {
                    "settings": dict(self.members[i].settings),
                    **_scores(evaluations, slice(i, i + seeds)),
                }
                for i in range(0, len(self.members), seeds)
            ]
        }


class _Pace:
    """Updates per second, compilation left out, and how many fill about a second."""

    def __init__(self) -> None:
        self.seconds, self._updates, self._compiled = 0.0, 0, False

    @property
    def rate(self) -> float | None:
        """Updates per second so far."""
        return self._updates / self.seconds if self._updates else None

    def chunk(self) -> int:
        """How many updates to run next: one to compile, one to time, then a second's worth."""
        return 1 if self.rate is None else max(1, int(self.rate))

    @contextlib.contextmanager
    def timing(self, updates: int) -> Iterator[None]:
        """Time `updates` updates; the first call compiles and does not count."""
        begin = time.perf_counter()
        yield
        if self._compiled:
            self.seconds += time.perf_counter() - begin
            self._updates += updates
        self._compiled = True


def _scores(evaluations: list[dict[str, Any]], seeds: slice) -> dict[str, Any]:
    """Return the final score of each seed and their mean; the best mean seen stands apart."""
    means = [float(np.mean(row["score"][seeds])) for row in evaluations]
    best = int(np.argmax(means))
    return {
        "mean": means[-1],
        "per_seed": evaluations[-1]["score"][seeds],
        "returns": evaluations[-1]["returns"][seeds],
        "best": {"mean": means[best], "step": evaluations[best]["step"]},
    }
