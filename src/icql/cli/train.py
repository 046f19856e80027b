"""`icql train`."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar, cast

import tyro

from icql.algos.presets import PresetName
from icql.algos.registry import algorithms
from icql.cli.options import Flag, Options, Result
from icql.cli.reading import read_options
from icql.data.arrays import read_size
from icql.errors import UserError
from icql.progress import Display
from icql.settings.change import leaves
from icql.settings.grid import read_grid, say_settings
from icql.settings.run import RunSettings
from icql.training.callbacks import LogName, make_logger
from icql.training.plan import AUTO, Plan
from icql.training.run_folder import RunFolder

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Train(Options, Generic[S]):
    """Train a policy from logged data.

    Without options: the embedded Hopper data, and of our algorithms the one that suits it; small
    enough for two CPU cores.
    The settings below are those of the chosen --algo, with the defaults of the chosen --preset and
    --task; any of them can be changed by its name, e.g. --local.layers 8 --context.k 10.

    The run folder holds settings, metrics, checkpoints, policies, scores and plots. A run that was
    stopped goes on with: icql train --resume --out RUN
    On CPUs of the same model and with the same versions that is bit for bit, on any number of
    cores; what differs from where it was begun is said, and recorded in run.json.

    A run whose updates do not depend on the number planned gets longer with: … --resume --steps N
    """

    algo: str = AUTO
    """Algorithm ('icql algos' lists them); auto: chosen by the data."""
    task: str | None = None
    """Task of the table: environment, reference scores and settings, e.g. kitchen-complete-v0."""
    dataset: str | None = None
    """Data set by name or file; by default the task's own, or the embedded hopper-mini."""
    columns: Path | None = None
    """File that says which columns of a CSV or Parquet log are what; by default the one beside
    it."""
    preset: PresetName = "quick"
    """quick: minutes on two CPU cores; paper: the paper's values; robust: these, with the
    same strong policy network for every method."""
    seeds: int = 1
    """How many seeds to train side by side."""
    seed: int = 0
    """The first seed."""
    out: Path | None = None
    """Run folder to make; by default a new one under runs/."""
    memory: str | None = None
    """What the data may take, e.g. 500MB or 2GiB; by default half of the machine's memory. A store
    (.icql) beyond it is read from disk as needed, to the same bits. Pages of mapped files are the
    system's cache and do not count; networks, compiled programs and environments come on top."""
    devices: int | None = None
    """How many devices train together, 0 for all; by default one, or all of a group of processes.
    They share seeds and, beyond that, the rows of every batch; the result is that of one, up to
    rounding."""
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A setting to vary, e.g. --grid beta=1,3,10; may be given again for another. Every combination
    is trained with every seed, side by side in one program."""
    log: LogName = "tensorboard"
    """Who is told the metrics: TensorBoard always, in the run folder; wandb or trackio as well,
    where the extra of that name is installed."""
    resume: Flag = False
    """Go on with the run in --out, as it was started; --steps may be more, --dataset moved."""
    run: Annotated[RunSettings, tyro.conf.arg(name="")] = field(default_factory=RunSettings)
    settings: Annotated[S, tyro.conf.arg(name="")] = None  # type: ignore[assignment]
    start: tyro.conf.Suppress[tyro.conf.Fixed[Any]] = None  # the plan that the options change
    given: tyro.conf.Suppress[tyro.conf.Fixed[Any]] = ()  # the options that were given, by name

    @classmethod
    def parse(cls, prog: str, argv: list[str]) -> Self:
        """Read the options; the plan that they start from decides the defaults of all of them."""
        start = _first_look(argv)
        default = cls(
            algo=start.algo,
            task=start.task,
            dataset=start.dataset,
            columns=None if start.columns is None else Path(start.columns),
            preset=cast(PresetName, start.preset),  # a plan has none that does not exist
            seeds=len(start.seeds),
            seed=start.seeds[0],
            run=start.run,
            settings=start.settings,
            start=start,
            given=frozenset(_names(argv)),
        )
        # the type of the settings is known only now, once the algorithm is
        form: Any = cls.__class_getitem__(type(start.settings))  # type: ignore[attr-defined]
        chosen: Self = read_options(
            form,
            argv,
            prog=prog,
            description=inspect.getdoc(cls),
            default=default,
            known_elsewhere=_algorithms_with,
        )
        return chosen

    def execute(self) -> Result:
        """Train and say what came out."""
        plan = self.start.asked(
            algo=self.algo,
            task=self.task,
            dataset=self.dataset,
            columns=None if self.columns is None else str(self.columns),
            preset=self.preset,
            seeds=self.seeds,
            seed=self.seed,
            grid=read_grid(self.grid) if self.grid else None,
        )
        plan = replace(plan, run=self.run, settings=self.settings)
        if self.resume:
            plan = self.start.resumed(plan)
        out = self.out or plan.default_out()
        memory = None if self.memory is None else read_size(self.memory, where="--memory")

        callbacks = make_logger(self.log)  # what is not installed is told at once

        from icql.training.trainer import run_training

        try:
            result = run_training(
                plan,
                out=out,
                resume=self.resume,
                display=Display(),
                memory=memory,
                devices=self.devices,
                given=self.given,
                callbacks=callbacks,
            )
        except KeyboardInterrupt as stop:
            if not RunFolder(out).manifest_path.exists():
                raise
            raise type(stop)(f"'icql train --resume --out {out}' goes on.") from None
        if "run" in result:  # the first process of a group speaks for all
            self._show(result)
        return result

    def _show(self, result: Result) -> None:
        """Say what came out and where it is."""
        self.say(f"run         {result['run']}")
        rate = result["updates_per_second"]
        self.say(f"updates     {result['steps']:,}" + (f" ({rate:,.0f}/s)" if rate else ""))
        score = result["score"]
        if score is None:
            self.say("score       none: no episodes were played")
        else:
            for one in score.get("combinations", [score]):
                seeds = ", ".join(f"{x:.1f}" for x in one["per_seed"])
                line = f"score       {one['mean']:.1f} (final, mean over seeds: {seeds})"
                self.say(f"{line}  {say_settings(one.get('settings', {}))}".rstrip())
            if (logged := result["behaviour_score"]) is not None:
                self.say(f"data        {logged:.1f} (mean score of the logged episodes)")
        self.say(f"plots       {result['run']}/plots")
        what = "judge RUN" if result["task"] is None else "evaluate RUN --episodes 20"
        self.say(f"look        icql inspect {result['run']}")
        self.say(f"next        icql {what.replace('RUN', result['run'])}")


def _names(argv: list[str]) -> Iterator[str]:
    """The names of the settings that are given: `--policy.no-cosine` is policy.cosine."""
    for option in argv:
        if option.startswith("--"):
            section, dot, name = option[2:].partition("=")[0].replace("-", "_").rpartition(".")
            yield f"{section}{dot}{name.removeprefix('no_')}"


def _algorithms_with(option: str) -> str:
    """Say which algorithms have a setting of that name, or one that ends so."""
    end = option.replace("-", "_")
    owners: dict[str, list[str]] = {}
    for algo, entry in algorithms().items():
        for name, _ in leaves(entry.settings()):
            if f".{name}".endswith(f".{end}"):
                owners.setdefault(f"--{name.replace('_', '-')}", []).append(algo)
    return "".join(f"{name} is a setting of {', '.join(has)}. " for name, has in owners.items())


def _first_look(argv: list[str]) -> Plan:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("algo", "task", "dataset", "preset", "out"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--resume", action="store_true")
    try:
        first, _ = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(f"{error.message}.", where=error.argument_name or "") from None
    if not first.resume:
        return Plan.make(first.algo, task=first.task, dataset=first.dataset, preset=first.preset)
    if first.out is None:
        raise UserError("say which run to resume.", where="--resume", fix="Add --out RUN.")
    return Plan.read(RunFolder.open(first.out))
