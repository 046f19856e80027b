"""A run of a moment on a log with units, and its file, asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import icql
from data.plant import MAPPING, plant_rows, write_plant

RUN = {"log_every": 10, "checkpoint_every": 10, "episodes": 0}


def plant(folder: Path) -> Path:
    """A log with units, bounds and a category."""
    path = write_plant(folder / "plant.csv", plant_rows(shifts=12, steps=30))
    (folder / "plant.csv.toml").write_text(MAPPING)
    return path


def train(dataset: Path, out: Path, algo: str = "bc", seeds: int = 1, **settings: Any) -> Path:
    """A policy that has hardly learned anything, but is no longer what it began with."""
    small = {"batch_size": 8, "policy.hidden": [16, 16], **settings}
    icql.train(
        algo,
        dataset=str(dataset),
        steps=3,
        seeds=seeds,
        out=out,
        settings=small,
        run=RUN,
        quiet=True,
    )
    return out


def ask(path: Path, states: np.ndarray) -> dict[str, np.ndarray]:
    """What a file says of states, by onnxruntime alone."""
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"state": states}), strict=True))
