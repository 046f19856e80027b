"""`icql data …`: list, show, init, validate, coverage, convert. (Fetch and collect: `obtain`.)

What needs more than the readers (Matplotlib, JAX, …) is imported where a command is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from icql.cli.options import Flag, Options, Result
from icql.data.arrays import read_size
from icql.data.datasets import (
    D4RL_DIR,
    EMBEDDED,
    convert,
    find_d4rl,
    is_store,
    kinds,
    load_dataset,
    mapped_suffixes,
    suffixes,
    validate_dataset,
)
from icql.data.download import datasets_dir
from icql.data.formats.mapping import beside
from icql.data.formats.minari_source import PREFIX
from icql.data.formats.store import verify_store
from icql.data.tasks import get_task, list_tasks
from icql.data.transitions import Transitions
from icql.data.validation.columns import describe, table
from icql.errors import UserError
from icql.files import atomic, default_cache_dir, from_home, write_json
from icql.progress import Display
from icql.settings.contexts import KS, QUERIES, SpaceName

Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(Options):
    """Options that say which data is meant."""

    dataset: tyro.conf.Positional[str]
    """Name of a task, file, folder, or minari:ID."""
    task: str | None = None
    """Task of the data; by default what the data or its name says."""
    columns: Path | None = None
    """File that says which columns of a CSV or Parquet log are what; by default the one beside
    it."""

    def load(self) -> Transitions:
        """Read the data."""
        return load_dataset(self.dataset, task=self.task, columns=self.columns)


class List(Options):
    """List the tasks, the transitions the paper counts in their datasets, and where
    their files are: in the package, in $ICQL_D4RL_DIR, or among the fetched ones."""

    def execute(self) -> Result:
        """List."""
        tasks = [_task(name) for name in list_tasks()]
        files = _other_files({task["path"] for task in tasks})
        for task in tasks:
            count = f"{task['transitions']:,}" if task["transitions"] else ""
            fetch = f"icql data fetch {task['name']}" if task["can_be_fetched"] else ""
            place = "in the package" if task["embedded"] else task["path"] or fetch
            self.say(f"{task['name']:<28} {task['environment']:<20} {count:>10}  {place}")
        for file in files:
            self.say(file)
        return {"tasks": tasks, "files": files, "cache": str(datasets_dir())}


def _task(name: str) -> Result:
    task, embedded = get_task(name), name in EMBEDDED
    path = None if embedded else find_d4rl(name)
    return {
        "name": name,
        "environment": task.env_id,
        "domain": task.domain,
        "transitions": task.transitions,
        "embedded": embedded,
        "path": None if path is None else str(path),
        "can_be_fetched": task.d4rl_file is not None,
    }


def _other_files(known: set[str | None]) -> list[str]:
    """Files of a readable kind in the known folders that no task stands for."""
    folders = [from_home(folder)] if (folder := os.environ.get(D4RL_DIR)) else []
    return [
        str(path)
        for folder in (*folders, datasets_dir())
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in suffixes() and str(path) not in known
    ]


class Facts(DatasetOptions):
    """Show what a dataset holds: the transitions that training would see, and the returns
    of its whole episodes."""

    def execute(self) -> Result:
        """Load and show; of a store, once its files are found to be those that were written."""
        data = self.load()
        if is_store(self.dataset):
            verify_store(data)
        facts = summary(data)
        for key, value in facts.items():
            if key != "warnings":
                self.say(f"{key:<16} {_text(value)}")
        for warning in facts["warnings"]:
            self.say(f"warning          {warning}")
        return facts


def summary(data: Transitions) -> Result:
    """What `icql data show` says of a dataset; returns and lengths are of whole episodes."""
    info = data.info
    returns, lengths = np.asarray(info.episode_returns), np.asarray(info.episode_lengths)
    task = None if info.task is None else get_task(info.task)
    return {
        "name": info.name,
        "source": info.source,
        "task": info.task,
        "transitions": len(data),
        "episodes": data.episodes(),
        "observation_dim": data.observation_dim,
        "action_dim": data.action_dim,
        "dropped": info.dropped,
        "return_mean": float(returns.mean()) if returns.size else None,
        "return_min": float(returns.min()) if returns.size else None,
        "return_max": float(returns.max()) if returns.size else None,
        "length_mean": float(lengths.mean()) if lengths.size else None,
        "behaviour_score": None if task is None else task.behaviour_score(info),
        "data_hash": data.content_hash(),
        "warnings": list(info.warnings),
    }


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


@dataclass(frozen=True, kw_only=True)
class Validate(DatasetOptions):
    """Look for defects in logged data before anything is trained.

    All faults of all columns are listed at once, below a table of the columns: range, mean, spread,
    gaps, different values, histogram. Errors stop (exit code 2) and name file, row and column;
    warnings say what follows if they are left. With --report DIR, a page with all of it and
    pictures is written to DIR/report.html.
    """

    report: Folder = None
    """Write a report page into this folder."""

    def folders_written(self) -> Iterable[Path]:
        """That of the report."""
        return () if self.report is None else (self.report,)

    def execute(self) -> Result:
        """Validate; leaves with code 2 where there are errors."""
        findings, source = validate_dataset(self.dataset, task=self.task, columns=self.columns)
        data = source or findings.transitions
        columns = [] if data is None else describe(data)
        result = {**findings.as_json(), "columns": [facts.as_json() for facts in columns]}
        if self.report is not None:
            from icql.data.validation.page import write_report

            with Display().work("report", 1) as work:
                page = write_report(self.report, self.dataset, findings, source, columns)
                work.update(1)
            result["report"] = str(page)
        for line in table(columns) if columns else ():
            self.say(line)
        for kind, group in (("error", findings.errors), ("warning", findings.warnings)):
            for finding in group:
                self.say(f"{kind} {finding.rule}: {', '.join(finding.place)}: {finding.message}")
        if findings.ok:
            warned = f", {len(findings.warnings)} warning(s)" if findings.warnings else ""
            self.say(f"ok: {result['transitions']:,} transitions{warned}")
        else:
            self.say(f"not fit for training: {len(findings.errors)} error(s)")
        if "report" in result:
            self.say(f"report: {result['report']}")
        if not findings.ok:
            if self.json:
                print(json.dumps(result, allow_nan=False))
            raise SystemExit(UserError.exit_code)
        return result


@dataclass(frozen=True, kw_only=True)
class Init(Options):
    """Write a mapping for a CSV or Parquet log, with guessed columns, types, bounds and flags.

    It says why each was guessed and is to be edited; 'icql data validate LOG' then checks it. All
    rows are read for the bounds of actions, the levels of categories and the number of gaps;
    nothing in the log is executed or changed.
    """

    log: tyro.conf.Positional[str]
    """File, or a pattern such as 'logs/*.csv' for several with the same columns."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Mapping to write; by default LOG.toml, of several files columns.toml beside them."""
    separator: str | None = None
    """What separates cells of CSV, where it cannot be found."""
    decimal: str | None = None
    """The decimal sign of CSV, where it cannot be found."""
    force: Flag = False
    """Replace a mapping that is there."""

    def files_written(self) -> Iterable[Path]:
        """The mapping."""
        return () if self.out is None else (self.out,)

    def execute(self) -> Result:
        """Guess, write, show."""
        from icql.data.formats.guess import guess_mapping

        path = from_home(self.log)
        if path.suffix.lower() not in mapped_suffixes():
            known = ", ".join(mapped_suffixes())
            raise UserError(f"only logs of columns ({known}) have a mapping.", where=self.log)
        for sign, option in ((self.separator, "--separator"), (self.decimal, "--decimal")):
            if sign is not None and len(sign) != 1:
                raise UserError(f"must be one character, not {sign!r}.", where=option)
        if self.decimal not in (None, ".", ","):
            raise UserError(f"must be '.' or ',', not {self.decimal!r}.", where="--decimal")
        out = self.out or beside(path)[0]
        if out.exists() and not self.force:
            raise UserError("it exists already.", where=str(out), fix="Add --force to replace it.")
        guess = guess_mapping(path, separator=self.separator, decimal=self.decimal)
        text = guess.text(f"{out.name}: which columns of {path.name} are what")
        try:
            with atomic(out) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"it cannot be written ({error.strerror}).", where=str(out)) from error
        self.say(text)
        elsewhere = "" if out in beside(path) else f" --columns {out}"
        self.say(f"written: {out}; edit it, then: icql data validate {self.log}{elsewhere}")
        return {
            "mapping": str(out),
            "columns": guess.values,
            "why": guess.why,
            "gaps": guess.gaps,
            "left_out": guess.left_out,
        }


@dataclass(frozen=True, kw_only=True)
class Coverage(DatasetOptions):
    """Say whether the data is dense enough for local estimates.

    Measures how far the k nearest states are: overall, by region of the state map, and for held-out
    episodes (neighbours from other episodes only). With --out DIR, DIR/coverage.png and
    DIR/coverage.json are written.
    """

    k: tuple[int, ...] = KS
    """Context sizes."""
    queries: int = QUERIES
    """How many states are looked at; their neighbours are sought in all of the data."""
    seed: int = 0
    """Seed of that sample."""
    space: SpaceName | None = None
    """What distances are measured on, as --context.space of training: the columns as they are, each
    divided by its own spread (standardised), or learned features. By default as in training: raw
    for D4RL's tasks, standardised for logs of one's own."""
    out: Folder = None
    """Write picture and numbers into this folder."""

    def folders_written(self) -> Iterable[Path]:
        """That of picture and numbers."""
        return () if self.out is None else (self.out,)

    def execute(self) -> Result:
        """Measure and show."""
        from icql.data.pictures import png
        from icql.retrieval.coverage import coverage, draw_coverage

        with Display().work("coverage, %", 100) as work:
            found = coverage(
                self.load(),
                self.k,
                queries=self.queries,
                seed=self.seed,
                space=self.space,
                cache_dir=default_cache_dir(),
                progress=lambda label, done: work.update(int(100 * done), label),
            )
        result = found.as_json()
        if self.out is not None:
            result["picture"] = str(self.out / "coverage.png")
            with atomic(self.out / "coverage.png") as temporary:
                temporary.write_bytes(png(draw_coverage(found)))
            write_json(self.out / "coverage.json", result)
        self.say(f"{found.name}: {found.verdict()}")
        self.say("   k   nearest (median)   of other episodes   in steps   own episode   isolated")
        lonely = [r for r in result["regions"] if r["level"] == "too sparse"]
        for row in result["neighbours"]:
            keys = ("distance", "held_out", "held_out_in_steps")
            near, other, steps = (
                "–" if (x := row[key]["p50"]) is None else f"{x:.3g}" for key in keys
            )
            self.say(
                f"{row['k']:>4}   {near:>16}   {other:>17}   {steps:>8}   "
                f"{row['own_episode']:>11.0%}   {row['isolated']:>8.0%}"
            )
        for region in lonely:
            self.say(f"too sparse in region {region['region']}: {region['where']}")
        if self.out is not None:
            self.say(f"written: {self.out / 'coverage.png'}, {self.out / 'coverage.json'}")
        return result


@dataclass(frozen=True, kw_only=True)
class Convert(DatasetOptions):  # noqa: D101
    __doc__ = f"""Write a dataset in another format.

    The destination's name says which: {kinds(written=True)}.
    HDF5 has D4RL's layout. What was written is read again and compared: 'identical' says whether it
    gives the same transitions.

    NAME.icql is a store: transitions in plain NPY files that training maps into memory, so that
    they may be many times larger than it. HDF5, NPZ, CSV and Parquet are read, validated and
    written block by block; --memory is what that may take.
    """

    destination: tyro.conf.Positional[str]
    """File or store to write, or minari:ID."""
    force: Flag = False
    """Replace the destination if it exists."""
    memory: str | None = None
    """Memory to make a store with, e.g. 500MB; by default half of the machine's. Pages of mapped
    files are the system's cache and do not count; some bytes a row are needed."""

    def files_written(self) -> Iterable[Path]:
        """The destination, where it is a file; Minari knows its own folder."""
        other = is_store(self.destination) or self.destination.startswith(PREFIX)
        return () if other else (from_home(self.destination),)

    def folders_written(self) -> Iterable[Path]:
        """The one in which a store is made."""
        return (from_home(self.destination).parent,) if is_store(self.destination) else ()

    def execute(self) -> Result:
        """Convert and compare."""
        done = convert(
            self.dataset,
            self.destination,
            task=self.task,
            columns=self.columns,
            force=self.force,
            memory=None if self.memory is None else read_size(self.memory, where="--memory"),
        )
        for warning in done["warnings"]:
            Display().say(warning)
        self.say(f"{self.destination}: {done['transitions']:,} transitions")
        return done
