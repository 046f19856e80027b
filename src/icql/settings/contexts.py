"""How data is prepared, and which transitions become the context Ω of a query state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from icql.errors import UserError
from icql.settings.fields import Count, NonNegative, Settings, Share, Whole

Metric = Literal["l2", "cosine"]
SpaceName = Literal["raw", "standardised", "learned"]
SpreadName = Literal["deviation", "plain", "quartiles"]
Strategy = Literal["similar", "random", "high_reward"]
Exclude = Literal["none", "self", "episode"]
Engine = Literal["auto", "exact", "accelerator", "approximate"]
Level = Literal["random", "medium-replay", "medium", "medium-expert", "expert"]  # D4RL's
KS = (10, 20, 30, 40)  # context sizes of the paper's tables
QUERIES = 1_000  # states whose neighbours tell how dense data is


@dataclass(frozen=True)
class DataSettings(Settings):
    """How logged data is prepared before an algorithm sees it."""

    section: ClassVar[str] = "data."

    reward_scale: float = 1.0
    """Every reward is multiplied by this (recorded with the run; β is meant on scaled values)."""
    reward_shift: float = 0.0
    """Added to every scaled reward. It helps where most rewards are 0, which a local critic cannot
    tell from no value at all (published Kitchen settings subtract 4 before scaling)."""
    normalise_returns: bool = False
    """Also scale rewards by 1000 / (max return − min return), as IQL does on MuJoCo."""
    normalise_states: bool = False
    """Standardise states; the normaliser travels with the policy. On by default for logs of one's
    own, whose columns have units (docs/mapping.md)."""
    spread: SpreadName = "deviation"
    """What standardised states are divided by. deviation: the standard deviation, at least a tenth
    of the median over all columns, for simulators; plain: the standard deviation + 0.001, as
    official code has it (TD3+BC, DMG, CORL); quartiles: each column's own, as
    context.space standardised, around its median, at most 30 of them away: the default for logs of
    one's own."""
    corrective: NonNegative = 0.0
    """Half the width of random shifts of logged actions, each with the state moved aside so that
    the shifted action makes up for it: teaches the way back to what was demonstrated. For actions
    that say how fast or how strongly to move (Kitchen: 0.3); 0: rows as they are."""
    lead: Whole = 0
    """Every state is shown with the action logged so many steps later in its episode (at its end,
    with the last). Where actions name a position to go to, what was demonstrated is then done
    faster (Door: 5); 0: rows as they are."""


@dataclass(frozen=True)
class ContextSettings(Settings):
    """Metric × strategy × k: how the context of every s and s' is retrieved."""

    section: ClassVar[str] = "context."

    k: Count = 20
    """Transitions in one context."""
    metric: Metric = "l2"
    """Distance between states: Euclidean, or 1 - cosine similarity."""
    space: SpaceName = "raw"
    """What distances are measured on. raw: the columns as they are; standardised: each divided by
    its own spread, where columns have units, the default for logs of one's own; learned: features
    of a small network trained to predict the logged action and the change of state, where columns
    do not matter."""
    strategy: Strategy = "similar"
    """similar: the k nearest states; random: k uniform transitions; high_reward: of the nearest
    `candidates` states, the k with the highest reward."""
    candidates: Count = 60
    """How many of the nearest states high_reward chooses from."""
    exclude: Exclude = "none"
    """What a context leaves out. none: nothing, as the paper; self: a transition, from the context
    of its own s; episode: all of a transition's episode, from the contexts of its s and s'."""
    engine: Engine = "auto"
    """exact: equal to float64 brute force; accelerator: the same on JAX's devices; approximate:
    codes of four bits, with measured recall; auto: the accelerator where there is one, else exact
    unless the data is large."""
    recall_floor: Share = 0.999
    """Least recall that approximate search must show against an exact sample."""
    seed: Whole = 0
    """Seed of the random strategy, the approximate engine's clustering and the learned space."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == "high_reward" and self.candidates < self.k:
            raise UserError(
                f"{self.candidates} candidates cannot fill a context of {self.k}.",
                where="context.candidates",
                fix=f"Give at least {self.k}.",
            )
