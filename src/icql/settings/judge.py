"""How policies are judged from a log alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from icql.settings.fields import BelowOne, Between, Count, Limits, Positive, Settings, Whole, Widths

Several = Annotated[int, Limits(2)]  # a single network has no spread


@dataclass(frozen=True)
class JudgeSettings(Settings):
    """How long fitted Q evaluation runs, with how many networks, and on which episodes."""

    updates: Count = 5_000
    """Gradient steps of every network."""
    seeds: Several = 3
    """Networks per policy, each with its own start and its own draw of episodes."""
    discount: BelowOne = 0.99
    """γ of all values and returns."""
    seed: Whole = 0
    """Of the split, the networks and the bootstrap."""
    held_out: Between = 0.2
    """The share of episodes that nothing here is fitted on."""
    graph: bool = True
    """Whether the local critic is asked too: it has to find similar states of every row."""
    batch_size: Count = 256
    """Rows per gradient step."""
    hidden: Widths = (128, 128)
    """Hidden layers of the networks."""
    learning_rate: Positive = 1e-3
    """Adam's, which falls to zero by a cosine."""
    target_rate: Between = 0.02
    """Step of the target networks' moving average: values travel along an episode through it."""
