"""How long to train, how often to look, and in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from icql.settings.fields import Count, Settings, Whole

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class RunSettings(Settings):
    """How long to train and how often to look."""

    steps: Count = 1_000_000
    """Updates."""
    evaluate_every: Count = 50_000
    """Updates between evaluations (the last is always evaluated)."""
    episodes: Whole = 10
    """Episodes per evaluation and seed (0: train without an environment, evaluate later)."""
    log_every: Count = 1_000
    """Updates between rows of metrics."""
    checkpoint_every: Count = 25_000
    """Updates between checkpoints: the most that a killed run can lose."""
    precision: Precision = "float32"
    """Of the matrix products of training. bfloat16 rounds their factors (on a GPU also the
    activations between them); sums, TD, losses and parameters stay float32. Faster where the chip
    multiplies it: GPUs, and CPUs with AVX512-BF16 or AMX."""
