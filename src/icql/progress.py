"""Progress with time left, on standard error: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from icql.errors import visible

Show = Callable[[str, int, int, str], None]  # label, steps done, steps in all, note
PLAIN_SECONDS = 5.0  # between two lines where nobody watches a live display


class Display:
    """Shows one piece of work after another; does nothing when `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.live = self.console.is_terminal and not quiet

    def say(self, message: str) -> None:
        """Print one line."""
        self.console.print(visible(message), markup=False, soft_wrap=True)

    def work(self, label: str, total: int, first: int = 0) -> Work:
        """Start a piece of work of `total` steps; use as a context manager.

        The `first` steps, which an earlier run has done, are left out of the rate.
        """
        return Work(self, label, total, first)

    @contextmanager
    def works(self) -> Iterator[Show]:
        """Show one piece of work after another: a new one where the label changes."""
        label, work = "", self.work("", 0)

        def show(now: str, done: int, total: int, note: str) -> None:
            nonlocal label, work
            if now != label:
                shown.close()
                label, work = now, shown.enter_context(self.work(now, total, done))
            work.update(done, note)

        with ExitStack() as shown:
            yield show


class Work:
    """A piece of work with a known number of steps."""

    def __init__(self, display: Display, label: str, total: int, first: int) -> None:
        self._display, self._label, self._total, self._first = display, label, total, first
        self._begin = self._spoken = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=display.console,
            transient=True,
            disable=not display.live,
        )
        self._task = self._bar.add_task(label, total=total, note="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """Say that `done` of the steps are done."""
        if self._display.live:
            self._bar.update(self._task, completed=done, note=note)
            return
        now = time.monotonic()
        waits = now - self._spoken < PLAIN_SECONDS and done < self._total
        if waits or now - self._begin < 2.0:  # too short to be worth a line
            return
        self._spoken = now
        rate = (done - self._first) / max(now - self._begin, 1e-9)
        left = timedelta(seconds=round((self._total - done) / rate)) if rate > 0 else "?"
        self._display.say(f"{self._label}: {done:,}/{self._total:,}, {left} left  {note}".rstrip())
