"""Metrics as JSON lines and for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from icql.settings.grid import Member
from icql.training.run_folder import RunFolder


class MetricLog:
    """Writes each row to `metrics.jsonl` and to TensorBoard, member by member."""

    def __init__(self, folder: RunFolder, *, members: Sequence[Member], purge_step: int) -> None:
        self._folder = folder
        self._tags = [member.label.replace(", ", "/").replace(" ", "") for member in members]
        self._board = SummaryWriter(str(folder.path / "tensorboard"), purge_step=purge_step)

    def training(self, step: int, metrics: dict[str, np.ndarray], seconds: float) -> None:
        """One row of training metrics, each a mean over the updates since the last row."""
        self._write(step, "train", metrics)
        row = {name: _plain(value) for name, value in metrics.items()}
        self._folder.append_metrics(
            {"step": step, "kind": "train", "seconds": round(seconds, 3), **row}
        )

    def evaluation(self, step: int, looks: dict[str, Any]) -> None:
        """One row of an evaluation: scores, returns and the algorithm's looks, member by member."""
        self._write(step, "evaluation", {k: v for k, v in looks.items() if np.ndim(v) == 1})
        row = {name: _plain(value) for name, value in looks.items()}
        self._folder.append_metrics({"step": step, "kind": "evaluation", **row})

    def close(self) -> None:
        """Flush everything."""
        self._board.close()

    def _write(self, step: int, group: str, metrics: dict[str, np.ndarray]) -> None:
        for name, values in metrics.items():
            for tag, value in zip(self._tags, values, strict=True):
                self._board.add_scalar(f"{group}/{name}/{tag}", float(value), step)


def _plain(value: Any) -> Any:
    return np.asarray(value, np.float64).tolist()
