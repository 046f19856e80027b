"""What is done beside the updates: logs, checkpoints, looks at the policies, results.

One process of a run sits at the desk; the others, if there are any, only compute.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icql.algos.base import Algorithm, HasCritics
from icql.data.tasks import Task
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.evaluation.rollout import EnvPool, evaluate_policies
from icql.graph.logged import Comparison
from icql.nn.policies import Standardised
from icql.progress import Display
from icql.retrieval import Neighbours
from icql.settings.grid import Member
from icql.training.callbacks import Callback
from icql.training.checkpoints import Checkpoints
from icql.training.device import Normaliser
from icql.training.loop import Loop
from icql.training.plan import Plan
from icql.training.plots import draw_run
from icql.training.readme import write_readme
from icql.training.run_folder import MetricLog, RunFolder
from icql.training.unmoved import unmoved
from icql.training.vary import vary
from icql.weights import save_arrays, save_weights, tree_hash

PROBE = 256  # transitions that diagnostics look at, the same ones every time


@dataclass(frozen=True)
class Prepared:
    """What was found to fit together before the first update."""

    plan: Plan
    task: Task | None
    data: Transitions
    normaliser: Normaliser
    neighbours: Neighbours | None
    comparison: Comparison | None
    loop: Loop
    environments: EnvPool | None


class Bystander:
    """Sees the updates go by and does nothing: all processes of a group but the first."""

    def start(self, states: Any) -> tuple[int, Any]:
        """Return the updates that were saved and the states after them, shaped like these."""
        return 0, states

    def updates(self, left: int) -> int:
        """How many updates to run next, at most `left`; the first process decides."""
        return 0

    def note(self, step: int, updates: int, seconds: float, means: dict[str, np.ndarray]) -> None:
        """The last `updates` updates took so long, and these are the means of their metrics."""

    def late(self, left: int) -> bool:
        """Whether `left` more updates would end after the time is up; the first process decides."""
        return False

    def save(self, step: int, states: Any) -> None:
        """Keep what a run that stops here goes on from."""

    def mark(self, step: int, states: Any) -> None:
        """Update `step` is one to log, and one to look at or to save where states are given."""

    def finish(self, states: Any) -> dict[str, Any]:
        """Return what came out of the run."""
        return {"process": jax.process_index(), "parameter_hash": tree_hash(states)}

    def close(self) -> None:
        """Wait for checkpoints; close environments and logs."""


class Desk(Bystander):
    """Keeps the run folder and shows how training goes."""

    def __init__(
        self,
        ready: Prepared,
        folder: RunFolder,
        display: Display,
        *,
        resume: bool,
        until: float | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.callbacks = callbacks
        self.ready, self.folder, self.display = ready, folder, display
        self.plan, self.loop, self.members = ready.plan, ready.loop, ready.plan.members
        self.watch = Watch(self.loop.algorithm, self.members)
        self.resume, self.checkpoints = resume, Checkpoints(folder.checkpoints, folder.plan_digest)
        self.pace, self.said, self.until = _Pace(), "", until
        self._open = contextlib.ExitStack()
        self._open.callback(self.checkpoints.close)
        if ready.environments is not None:
            self._open.enter_context(ready.environments)

    def close(self) -> None:
        """Wait for checkpoints; close environments and logs."""
        self._open.close()

    def start(self, states: Any) -> tuple[int, Any]:
        """Restore what was saved; open the log, which forgets what came later, and the display."""
        step = 0
        if self.resume:
            step, states = self.checkpoints.newest(states, self.display.say)
        if step:
            self.display.say(f"resuming at update {step:,}")
        self.log = MetricLog(
            self.folder, self.members, step, callbacks=self.callbacks, warn=self.display.say
        )
        self._open.callback(self.log.close)
        work = self.display.work("training", self.plan.run.steps, step)
        self.work = self._open.enter_context(work)
        self.logged, self.sums = step, dict[str, Any]()
        return step, states

    def updates(self, left: int) -> int:
        """How many updates to run next: pieces short enough to watch."""
        return min(left, self.pace.chunk())

    def note(self, step: int, updates: int, seconds: float, means: dict[str, np.ndarray]) -> None:
        """Show how training goes, and warn of values that no policy can have."""
        self.pace.add(updates, seconds)
        if (warning := self.watch.first(means)) is not None:
            self.display.say(f"warning: before update {step:,} {warning}")
        for name, mean in means.items():
            self.sums[name] = self.sums.get(name, 0.0) + mean * updates
        loss = sum(float(v.mean()) for name, v in means.items() if name.endswith("_loss"))
        value = f"  value {means['q'].mean():.3g}" if "q" in means else ""
        rate = f"{self.pace.rate:,.0f} updates/s  " if self.pace.rate else ""
        self.work.update(step, f"{rate}loss {loss:.3g}{value}{self.said}")

    def mark(self, step: int, states: Any) -> None:
        """Log the mean of the metrics since the last mark; evaluate and save where planned."""
        means = {name: total / (step - self.logged) for name, total in self.sums.items()}
        self.log.write(step, "train", means, seconds=round(self.pace.seconds, 3))
        self.logged, self.sums = step, {}
        if self.plan.evaluates_at(step):
            self._evaluate(states, step)
        if self.plan.saves_at(step):
            self.save(step, states)

    def late(self, left: int) -> bool:
        """Whether `left` more updates, at the rate so far, would end after the time is up."""
        if self.until is None:
            return False
        needed = left / self.pace.rate if self.pace.rate else 0.0
        return time.monotonic() + needed > self.until

    def save(self, step: int, states: Any) -> None:
        """Write a checkpoint, in the background."""
        self.checkpoints.save(step, states)

    def finish(self, states: Any) -> dict[str, Any]:
        """Write the final policy, critic, scores and pictures; the last evaluation is the score."""
        policies = self._policies(states)
        whose = self.folder.identity
        save_weights(self.folder.policy_path, policies, of=whose)
        same = unmoved(policies, self.ready.data, self.members)
        for warning in same:
            self.display.say(f"warning: {warning}")
        if isinstance(self.loop.algorithm, HasCritics):
            critics = self.loop.each(lambda algorithm, state: algorithm.critic(state), states)
            save_weights(self.folder.critic_path, critics, of=whose)
        if (found := self.ready.comparison) is not None:
            graph = {"q": found.q, "v": found.v, "returns": found.returns, "weights": found.weights}
            save_arrays(self.folder.graph_path, graph, of=whose)
        plan, task, info = self.plan, self.ready.task, self.ready.data.info
        rows = self._rows_to_the_end(states)
        evaluations = [row for row in rows if row["kind"] == "evaluation"]
        last: dict[str, Any] = next((row for row in reversed(rows) if row["kind"] == "train"), {})
        result = {
            "run": str(self.folder.path),
            "algo": plan.algo,
            "dataset": plan.dataset,
            "data_hash": self.folder.manifest["data_hash"],
            "task": plan.task,
            "steps": plan.run.steps,
            "seeds": list(plan.seeds),
            "grid": {name: list(values) for name, values in plan.grid.items()},
            "draw": self._drawn(),
            "updates_per_second": self.pace.rate,
            "warnings": [*self.watch.warnings(last), *same],
            "score": None if self.ready.environments is None else self._scores(evaluations),
            "behaviour_score": None if task is None else task.behaviour_score(info),
            "behaviour_return": (
                float(np.mean(info.episode_returns)) if info.episode_returns else None
            ),
            "parameter_hash": tree_hash(states),
            "moves": self.folder.moves,
        }
        self.folder.write_result(result)
        draw_run(self.folder, self.ready.data, self.ready.neighbours)
        write_readme(self.folder, result)
        self.log.finish(result)
        return result

    def _rows_to_the_end(self, states: Any) -> list[dict[str, Any]]:
        """All rows; the last evaluation is made again where its row was damaged since."""
        rows, end = list(self.folder.rows()), self.plan.run.steps
        there = any(row["kind"] == "evaluation" and row["step"] == end for row in rows)
        if self.plan.evaluates_at(end) and not there:
            self._evaluate(states, end)
            rows = list(self.folder.rows())
        return rows

    def _drawn(self) -> dict[str, Any] | None:
        """How rows were drawn, where not uniformly."""
        found = self.ready.comparison
        if found is None:
            return None
        return {"effective_share": found.share, "compared": found.compared}

    def _policies(self, states: Any) -> Any:
        """Return every member's policy with its normaliser, stacked."""
        normaliser, count = self.ready.normaliser, len(self.members)
        mean, std = (jnp.tile(x, (count, 1)) for x in (normaliser.mean, normaliser.std))
        policies = self.loop.each(lambda algorithm, state: algorithm.policy(state), states)
        return Standardised(policies, mean, std, normaliser.limit)

    def _evaluate(self, states: Any, step: int) -> None:
        """Log the algorithm's own looks and, where there is an environment, scores and returns."""
        probe = self.loop.data.probe(PROBE)
        row = self.loop.each(lambda algorithm, state: algorithm.diagnose(state, probe), states)
        if self.ready.environments is not None and self.ready.task is not None:
            rollouts = evaluate_policies(
                self._policies(states),
                self.ready.environments,
                episodes=self.plan.run.episodes,
                seeds=[member.seed for member in self.members],
            )
            row["returns"] = np.stack([r.returns for r in rollouts])
            row["score"] = np.stack([r.normalized(self.ready.task).mean() for r in rollouts])
            self.said = f"  score {row['score'].mean():.1f}"
        self.log.write(step, "evaluation", row)

    def _scores(self, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the final scores; of a grid, those of each combination of its settings."""
        if not self.plan.grid:
            return _scores(evaluations, slice(None))
        seeds = len(self.plan.seeds)
        combinations = [
            {"settings": dict(member.settings), **_scores(evaluations, slice(i, i + seeds))}
            for i, member in enumerate(self.members)
            if i % seeds == 0
        ]
        return {"combinations": combinations}


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

    def add(self, updates: int, seconds: float) -> None:
        """Count `updates` updates; the first call compiled and does not count."""
        if self._compiled:
            self.seconds += seconds
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


def check_finite(
    metrics: Mapping[str, Any], members: Sequence[Member], step: int, remedies: Sequence[str]
) -> None:
    """Stop with a clear message where training has diverged; `remedies` are the algorithm's."""
    for name, values in metrics.items():
        bad = ~np.isfinite(values)
        if bad.any():
            label = members[int(np.argmax(bad))].label
            raise UserError(
                f"training diverged: {name} of {label} is not finite before update {step:,}.",
                where=name,
                fix=f"To try: {'; '.join(remedies)}. metrics.jsonl shows where it began.",
            )


@dataclass
class Watch:
    """Finds critics whose mean value is above all that rewards like the data's can add up to.

    No policy has a value above max r / (1 − γ), or 0 where all rewards are negative. A critic
    beyond that, by more than a hundredth of all that is possible, has run away, long before its
    numbers stop being finite: a fresh network is near 0, whatever the limit. Values far too low are
    no such sign: conservative methods aim at them.
    """

    algorithm: Algorithm[Any]
    members: Sequence[Member]
    said: bool = field(default=False, init=False)

    def limits(self, member: Member) -> tuple[float, float]:
        """The least and the largest value that any policy of `member` can have."""
        algorithm = vary(self.algorithm, member.settings)
        return algorithm.value_range() if isinstance(algorithm, HasCritics) else (-inf, inf)

    def beyond(self, value: float, member: Member) -> bool:
        """Whether no policy can have this value."""
        least, largest = self.limits(member)
        return bool(value - largest > 0.01 * (largest - least))

    def warnings(self, metrics: Mapping[str, Any]) -> list[str]:
        """One sentence for each member whose mean Q is beyond the limit."""
        return [
            f"the mean Q of {member.label} is {value:.4g}, but no policy can have more than "
            f"{self.limits(member)[1]:.4g} (largest reward / (1 − γ)): its critic has run away. "
            f"To try: {'; '.join(self.algorithm.remedies)}."
            for member, value in zip(self.members, metrics.get("q", ()), strict=False)
            if self.beyond(value, member)
        ]

    def first(self, metrics: Mapping[str, Any]) -> str | None:
        """The first such sentence of the run, once."""
        found = [] if self.said else self.warnings(metrics)
        self.said = self.said or bool(found)
        return found[0] if found else None
