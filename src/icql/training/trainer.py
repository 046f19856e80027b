"""A whole run: data → neighbours → updates with evaluations in between → a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from icql.algos.base import Algorithm, Spec
from icql.algos.registry import RunSettings, make_algorithm
from icql.data import Task, Transitions
from icql.errors import UserError
from icql.evaluation import EnvPool
from icql.evaluation.policies import evaluate_policies
from icql.files import save_weights, tree_hash, write_json
from icql.nn.policies import Standardised
from icql.progress import Display, Work
from icql.retrieval import Neighbours, build_neighbours, default_cache_dir
from icql.training.checkpoint import Checkpoints
from icql.training.device import DeviceData, Normaliser, fit_normaliser, to_device
from icql.training.loop import Loop
from icql.training.metrics import MetricLog
from icql.training.plots import draw_run
from icql.training.run_folder import RunFolder
from icql.training.versions import versions

PROBE = 256  # transitions that diagnostics look at, the same ones every time


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run's outcome."""

    algo: str
    dataset: str
    task: Task | None
    settings: Any
    run: RunSettings
    seeds: tuple[int, ...]
    sources: tuple[str, ...] = ()  # where the settings come from


def run_training(
    plan: Plan, data: Transitions, out: Path, *, resume: bool, display: Display
) -> dict[str, Any]:
    """Train as planned; returns what `result.json` says. With `resume`, go on where it stopped."""
    manifest = make_manifest(plan, data)
    check_folder(out, manifest, resume=resume)
    normaliser = fit_normaliser(data, plan.settings.data)
    spec = Spec(data.observation_dim, data.action_dim, plan.run.steps)
    algorithm = make_algorithm(plan.algo, plan.settings, spec)
    neighbours = find_contexts(algorithm, data, display)
    device_data = to_device(data, normaliser, neighbours, length=algorithm.needs.length)
    environments = open_environments(plan, data)
    # only now is everything known to fit together: a refused run leaves no folder behind
    folder = RunFolder.open(out) if resume else RunFolder.create(out, manifest)
    session = _Session(plan, algorithm, device_data, folder, normaliser, environments, display)
    try:
        result = session.finish(session.train(resume=resume), data)
    finally:
        session.close()
    draw_run(folder, data, neighbours)
    return result


def make_manifest(plan: Plan, data: Transitions) -> dict[str, Any]:
    """What a run folder records before anything is computed."""
    manifest = {
        "algo": plan.algo,
        "dataset": plan.dataset,
        "task": None if plan.task is None else plan.task.name,
        "data_hash": data.content_hash(),
        "observation_dim": data.observation_dim,
        "action_dim": data.action_dim,
        "settings": dataclasses.asdict(plan.settings),
        "run": dataclasses.asdict(plan.run),
        "seeds": plan.seeds,
        "sources": plan.sources,
        "versions": versions(),
    }
    # as it will be read back: tuples become lists
    plain: dict[str, Any] = json.loads(json.dumps(manifest))
    return plain


def check_folder(out: Path, manifest: dict[str, Any], *, resume: bool) -> None:
    """Check that there is room for a new run, or that the one to resume is this very run."""
    if not resume:
        RunFolder.check_free(out)
        return
    before = RunFolder.open(out).manifest
    if before["data_hash"] != manifest["data_hash"]:
        raise UserError(
            f"holds a run on other data ({before['dataset']}, hash {before['data_hash'][:12]}; "
            f"now {manifest['dataset']}, hash {manifest['data_hash'][:12]}).",
            where=str(out),
            fix="Give the data it was started with, or another --out.",
        )
    for key in ("algo", "task", "settings", "run", "seeds"):
        if before[key] != manifest[key]:
            raise UserError(
                f"was started otherwise: {_difference(before[key], manifest[key], key)}.",
                where=str(out),
                fix="Resume with the same command, or give another --out.",
            )


def find_contexts(
    algorithm: Algorithm[Any], data: Transitions, display: Display
) -> Neighbours | None:
    """Return the tables of neighbours, cached, where the algorithm needs contexts."""
    context = algorithm.needs.context
    if context is None:
        return None
    with display.work("retrieving contexts", 1000) as work:
        neighbours = build_neighbours(
            data,
            context,
            cache_dir=default_cache_dir(),
            progress=lambda label, fraction: work.update(int(1000 * fraction), label),
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


def check_finite(metrics: dict[str, np.ndarray], seeds: tuple[int, ...], step: int) -> None:
    """Stop with a clear message where training has diverged."""
    for name, values in metrics.items():
        bad = ~np.isfinite(values)
        if bad.any():
            seed = seeds[int(np.argmax(bad))]
            raise UserError(
                f"training diverged: {name} of seed {seed} is not finite before update {step:,}.",
                where=name,
                fix="Scale rewards down (--data.reward-scale 0.01), take two critics (--critics 2) "
                "or lower --local.c-scale; metrics.jsonl shows where it began.",
            )


class _Session:
    """The moving parts of one run."""

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm[Any],
        data: DeviceData,
        folder: RunFolder,
        normaliser: Normaliser,
        environments: EnvPool | None,
        display: Display,
    ) -> None:
        self.plan, self.algorithm, self.data = plan, algorithm, data
        self.folder, self.normaliser, self.display = folder, normaliser, display
        self.environments = environments
        self.loop = Loop(algorithm, data, plan.seeds)
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

    def train(self, *, resume: bool) -> Any:
        """Run every update that is left, with metrics, evaluations and checkpoints on the way."""
        run, states, step = self.plan.run, self.loop.init(), 0
        if resume and (latest := self.checkpoints.latest) is not None:
            states, step = self.checkpoints.restore(latest, states), latest
            self.display.say(f"resuming {self.folder.path} at update {step:,}")
        self.folder.keep_metrics_until(step)
        self.log = MetricLog(self.folder, seeds=self.plan.seeds, purge_step=step)
        with self.display.work("training", run.steps) as work:
            work.start_at(step)
            while step < run.steps:
                states, step = self._advance(states, step, work)
                if step % run.evaluate_every == 0 or step == run.steps:
                    self._evaluate(states, step)
                if step % run.checkpoint_every == 0 or step == run.steps:
                    self.checkpoints.save(step, states)
        return states

    def finish(self, states: Any, data: Transitions) -> dict[str, Any]:
        """Write the final policy, critic and scores. The final evaluation is the last row's."""
        save_weights(self.folder.policy_path, self._policies(states))
        if hasattr(self.algorithm, "critic"):
            save_weights(self.folder.critic_path, eqx.filter_vmap(self.algorithm.critic)(states))
        task = self.plan.task
        evaluations = [row for row in self.folder.rows() if row["kind"] == "evaluation"]
        result = {
            "run": str(self.folder.path),
            "algo": self.plan.algo,
            "dataset": self.plan.dataset,
            "data_hash": self.folder.manifest["data_hash"],
            "task": None if task is None else task.name,
            "steps": self.plan.run.steps,
            "seeds": list(self.plan.seeds),
            "updates_per_second": self.pace.rate,
            "score": _scores(evaluations) if self.environments is not None else None,
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
        run, begin, sums = self.plan.run, step, dict[str, Any]()
        marks = (run.log_every, run.evaluate_every, run.checkpoint_every)
        goal = min(run.steps, *(step + m - step % m for m in marks))
        while step < goal:
            updates = min(goal - step, self.pace.chunk())
            with self.pace.timing(updates):
                states, means = self.loop.advance(states, step, updates)
            step += updates
            check_finite(means, self.plan.seeds, step)
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
        """Return every seed's policy with its normaliser, stacked."""
        seeds = len(self.plan.seeds)
        mean, std = (jnp.tile(x, (seeds, 1)) for x in (self.normaliser.mean, self.normaliser.std))
        return Standardised(eqx.filter_vmap(self.algorithm.policy)(states), mean, std)

    def _evaluate(self, states: Any, step: int) -> None:
        """Log the algorithm's own looks and, where there is an environment, scores and returns."""
        assert self.log is not None
        probe = self.data.batch(jnp.arange(min(PROBE, self.data.rows.shape[0])))
        row = eqx.filter_vmap(
            lambda state: self.algorithm.diagnose(state, probe), in_axes=eqx.if_array(0)
        )(states)
        if self.environments is not None and self.plan.task is not None:
            rollouts = evaluate_policies(
                self._policies(states),
                self.environments,
                episodes=self.plan.run.episodes,
                seeds=self.plan.seeds,
            )
            row["returns"] = np.stack([r.returns for r in rollouts])
            row["score"] = np.stack([r.normalized(self.plan.task).mean() for r in rollouts])
            self.note = f"  score {row['score'].mean():.1f}"
        self.log.evaluation(step, row)


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


def _scores(evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the final score of each seed and their mean; the best mean seen stands apart."""
    last = evaluations[-1]
    best = max(evaluations, key=lambda row: float(np.mean(row["score"])))
    return {
        "mean": float(np.mean(last["score"])),
        "per_seed": last["score"],
        "returns": last["returns"],
        "best": {"mean": float(np.mean(best["score"])), "step": best["step"]},
    }


def _difference(before: Any, now: Any, name: str) -> str:
    """Name the first setting that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                return _difference(before.get(key), now.get(key), f"{name}.{key}")
    return f"{name} was {before!r}, now {now!r}"
