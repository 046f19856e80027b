"""D4RL's protocol: which steps of which policy make up a dataset of each level, and recipes.

* random: a randomly initialised policy, its actions sampled;
* medium-replay: everything SAC saw until its policy reached a third of expert performance;
* medium: that policy, its actions sampled;
* expert: the policy of the best evaluation of the whole run, since SAC's return may collapse late;
* medium-expert: the medium and the expert dataset, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from icql.algos.base import Spec
from icql.algos.sac import SAC
from icql.data.formats.npz import write_npz
from icql.data.tasks import Task, get_task
from icql.data.transitions import Steps
from icql.errors import UserError, nearest
from icql.files import file_hash, write_json
from icql.nn.policies import TanhGaussianPolicy
from icql.online.envs import EnvGroup
from icql.online.journal import Journal
from icql.online.learning import (
    Listener,
    OnlineRun,
    OnlineSettings,
    Until,
    asked_of,
    sampled_actions,
    sealed_by,
    teller,
    train_online,
)
from icql.online.snapshot import sac_oracle
from icql.seals import digest
from icql.settings.contexts import Level
from icql.training.versions import versions

Which = Literal["random", "medium", "expert"]  # policies that are sampled
LEVELS: tuple[Level, ...] = get_args(Level)
COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
PART_STEPS = 50_000  # steps of a sampled policy between two writes: the most that a kill can lose


@dataclass(frozen=True)
class Recipe:
    """One task's collection: environment, training, and the size of the sampled datasets."""

    name: str
    task: Task
    settings: OnlineSettings = field(default_factory=OnlineSettings)
    transitions: int = 300_000  # of each sampled policy; D4RL has 1,000,000


# Environment steps after which SAC is an expert; the returns reached are in docs/collected_data.md.
RECIPES: dict[str, Recipe] = {
    name: Recipe(name, get_task(name), OnlineSettings(steps=steps))
    for name, steps in (("hopper", 300_000), ("walker2d", 600_000), ("halfcheetah", 400_000))
}


def get_recipe(name: str) -> Recipe:
    """The recipe called `name`; a `UserError` with the nearest known name otherwise."""
    if name not in RECIPES:
        raise UserError(
            f"there is no recipe {name!r}.", where="recipe", fix=nearest(name, list(RECIPES))
        )
    return RECIPES[name]


def collect(
    recipe: str | Recipe,
    level: Level,
    out: str | Path,
    *,
    work: str | Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    transitions: int | None = None,
    progress: Listener | None = None,
) -> Path:
    """Make one dataset by D4RL's protocol, resumed after a kill; returns the dataset's path.

    Args:
        recipe: "hopper", "walker2d", "halfcheetah", or a `Recipe` of your own.
        level: which dataset.
        out: folder of the dataset: `{name}-{level}.npz` and its provenance, `.json`.
        work: folder of the training run, which all levels of one recipe and seed share; by
            default `{name}-sac-seed{seed}` in `out`. Its `final.safetensors` is the Q oracle.
        steps: environment steps of SAC, by default the recipe's.
        seed: by default the recipe's.
        transitions: rows that each sampled policy contributes, by default the recipe's.
        progress: called as `Listener` says.

    Raises:
        UserError: an unknown recipe or level, or SAC never reached the medium score.
    """
    recipe = get_recipe(recipe) if isinstance(recipe, str) else recipe
    if level not in LEVELS:
        raise UserError(f"unknown level {level!r}.", where="level", fix=nearest(level, [*LEVELS]))
    settings = recipe.settings
    if steps is not None:
        settings = replace(settings, steps=steps)
    if seed is not None:
        settings = replace(settings, seed=seed)
    out = Path(out)
    folder = Path(work) if work else out / f"{recipe.name}-sac-seed{settings.seed}"
    count = recipe.transitions if transitions is None else transitions
    data, facts = _Maker(recipe.task, settings, folder, count, progress).level(level)
    path = out / f"{recipe.name}-{level}.npz"
    write_dataset(path, data, recipe.task, {"level": level, **facts})
    return path


def write_dataset(path: Path, steps: Steps, task: Task, facts: dict[str, Any]) -> dict[str, Any]:
    """Write `path` and, beside it, its provenance as JSON; returns the provenance."""
    used = {name: found for name, found in versions().items() if name != "platform"}
    provenance = {"env": task.env_id, **facts, **describe(steps, task), "versions": used}
    write_npz(path, steps, {"task": task.name, "provenance": provenance})
    provenance |= {"file": path.name, "bytes": path.stat().st_size, "sha256": file_hash(path)}
    write_json(path.with_suffix(".json"), provenance)
    return provenance


def describe(steps: Steps, task: Task) -> dict[str, Any]:
    """Counts and returns of the episodes in `steps`."""
    ends = np.flatnonzero(steps.terminals | steps.timeouts)
    rewards = np.split(steps.rewards.astype(np.float64), ends[:-1] + 1)
    returns = np.array([r.sum() for r in rewards])
    scores = task.normalized_score(returns)
    return {
        "steps": len(steps),
        "episodes": len(ends),
        "terminated_episodes": int(steps.terminals.sum()),
        "return": {name: float(getattr(returns, name)()) for name in ("mean", "min", "max")},
        "normalized_score": {"mean": float(scores.mean()), "max": float(scores.max())},
    }


def medium_replay(run: OnlineRun) -> Steps:
    """Everything the run had seen when its policy first counted as medium."""
    if run.medium is None:
        raise UserError(
            f"SAC did not reach a score of {run.settings.medium_score:.1f} in {run.step:,} steps "
            f"(best: {max((e.score for e in run.evaluations), default=float('nan')):.1f}).",
            where=str(run.folder),
            fix="Give more steps or another seed.",
        )
    return run.journal.steps(run.journal.episodes(run.medium.step // run.settings.envs))


def concatenate(parts: Sequence[Steps]) -> Steps:
    """Datasets one after the other; each must end with the end of an episode."""
    for part in parts:
        if not (part.terminals[-1] or part.timeouts[-1]):
            raise ValueError("a dataset that is followed by another must end an episode")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
    }
    return Steps(**joined)


@dataclass(frozen=True)
class _Maker:
    """Makes the datasets of one training run."""

    task: Task
    settings: OnlineSettings
    folder: Path
    transitions: int
    progress: Listener | None

    def level(self, level: Level) -> tuple[Steps, dict[str, Any]]:
        """The steps of a level, and the facts of how they came about."""
        facts: dict[str, Any] = {"algorithm": "SAC", "settings": asdict(self.settings)}
        if level == "random":
            return self._sampled("random"), facts
        until: Until = "end" if level in ("expert", "medium-expert") else "medium"
        run = train_online(
            self.task, self.settings, self.folder, until=until, progress=self.progress
        )
        facts["evaluations"] = [{"step": e.step, "return": e.mean} for e in run.evaluations]
        if level == "expert":
            return self._sampled("expert"), facts
        replay = medium_replay(run)
        facts["medium"] = asdict(run.medium) if run.medium else None
        match level:
            case "medium-replay":
                return replay, facts
            case "medium":
                return self._sampled("medium"), facts
            case "medium-expert":
                return concatenate([self._sampled("medium"), self._sampled("expert")]), facts

    @property
    def _of(self) -> str:
        """What tells files of this run from those of others."""
        return digest(asked_of(self.task, self.settings))

    def _policy(self, which: Which, group: EnvGroup) -> TanhGaussianPolicy:
        if which != "random":
            return sac_oracle(
                self.folder / f"{which}.safetensors", of=sealed_by(self.folder, self._of)
            ).policy
        spec = Spec(group.observation_dim, group.action_dim, 0)
        return SAC(self.settings.sac, spec).init(jax.random.key(self.settings.seed)).pi.model

    def _sampled(self, which: Which) -> Steps:
        """`transitions` steps of a policy, its actions sampled; resumable."""
        stream = get_args(Which).index(which) + 1
        seed = int(np.random.SeedSequence([self.settings.seed, stream]).generate_state(1)[0])
        steps, envs, key = self.transitions, self.settings.envs, jax.random.key(seed)
        group, folder = EnvGroup(self.task, envs, seed), self.folder / f"{which}-{steps}"
        policy = self._policy(which, group)
        journal = Journal.empty(-(-steps // envs), group, f"{self._of} {which} {steps}")
        journal.load(folder)
        journal.restore(group)
        tell = teller(self.progress, f"steps of {folder.name}", steps, journal.length * envs)
        every = max(1, PART_STEPS // envs)
        while journal.length < len(journal.rewards):
            row_key = jax.random.fold_in(key, journal.length)
            journal.step(group, np.asarray(sampled_actions(policy, group.observations, row_key)))
            if journal.length % every == 0:
                journal.save(folder)
            tell(journal.length * envs, [])
        group.close()
        journal.save(folder)
        return journal.steps(journal.episodes())
