"""The verdict: one rule on the interval of a difference, and reasons not to believe it.

    better            the 95 % interval of the difference lies above 0
    worse             it lies below 0
    not shown         0 is in it, or a second method with enough episodes says the opposite
    cannot be told    a veto: the log cannot answer, or the fit did not work

The difference is that of fitted Q evaluation to the discounted logged returns of the same episodes,
or to another policy's, evaluated by the same networks on the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from icql.judging.bootstrap import Interval

Verdict = Literal["better", "not shown", "worse", "cannot be told"]

LEAST_EPISODES = 10  # fewer say little about the next ones
MOST_OUTSIDE = 0.5  # share of held-out targets whose value had to be held in the log's range
MOST_FAR = 0.5  # share of states at which nobody tried what the policy does
LEAST_SAMPLE = 20.0  # effective sample size below which importance sampling is not listened to


@dataclass(frozen=True)
class Evidence:
    """What the rule looks at."""

    episodes: int
    difference: float | None
    interval: Interval | None  # of the difference
    estimates: tuple[float, ...]  # of every network
    possible: Interval  # values that rewards like the log's can add up to
    explained: float | None  # share of the variance of held-out targets that Q explains
    outside: float | None  # share of these targets whose value is beyond all that was logged
    moved: float  # how far the estimate moved in the last quarter of the updates
    far: float | None  # share of states at which the policy is far from all logged actions
    others: Mapping[str, Interval] = field(default_factory=dict)  # of methods to be listened to


def vetoes(e: Evidence) -> list[str]:
    """Why nothing can be told, if so."""
    found = []
    low, high = e.possible
    if e.episodes < LEAST_EPISODES:
        count = "a single episode" if e.episodes == 1 else f"{e.episodes} episodes"
        found.append(f"the log has {count}; an interval needs at least {LEAST_EPISODES}.")
    if not all(abs(value) < float("inf") for value in e.estimates):  # NaN is not, either
        found.append("fitted Q evaluation diverged: a value is not finite.")
    elif not all(low <= value <= high for value in e.estimates):
        worst = max(e.estimates, key=lambda value: max(low - value, value - high))
        found.append(
            f"fitted Q evaluation diverged: a network says {worst:.4g}, but rewards like the "
            f"log's add up to {low:.4g} at least and {high:.4g} at most."
        )
    elif e.interval is not None and abs(e.moved) > (e.interval[1] - e.interval[0]) / 2:
        found.append(
            f"the estimate still moves: by {e.moved:+.4g} in the last quarter of the updates. "
            "Give more --updates."
        )
    if e.explained is not None and not e.explained > 0:
        found.append(
            "on held-out episodes Q predicts its targets no better than their mean "
            f"(explained variance {e.explained:.2f})."
        )
    if e.outside is not None and e.outside > MOST_OUTSIDE:
        found.append(
            f"fitted Q evaluation runs away: after {100 * e.outside:.0f} % of held-out steps it "
            "says more or less than ever followed in the log "
            f"(more than {100 * MOST_OUTSIDE:.0f} %)."
        )
    if e.far is not None and e.far > MOST_FAR:
        found.append(
            f"at {100 * e.far:.0f} % of states the policy's action is far from all that were "
            f"logged in similar states (more than {100 * MOST_FAR:.0f} %): nobody tried it."
        )
    return found


def decide(e: Evidence, reference: str) -> tuple[Verdict, list[str]]:
    """The verdict and why; `reference` is what the policy is compared with, in words."""
    if (reasons := vetoes(e)) or e.interval is None or e.difference is None:
        return "cannot be told", reasons or ["there is no interval."]
    low, high = e.interval
    said = f"the difference to {reference} is {e.difference:+.4g}, 95 % interval {low:+.4g} to "
    reasons = [f"{said}{high:+.4g}."]
    if low <= 0 <= high:
        return "not shown", [*reasons, "0 is in it."]
    verdict: Verdict = "better" if low > 0 else "worse"
    for name, (least, most) in e.others.items():
        if (most < 0) if verdict == "better" else (least > 0):
            opposite = f"{name} says the opposite: {least:+.4g} to {most:+.4g}."
            return "not shown", [*reasons, opposite]
    return verdict, reasons
