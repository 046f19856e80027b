"""What the commands of `icql data` share: options, and bars of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro

from icql.progress import Display, Work

Flag = tyro.conf.FlagCreatePairsOff[bool]
Show = Callable[[str, int, int, str], None]  # label, steps done, steps in all, note


@dataclass(frozen=True, kw_only=True)
class Options:
    """An option that every command has."""

    json: Flag = False
    """Print one JSON object on standard output."""


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


@contextmanager
def bars() -> Iterator[Show]:
    """Show one bar after another: a new one where the label changes."""
    display, label = Display(), ""
    work: Work | None = None

    def show(now: str, done: int, total: int, note: str) -> None:
        nonlocal label, work
        if work is None or now != label:
            shown.close()
            label, work = now, shown.enter_context(display.work(now, total))
            work.start_at(done)
        work.update(done, note)

    with ExitStack() as shown:
        yield show
