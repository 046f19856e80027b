"""Who is told how a run goes: TensorBoard always, and whoever else wants to be.

A callback is told the beginning, every row of metrics as plain numbers, and the end. W&B and
trackio are two of them, imported only where they are asked for (extras `wandb` and `trackio`).
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from icql.errors import UserError
from icql.files import make_folder

LogName = Literal["tensorboard", "wandb", "trackio"]
PROJECT = "icql"  # of the trackers, where no other is named


@dataclass(frozen=True)
class Begun:
    """What a callback is told first."""

    folder: Path  # of the run
    plan: Mapping[str, Any]  # what `run.json` says
    step: int  # updates made before, where a run goes on


class Callback:
    """Does nothing; override what is of interest. Called in the first process of a group only.

    What a callback raises ends the run, as any error does; `icql train --resume` goes on.
    """

    def on_start(self, begun: Begun) -> None:
        """The run is about to make its first update."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """After update `step`: numbers by name, e.g. train/q_loss/seed0 or evaluation/score/…"""

    def on_end(self, result: Mapping[str, Any] | None) -> None:
        """The run is over: what `result.json` says, or None where it was stopped before its end."""


class TensorBoard(Callback):
    """Writes `tensorboard/` in the run folder; rows after the beginning are forgotten.

    `metrics.jsonl` has the same, guarded: what cannot be written here is said once and left out.
    Written in our own thread: that of tensorboardX's SummaryWriter dies of a full disk unheard, and
    whoever fills its queue waits for ever.
    """

    def __init__(self, warn: Callable[[str], None] = print) -> None:
        self._warn = warn

    def on_start(self, begun: Begun) -> None:
        """Open the folder."""
        self._folder, self._file = begun.folder / "tensorboard", None
        with self._lost():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import SessionLog

            make_folder(self._folder)
            self._file = EventsWriter(str(self._folder / "events"))
            self._add(begun.step, file_version="brain.Event:2")
            self._add(begun.step, session_log=SessionLog(status=SessionLog.START))

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add numbers."""
        from tensorboardX.summary import scalar

        with self._lost():
            for name, number in metrics.items():
                self._add(step, summary=scalar(name, number))
            if self._file is not None:
                self._file.flush()

    def on_end(self, result: Mapping[str, Any] | None) -> None:
        """Close."""
        with self._lost():
            if self._file is not None:
                self._file.close()

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        if self._file is not None:
            self._file.write_event(Event(wall_time=time.time(), step=step, **content))

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Go on without, and say so, where the disk refuses."""
        try:
            yield
        except OSError as error:
            file, self._file = self._file, None
            said = f"cannot be written ({error.strerror}); metrics.jsonl has the same."
            self._warn(f"warning: {self._folder}: {said}")
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()


class Tracker(Callback):
    """Tells a service with the functions of W&B: init, log, finish. A run that goes on is resumed.

    Args:
        module: wandb or trackio, or what behaves like them.
        options: more arguments of its `init`, e.g. `project`, `entity` or `space_id`.

    Raises:
        UserError: it is not installed.
    """

    def __init__(self, module: str, **options: Any) -> None:
        try:
            self._service: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(
                f"{module} is not installed.",
                where=f"--log {module}",
                fix=f"pip install 'icql[{module}]', or leave it out: TensorBoard is always there.",
            ) from error
        self._options, self._open = options, False

    def on_start(self, begun: Begun) -> None:
        """Begin or resume a run of the folder's name."""
        config = {name: value for name, value in begun.plan.items() if name != "versions"}
        known = {"project": PROJECT, "name": begun.folder.resolve().name, "resume": "allow"}
        self._service.init(**{**known, "config": config, **self._options})
        self._open = True

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send numbers."""
        self._service.log(dict(metrics), step=step)

    def on_end(self, result: Mapping[str, Any] | None) -> None:
        """Finish."""
        if self._open:
            self._open = False
            self._service.finish()


class WandB(Tracker):
    """Weights & Biases; a run that goes on is known by its folder's name and its plan's seal."""

    def __init__(self, **options: Any) -> None:
        super().__init__("wandb", **options)

    def on_start(self, begun: Begun) -> None:
        """Begin or resume; its files lie in the run folder."""
        name = begun.folder.resolve().name
        own = {"id": f"{name}-{begun.plan['data_hash'][:8]}", "dir": str(begun.folder)}
        self._options = {**own, **self._options}
        super().on_start(begun)


def make_logger(name: LogName) -> list[Callback]:
    """The callbacks besides TensorBoard, which is always there.

    Raises:
        UserError: the service is not installed.
    """
    if name == "tensorboard":
        return []
    return [WandB()] if name == "wandb" else [Tracker("trackio")]
