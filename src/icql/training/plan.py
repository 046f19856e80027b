"""What a run is to do: made from a preset or read from a run folder, before JAX is needed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icql.algos.presets import resolve_preset
from icql.algos.registry import check_offline, get_algorithm
from icql.data.tasks import find_task, get_task
from icql.errors import UserError
from icql.settings.change import differences, leaves, override, read_back
from icql.settings.grid import Member, members_of, plain_grid
from icql.settings.run import RunSettings
from icql.training.run_folder import RunFolder

DEFAULT_DATASET = "hopper-mini"
AUTO = "auto"  # the algorithm is chosen once the data is there (`icql.training.choose`)
MOST_SEEDS = 10_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides a run's outcome, as `run.json` records it."""

    algo: str
    task: str | None  # of the table; None: no environment, no score
    dataset: str
    columns: str | None = None  # the mapping of a log, where it does not lie beside it
    preset: str
    settings: Any
    run: RunSettings
    seeds: tuple[int, ...]
    grid: Mapping[str, tuple[float, ...]]  # settings that are varied
    sources: tuple[str, ...]  # where the settings come from

    @classmethod
    def make(
        cls,
        algo: str | None = None,
        *,
        task: str | None = None,
        dataset: str | None = None,
        columns: str | None = None,
        preset: str | None = None,
    ) -> Plan:
        """Return the plan of a preset, with one seed; what is not given has its default."""
        algo, preset, dataset = (
            algo or AUTO,
            preset or "quick",
            dataset or task or DEFAULT_DATASET,
        )
        check_offline(algo)
        named = find_task(dataset) if task is None else get_task(task)
        name = None if named is None else named.name
        chosen = vars(resolve_preset(algo, preset, name))  # settings, run, sources
        return cls(
            algo=algo,
            task=name,
            dataset=dataset,
            columns=columns,
            preset=preset,
            seeds=(0,),
            grid={},
            **chosen,
        )

    @classmethod
    def read(cls, folder: RunFolder) -> Plan:
        """Return the plan of the run in a folder."""
        recorded, where = folder.manifest, str(folder.manifest_path)
        try:
            defaults = get_algorithm(recorded["algo"]).settings()
            return cls(
                algo=recorded["algo"],
                task=recorded["task"],
                dataset=recorded["dataset"],
                columns=recorded.get("columns"),
                preset=recorded["preset"],
                settings=read_back(defaults, recorded["settings"], where=where),
                run=read_back(RunSettings(), recorded["run"], where=where),
                seeds=tuple(recorded["seeds"]),
                grid=plain_grid(recorded["grid"]),
                sources=tuple(recorded["sources"]),
            )
        except KeyError as missing:
            raise UserError(f"lacks {missing}.", where=where) from None

    def asked(
        self,
        *,
        seed: int | None = None,
        seeds: int | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        **named: str | None,
    ) -> Plan:
        """Return the plan with what is given in place of its own.

        `seed` is the first of `seeds`, `settings` and `run` are changes by dotted name, and `named`
        are algo, task, dataset, columns and preset.
        """
        first = self.seeds[0] if seed is None else seed
        count = len(self.seeds) if seeds is None else seeds
        if count < 1:
            raise UserError("must be at least 1.", where="--seeds")
        if count > MOST_SEEDS:  # before a list of them fills the memory
            raise UserError(f"must be at most {MOST_SEEDS:,}.", where="--seeds")
        if not 0 <= first <= 2**32 - count:  # of more bits JAX takes the last 32
            raise UserError("must be from 0 to 4,294,967,295.", where="--seed")
        changes: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        return dataclasses.replace(
            self,
            **changes,
            seeds=tuple(range(first, first + count)),
            grid=self.grid if grid is None else plain_grid(grid),
            settings=override(self.settings, settings or {}),
            run=override(self.run, run or {}),
        )

    def resumed(self, asked: Plan) -> Plan:
        """Return the plan to go on with: this one, with more steps or moved data if asked for.

        Raises:
            UserError: anything else was asked for, or the updates so far would not be those of a
                longer run.
        """
        more = asked.run.steps > self.run.steps
        for name, (mine, theirs) in differences(self._options(), asked._options()).items():
            if not (name == "steps" and more):
                raise UserError(
                    f"the run was started with {mine}, not {theirs}.",
                    where=f"--{name.replace('_', '-')}",
                    fix="Leave it out, or give another --out.",
                )
        if more and (schedule := self.settings.scheduled_by) is not None:
            raise UserError(
                f"the run was planned with {self.run.steps:,} updates, and what they did follows "
                f"from that number ({schedule} = {dict(leaves(self.settings))[schedule]}).",
                where="--steps",
                fix="Start a longer run with another --out.",
            )
        return dataclasses.replace(
            self, run=asked.run, dataset=asked.dataset, columns=asked.columns
        )

    def _options(self) -> dict[str, Any]:
        """What decides the outcome, by the names of the command line's options."""
        return {
            "algo": self.algo,
            "task": self.task,
            "preset": self.preset,
            "seed": self.seeds[0],
            "seeds": len(self.seeds),
            "grid": dict(self.grid),
            **dict(leaves(self.run)),
            **dict(leaves(self.settings)),
        }

    def without_effect(self) -> dict[str, str]:
        """Settings that differ from their preset's though nothing reads them, and why."""
        start = resolve_preset(self.algo, self.preset, self.task).settings
        changed = differences(dict(leaves(start)), dict(leaves(self.settings)))
        return {name: why for name in changed if (why := self._why_unread(name)) is not None}

    def reads(self, name: str) -> bool:
        """Whether anything reads a setting, as the others stand."""
        return self._why_unread(name) is None

    def _why_unread(self, name: str) -> str | None:
        for unused, why in self.settings.unused.items():
            if name == unused or (unused.endswith(".") and name.startswith(unused)):
                return str(why)
        return None

    def default_out(self) -> Path:
        """Return a new folder under `runs/`, named after the run and the time."""
        stem = Path(self.dataset).stem.replace("/", "-").replace(":", "-")
        return Path("runs") / f"{self.algo}-{stem}-{time.strftime('%Y%m%d-%H%M%S')}"

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
