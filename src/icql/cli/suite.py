"""`icql bench list`, `run`, `status`, `report` and `merge`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from icql.algos.presets import PresetName
from icql.cli.options import Flag, Options, Result
from icql.errors import PartlyFailed, UserError
from icql.progress import Display
from icql.settings.run import Precision

if TYPE_CHECKING:
    from icql.bench.runner import GroupRunner


@dataclass(frozen=True, kw_only=True)
class ListSuites(Options):
    """List the suites: the tables and figures of the paper, and some of our own.

    A suite is rows (algorithms with changed settings) × tasks under a preset. Suites that are no
    tables of scores name the command that makes them.
    """

    def execute(self) -> Result:
        """Show them."""
        from icql.bench.suites import suites

        for suite in suites().values():
            self.say(f"{suite.id:<15}{suite.title}  [{suite.paper or 'our own'}]")
            if suite.command:
                self.say(f"{'':<15}made by: {suite.command}")
            else:
                rows = ", ".join(row.id for row in suite.rows)
                self.say(f"{'':<15}{len(suite.tasks)} tasks, preset {suite.preset}: {rows}")
        return {"suites": [suite.described() for suite in suites().values()]}


@dataclass(frozen=True, kw_only=True)
class RunSuite(Options):
    """Run what is not finished yet of a suite.

    Every cell (algorithm × task × settings × seed) leaves a record in --out; finished cells are
    never run again, by whatever suite they are asked for. After a kill the same command goes on, in
    the middle of a training too. Several of these may work on one folder at a time. A failing group
    is recorded with its error and the others go on; the exit code is 1 then, and the same command
    tries it again.
    """

    suite: tyro.conf.Positional[str]
    """A suite of 'icql bench list'."""
    tasks: tuple[str, ...] = ()
    """Tasks instead of the suite's own: any with data at hand, hopper-mini among them, and
    task@name for data of one's own, e.g. hopper@mine with --dataset hopper@mine=FILE."""
    algos: tuple[str, ...] = ()
    """Rows of the suite, by id or algorithm; other algorithms are added (none given: all rows)."""
    preset: PresetName | None = None
    """Whose settings, instead of the suite's preset."""
    seeds: int = 5
    """Seeds of every cell, trained side by side."""
    seed: int = 0
    """The first seed."""
    steps: int | None = None
    """Updates instead of the preset's; fewer are marked short in reports."""
    episodes: int | None = None
    """Episodes per evaluation and seed instead of the preset's."""
    evaluate_every: int | None = None
    """Updates between evaluations instead of the preset's."""
    precision: Precision | None = None
    """Of the matrix products of training, instead of the preset's (see 'icql train --help')."""
    dataset: tuple[str, ...] = ()
    """Where the data of tasks is, each as TASK=FILE."""
    out: Path = Path("bench")
    """Benchmark folder to make or to go on with."""
    on: Literal["here", "ray"] = "here"
    """Where: in this process, or as tasks of a Ray cluster, all of whose nodes see --out and the
    data under the same paths (docs/cluster.md)."""
    address: str | None = None
    """Of a running Ray cluster; else RAY_ADDRESS, else one is started on this machine."""
    cpus: int = 1
    """CPUs for each group of cells on Ray; GPUs: one each, where the cluster has any."""
    time_limit: float | None = None
    """Seconds after which to stop: with a checkpoint of the training in flight, and what is
    finished recorded. The same command goes on, here or wherever the folder is copied to."""
    quiet: Flag = False
    """Show no progress."""

    def going_on(self) -> str:
        """Finished cells are recorded, trainings have checkpoints."""
        return "The same command goes on."

    def folders_written(self) -> Iterable[Path]:
        """The benchmark folder."""
        return (self.out,)

    def execute(self) -> Result:
        """Run and say what is finished and what failed."""
        from icql.bench.runner import Request, run_suite
        from icql.bench.suites import get_suite

        work = self._work()
        asked = {
            "steps": self.steps,
            "episodes": self.episodes,
            "evaluate_every": self.evaluate_every,
            "precision": self.precision,
        }
        request = Request(
            suite=get_suite(self.suite),
            tasks=self.tasks,
            algos=self.algos,
            datasets=dict(map(_place, self.dataset)),
            preset=self.preset,
            seeds=self.seeds,
            seed=self.seed,
            run={name: value for name, value in asked.items() if value is not None},
        )
        result = run_suite(request, self.out, Display(quiet=self.quiet), work)
        done = f"{result['finished']} of {result['cells']} cells are finished"
        self.say(f"{done}, {result['found_finished']} of them before")
        if result["out_of_time"]:
            self.say(
                f"stopped after {self.time_limit:g} s: the rest is saved, the same command goes on"
            )
        self.say(f"next    icql bench report {self.out} --out {self.out}.html")
        if failed := result["failed"]:
            lines = "".join(f"\n  {one['what']}: {one['error']}" for one in failed)
            message = f"{len(failed)} groups failed; the same command tries them again.{lines}"
            raise PartlyFailed(message, result)
        return result

    def _work(self) -> GroupRunner | None:
        """What runs the groups; None: this process, however long it takes."""
        if self.time_limit is not None and not self.time_limit > 0:
            raise UserError("must be above 0.", where=f"--time-limit {self.time_limit:g}")
        if self.on == "ray":
            if self.time_limit is not None:
                raise UserError(
                    "is of use without --on ray alone.",
                    where="--time-limit",
                    fix="Limit the job of the driver: what it began goes on from checkpoints.",
                )
            from icql.bench.on_ray import OnRay

            return OnRay(address=self.address, cpus=self.cpus)
        if self.address is not None:
            raise UserError("is of use with --on ray alone.", where=f"--address {self.address}")
        if self.time_limit is None:
            return None
        from icql.bench.runner import run_groups

        return partial(run_groups, until=time.monotonic() + self.time_limit)


@dataclass(frozen=True, kw_only=True)
class Status(Options):
    """Say how far a benchmark folder has come."""

    folder: tyro.conf.Positional[Path]
    """Folder of 'icql bench run'."""

    def execute(self) -> Result:
        """Look and show."""
        from icql.bench.costs import costs
        from icql.bench.records import BenchFolder
        from icql.bench.report import gather
        from icql.bench.status import status

        folder = BenchFolder.open(self.folder)
        result = status(folder)
        for row in result["groups"]:
            line = f"{row['state']:<8} {row['finished']}/{row['cells']} seeds"
            line += f"  {', '.join(row['suites'])}: {row['what']}"
            if row["state"] != "done":
                line += f"  update {row['step']:,} of {row['steps']:,}"
            self.say(line + (f"  {row['holder']}" if row["holder"] else ""))
            if row["error"]:
                self.say(f"{'':<9}{row['error']}")
        for reason in result["damaged"]:
            self.say(f"damaged  {reason}")
        self.say(f"{result['finished']} of {result['cells']} cells are finished")
        spent = [(table.suite, cost) for table in gather(folder).tables for cost in costs(table)]
        for suite, cost in spent:
            self.say(f"cost    {cost.said(suite.title)}")
        return result | {"cost": [{"suite": s.id, **cost.as_json()} for s, cost in spent]}


@dataclass(frozen=True, kw_only=True)
class WriteReport(Options):
    """Write what was run beside what is published: a page, or tables for documents.

    .html: one page that needs nothing else; .md: Markdown; .tex: LaTeX (booktabs).
    """

    folder: tyro.conf.Positional[Path]
    """Folder of 'icql bench run'."""
    out: Path
    """File to write: .html, .md or .tex."""
    picture: Path | None = None
    """Also draw the first table into this file (.svg); Markdown then shows it."""

    def files_written(self) -> Iterable[Path]:
        """The report and its picture."""
        return (self.out,) if self.picture is None else (self.out, self.picture)

    def execute(self) -> Result:
        """Gather and write."""
        from icql.bench.records import BenchFolder
        from icql.bench.report import gather, write_report

        if self.out.suffix not in (".html", ".md", ".tex"):
            raise UserError(
                f"{self.out.suffix or 'no suffix'} is no kind of report.",
                where=f"--out {self.out}",
                fix="Name a file .html, .md or .tex.",
            )
        if self.picture is not None and self.picture.suffix != ".svg":
            raise UserError("is no .svg file.", where=f"--picture {self.picture}")
        report = gather(BenchFolder.open(self.folder))
        write_report(report, self.out, self.picture)
        result = {"report": str(self.out), **report.counts()}
        self.say(f"report  {self.out} ({result['cells']} cells of {result['suites']} suites)")
        for line in report.notes:
            self.say(f"note: {line}")
        return result


@dataclass(frozen=True, kw_only=True)
class Merge(Options):
    """Copy the finished cells of several benchmark folders into one.

    For folders that were made on several machines, and for results that are kept: records and what
    reports show beside them, without the run folders. Cells that are there already stay; what
    failed is kept as failed.
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of 'icql bench run'."""
    out: Path
    """Folder to make or to add to."""

    def folders_written(self) -> Iterable[Path]:
        """The one that is added to."""
        return (self.out,)

    def execute(self) -> Result:
        """Copy and count."""
        from icql.bench.merge import merge

        result = merge(self.folders, self.out)
        self.say(f"{result['copied']} cells copied to {self.out}, {result['found']} were there")
        for what in result["other_outcome"]:
            self.say(f"note: {what} has another outcome than the one that was there, which stays")
        for what in result["failed"]:
            self.say(f"failed   {what}")
        for reason in result["damaged"]:
            self.say(f"damaged  {reason}")
        return result


def _place(item: str) -> tuple[str, str]:
    """Read TASK=FILE."""
    task, equals, path = item.partition("=")
    if not (equals and task and path):
        raise UserError(f"{item!r} is not TASK=FILE.", where="--dataset")
    return task, path
