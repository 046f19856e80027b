"""A run folder: everything about one run, in files anyone can open.

run.json               what was asked: algorithm, settings, data hash, seeds, versions
metrics.jsonl          one JSON object per row: training metrics and evaluations
tensorboard/           the same for TensorBoard
checkpoints/           Orbax checkpoints of the full training state
policy.safetensors     final policies of all seeds, with their state normaliser
critic.safetensors     final critics of all seeds
result.json            final scores, apart from the best seen; per-episode returns
plots/                 pictures
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icql.errors import UserError
from icql.files import atomic, read_json, write_json

FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """Paths and small files of one run."""

    path: Path

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a path where something is already: nothing is ever overwritten."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(
                "already exists and is not empty.",
                where=str(path),
                fix="Give another --out, or --resume to go on with the run in it.",
            )

    @classmethod
    def create(cls, path: Path, manifest: dict[str, Any]) -> RunFolder:
        """Start a new run in a folder that does not exist yet, or is empty."""
        cls.check_free(path)
        folder = cls(path)
        write_json(folder.manifest_path, {"format": FORMAT, **manifest})
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open an existing run."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise UserError(
                "there is no such run folder.",
                where=str(path),
                fix="Train one with: icql train --out DIR",
            )
        if not folder.manifest_path.is_file():
            raise UserError(
                "is not a run folder: it has no run.json.",
                where=str(path),
                fix="Name the folder that 'icql train' printed.",
            )
        if folder.manifest.get("format") != FORMAT:
            raise UserError(
                f"was written in format {folder.manifest.get('format')}, this version reads "
                f"{FORMAT}.",
                where=str(folder.manifest_path),
            )
        return folder

    @property
    def manifest_path(self) -> Path:
        """The file that says what was asked."""
        return self.path / "run.json"

    @property
    def manifest(self) -> dict[str, Any]:
        """What was asked."""
        content = read_json(self.manifest_path)
        if not isinstance(content, dict):
            raise UserError("is not a JSON object.", where=str(self.manifest_path))
        return content

    @property
    def result_path(self) -> Path:
        """The final scores; present only once the run is finished."""
        return self.path / "result.json"

    @property
    def metrics_path(self) -> Path:
        """Metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def policy_path(self) -> Path:
        """Final policies of all seeds."""
        return self.path / "policy.safetensors"

    @property
    def critic_path(self) -> Path:
        """Final critics of all seeds."""
        return self.path / "critic.safetensors"

    @property
    def plots(self) -> Path:
        """Folder of pictures."""
        return self.path / "plots"

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one row; a line is written whole or not at all."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row of metrics; a last line cut off by a kill is passed over."""
        if not self.metrics_path.is_file():
            return
        for line in self.metrics_path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def keep_metrics_until(self, step: int) -> None:
        """Forget rows after `step`: a resumed run writes them again."""
        kept = [row for row in self.rows() if row["step"] <= step]
        with atomic(self.metrics_path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
