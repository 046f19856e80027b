"""What a run is to do, what its folder records of that, and whether a folder is that run's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icql.algos.registry import get_algorithm
from icql.data import Task, Transitions
from icql.errors import UserError
from icql.settings.change import override
from icql.settings.grid import Member, members_of
from icql.settings.run import RunSettings
from icql.training.run_folder import RunFolder
from icql.training.versions import versions


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
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # settings that are varied

    @property
    def members(self) -> tuple[Member, ...]:
        """What is trained side by side: every combination of the grid with every seed."""
        return members_of(self.seeds, self.grid)

    def evaluates_at(self, step: int) -> bool:
        """Whether the policies are looked at after update `step`."""
        return step % self.run.evaluate_every == 0 or step == self.run.steps

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is written after update `step`."""
        return step % self.run.checkpoint_every == 0 or step == self.run.steps

    def next_mark(self, step: int) -> int:
        """The next update after `step` at which something is logged, looked at or saved."""
        run = self.run
        marks = (run.log_every, run.evaluate_every, run.checkpoint_every)
        return min(run.steps, *(step + m - step % m for m in marks))


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
        "grid": dict(plan.grid),
        "sources": plan.sources,
        "versions": versions(),
    }
    # as it will be read back: tuples become lists
    plain: dict[str, Any] = json.loads(json.dumps(manifest))
    return plain


def recorded_settings(folder: RunFolder) -> tuple[Any, RunSettings]:
    """The settings of the algorithm and of the run that a folder records."""
    manifest, where = folder.manifest, str(folder.manifest_path)
    try:
        settings = override(get_algorithm(manifest["algo"]).settings(), manifest["settings"])
        return settings, override(RunSettings(), manifest["run"])
    except KeyError as missing:
        raise UserError(f"lacks {missing}.", where=where) from None
    except UserError as wrong:
        raise UserError(
            f"does not fit this version of icql: {wrong.what}",
            where=where,
            fix="Its 'versions' say which one wrote it.",
        ) from None


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
    for key in ("algo", "task", "settings", "run", "seeds", "grid"):
        if before.get(key, {}) != manifest[key]:
            raise UserError(
                f"was started otherwise: {_difference(before.get(key, {}), manifest[key], key)}.",
                where=str(out),
                fix="Resume with the same command, or give another --out.",
            )


def _difference(before: Any, now: Any, name: str) -> str:
    """Name the first setting that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                return _difference(before.get(key), now.get(key), f"{name}.{key}")
    return f"{name} was {before!r}, now {now!r}"
