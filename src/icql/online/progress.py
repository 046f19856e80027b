"""What a run tells while it goes on: evaluations, and progress with time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """Returns of the deterministic policy after `step` environment steps."""

    step: int
    score: float  # mean, normalised
    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))


@dataclass(frozen=True)
class Progress:
    """What a progress display may show."""

    label: str  # what is being done
    step: int
    steps: int
    steps_per_second: float
    seconds_left: float
    evaluation: Evaluation | None  # the latest


Listener = Callable[[Progress], None]


class Clock:
    """Tells `listener` about once a second how far a piece of work has got."""

    def __init__(self, listener: Listener | None, label: str, steps: int, first: int) -> None:
        self._listener, self._label, self._steps, self._first = listener, label, steps, first
        self._begin = self._spoken = time.monotonic()

    def tick(self, step: int, latest: Evaluation | None = None, *, now: bool = False) -> None:
        """Speak if a second has passed, or `now`."""
        time_now = time.monotonic()
        if self._listener is None or not (now or time_now - self._spoken >= 1):
            return
        self._spoken = time_now
        rate = (step - self._first) / max(time_now - self._begin, 1e-9)
        left = (self._steps - step) / rate if rate > 0 else float("inf")
        self._listener(Progress(self._label, step, self._steps, rate, left, latest))
