"""How rows are drawn: uniformly, or in proportion to weights from local comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from icql.settings.contexts import Metric, SpaceName
from icql.settings.fields import (
    AtLeastOne,
    BelowOne,
    Between,
    Count,
    NonNegative,
    Settings,
    Share,
    Whole,
)

DrawnRows = Literal["all", "policy"]
DrawBy = Literal["uniform", "advantage", "robust", "rank", "top", "episode"]


@dataclass(frozen=True)
class DrawSettings(Settings):
    """Which rows updates see how often (`icql.graph.comparison`)."""

    section: ClassVar[str] = "draw."

    by: DrawBy = "uniform"
    """uniform; advantage or robust: exp(β A) in units of all advantages or of their median; rank:
    by the share of similar states that fared worse; top: the best share of each place alone;
    episode: by the share of them whose whole episodes earned less."""
    rows: DrawnRows = "all"
    """Which rows of an update are drawn so: all, or only those that the policy learns from, while
    critics see all of the data alike (TD3+BC, ReBRAC, DMG)."""
    beta: NonNegative = 10.0
    """β, how sharp the weights are (advantage and robust: about 2; rank and episode: about 10)."""
    least: Whole = 0
    """Lower β until weights leave at least this many rows, by (Σ w)² / Σ w², or half of the rows
    where that is fewer: a policy of too few rows holds nothing. 0: never; `top` has its share."""
    share: Between = 0.2
    """The share that `top` keeps."""
    limit: AtLeastOne = 100.0
    """Largest weight by advantage before weights are normalised."""
    trace: Share = 0.97
    """λ of what is compared: 0 is the graph's own Q, 1 the logged outcome."""
    expectile: Between = 0.7
    """τ of the graph's values: towards 1 the best of the retrieved actions count."""
    discount: BelowOne = 0.99
    """γ of the graph's values."""
    compared: Whole = 64
    """Rows of other episodes around a state that its outcome is ranked among (all, if fewer);
    0: all of them, wherever they lie."""
    neighbours: Count = 16
    """Of these, the nearest that its value is taken over."""
    metric: Metric = "l2"
    """Distance between states: Euclidean, or 1 - cosine similarity."""
    space: SpaceName = "raw"
    """What distances are measured on, as context.space: columns as they are, each divided by its
    own spread, or learned features."""
    kernel: NonNegative = 0.0
    """Weigh retrieved rows by exp(−kernel · d² / mean d²) of their distance; 0: all alike."""
    ends: bool = True
    """Whether a logged end is an end. Where demonstrations merely stop (D4RL's kitchen marks every
    last step as terminal), switch it off: values then go on from what is retrieved there."""
