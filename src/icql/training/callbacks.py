"""Who is told how a run goes: TensorBoard always, and whoever else wants to be.

A callback is told the beginning, every row of metrics as plain numbers, and the end. W&B and
trackio are two of them, imported only where they are asked for (extras `wandb` and `trackio`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from icql.errors import UserError

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
    """Writes `tensorboard/` in the run folder; rows after the beginning are forgotten."""

    def on_start(self, begun: Begun) -> None:
        """Open the folder."""
        from tensorboardX import SummaryWriter

        self._board = SummaryWriter(str(begun.folder / "tensorboard"), purge_step=begun.step)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add numbers."""
        for name, number in metrics.items():
            self._board.add_scalar(name, number, step)

    def on_end(self, result: Mapping[str, Any] | None) -> None:
        """Flush."""
        self._board.close()


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
