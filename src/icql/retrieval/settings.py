"""The settings of retrieval: which transitions become the context Ω of a query state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from icql.errors import UserError, nearest

Metric = Literal["l2", "cosine"]
Strategy = Literal["similar", "random", "high_reward"]
Engine = Literal["auto", "exact", "accelerator", "approximate"]


@dataclass(frozen=True)
class ContextSettings:
    """Metric × strategy × k: how the context of every s and s' is retrieved."""

    k: int = 20
    """Transitions in one context."""
    metric: Metric = "l2"
    """Distance between states: Euclidean, or 1 - cosine similarity."""
    strategy: Strategy = "similar"
    """similar: the k nearest states; random: k uniform transitions; high_reward: of the nearest
    `candidates` states, the k with the highest reward."""
    candidates: int = 60
    """How many of the nearest states high_reward chooses from."""
    include_self: bool = True
    """Whether a transition may be part of its own state's context (in the paper it may)."""
    engine: Engine = "auto"
    """exact: equal to float64 brute force; accelerator: the same on JAX's devices; approximate:
    codes of four bits, with measured recall; auto: the accelerator where there is one, else exact
    unless the data is large."""
    recall_floor: float = 0.999
    """Least recall that approximate search must show against an exact sample."""
    seed: int = 0
    """Seed of the random strategy and of the approximate engine's clustering."""

    def __post_init__(self) -> None:
        for name, kind in (("metric", Metric), ("strategy", Strategy), ("engine", Engine)):
            given, known = getattr(self, name), list(get_args(kind))
            if given not in known:
                fix = nearest(str(given), known)
                raise UserError(f"unknown {name} {given!r}.", where=f"context.{name}", fix=fix)
        if self.k < 1:
            raise UserError(f"must be at least 1, not {self.k}.", where="context.k")
        if self.strategy == "high_reward" and self.candidates < self.k:
            raise UserError(
                f"{self.candidates} candidates cannot fill a context of {self.k}.",
                where="context.candidates",
                fix=f"Give at least {self.k}.",
            )
        if self.candidates < 1:
            raise UserError(
                f"must be at least 1, not {self.candidates}.", where="context.candidates"
            )
        if not 0.0 <= self.recall_floor <= 1.0:
            raise UserError(
                f"must lie between 0 and 1, not {self.recall_floor}.", where="context.recall_floor"
            )
        if self.seed < 0:
            raise UserError(f"must be 0 or more, not {self.seed}.", where="context.seed")
