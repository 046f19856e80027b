"""Weights from local comparison: how a logged action fared among those taken in similar states.

What is compared is the λ-return over the graph's values,

    L_i = r_i + γ m_i [(1 − λ) V(s'_i) + λ L_{i+1}],

the graph's own Q where λ = 0 and the logged outcome where λ = 1. A small λ believes the graph,
which joins pieces of different episodes; a large one believes what really followed.

* `advantage`: exp(β (L − V) / σ), σ the spread of all advantages: where few large steps decide;
* `robust`: the same with σ from the median absolute advantage: where outliers set the spread;
* `rank`: exp(β (rank − 1)), rank the share of Ω_s with a lower L: where scales differ by place;
* `top`: 1 where the rank is in the top share, else 0: where the best of each place is enough;
* `episode`: the same as `rank`, of what whole episodes earned instead of L: where steps are noisy.

An advantage asks how much better, a rank only how often: it needs no scale, no outlier moves it.
With `compared` 0 it is the rank among all rows of other episodes, wherever they lie.
What followed a single step is for the most part what its noise happened to do, and who follows the
luckiest of them does what nobody did; an episode is judged by all that it earned, so that what is
followed was somebody's behaviour from beginning to end.
Where few rows would be left, `draw.least` lowers β.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError
from icql.settings.draw import DrawSettings

Doubles = NDArray[np.float64]
Table = NDArray[np.integer]

BLOCK = 2**16  # rows whose neighbourhoods are compared at once
TO_SIGMA = 1.4826  # a normal distribution's σ over its median absolute deviation


def lambda_returns(
    rewards: Doubles,
    mask: Doubles,
    v_next: Doubles,
    broken: NDArray[np.bool_],
    *,
    discount: float,
    trace: float,
) -> Doubles:
    """L (N,) of rows in time order; after a row that is `broken` off its run ends, with V(s')."""
    ahead = discount * mask
    returns = rewards + ahead * v_next
    for i in range(len(returns) - 2, -1, -1):
        if not broken[i]:
            returns[i] += ahead[i] * trace * (returns[i + 1] - v_next[i])
    return returns


def episode_outcomes(
    rewards: Doubles, mask: NDArray[np.floating], episode: NDArray[np.integer]
) -> Doubles:
    """What the whole episode of each row earned, undiscounted (N,).

    Where nothing in the log ever ends, an episode's length says when somebody stopped writing, not
    how it fared: then it is what the episode earned per step.
    """
    _, number = np.unique(episode, return_inverse=True)
    earned = np.bincount(number, weights=rewards).astype(np.float64)
    if mask.all():
        earned /= np.bincount(number)
    return earned[number]


def ranks(values: Doubles, context: Table) -> Doubles:
    """The share of each row's context with a lower value; equal ones count half, holes nothing.

    A row with nothing around it stands in the middle: ½.
    """
    shares = np.full(len(values), 0.5)
    for start in range(0, len(values), BLOCK):
        rows = slice(start, start + BLOCK)
        near = context[rows]
        present = near >= 0
        others, own = values[np.maximum(near, 0)], values[rows, None]
        worse = np.where(present, (others < own) + 0.5 * (others == own), 0).sum(1)
        count = present.sum(1)
        shares[rows] = np.where(count, worse / np.maximum(count, 1), 0.5)
    return shares


def ranks_among_all(values: Doubles, episode: NDArray[np.integer]) -> Doubles:
    """As `ranks`, where the context of a row is every row of other episodes."""
    worse = _not_above(values, values)
    others = np.full(len(values), float(len(values)))
    for own in np.split(np.argsort(episode, kind="stable"), _starts(np.sort(episode))):
        worse[own] -= _not_above(values[own], values[own])
        others[own] -= len(own)
    return np.where(others > 0, worse / np.maximum(others, 1), 0.5)


def _not_above(values: Doubles, among: Doubles) -> Doubles:
    """How many are below each value, and half of those that equal it."""
    ordered = np.sort(among)
    below, up_to = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (below + up_to) / 2


def _starts(ordered: NDArray[np.integer]) -> NDArray[np.integer]:
    """Where the second and every later group of equal numbers begins."""
    return np.flatnonzero(np.diff(ordered)) + 1


def row_weights(
    returns: Doubles,
    values: Doubles,
    context: Table,
    episode: NDArray[np.integer],
    settings: DrawSettings,
) -> Doubles:
    """The weight of each row, mean 1, as the settings say (the table at the top of this file).

    Args:
        returns: (N,) what is compared: the λ-returns L, or what whole episodes earned.
        values: (N,) V(s) of each row's own state.
        context: (N, k) the rows around it; holes are negative.
        episode: (N,) whose row it is: where `settings.compared` is 0, all rows of others count.
        settings: which weights, and how sharp.

    Raises:
        UserError: if all weights vanish, or what they are made of is not finite.
    """
    for name, numbers in (("returns", returns), ("values", values)):
        if not np.isfinite(numbers).all():
            raise UserError("the graph's values are not finite.", where=f"draw.by, {name}")
    match settings.by:
        case "uniform":
            weights = np.ones(len(returns))
        case "advantage" | "robust":
            advantage = returns - values
            typical = float(np.median(np.abs(advantage))) * TO_SIGMA
            unit = float(advantage.std()) if settings.by == "advantage" else typical
            # constant rewards: no action is better than another
            scaled = advantage / unit if unit > 0 else np.zeros(len(advantage))
            weights = np.exp(np.minimum(settings.beta * scaled, np.log(settings.limit)))
        case "rank" | "episode":
            share = _shares(returns, context, episode, settings)
            weights = np.exp(settings.beta * (share - 1))
        case "top":
            share = _shares(returns, context, episode, settings)
            weights = (share >= 1 - settings.share).astype(np.float64)
            if not weights.any():  # nobody is better than the others: all are as good
                weights = np.ones(len(returns))
    if settings.by != "top":
        weights = evened(weights, settings.least)
    total = float(weights.sum())
    if not total > 0:
        raise UserError(
            "all weights vanish.",
            where="draw.by",
            fix="Take a smaller draw.beta, or draw.by rank.",
        )
    return weights * (len(weights) / total)


def _shares(
    returns: Doubles, context: Table, episode: NDArray[np.integer], settings: DrawSettings
) -> Doubles:
    """The rank of each row among those it is compared with."""
    return ranks(returns, context) if settings.compared else ranks_among_all(returns, episode)


def evened(weights: Doubles, least: int) -> Doubles:
    """Weights ** c, c ≤ 1 the largest that leaves `least` rows, or half of them if that is fewer.

    Of exponential weights c β is the β that would have left as many.
    """
    goal = min(least / len(weights), 0.5)
    if not weights.any() or effective_share(weights) >= goal:
        return weights
    c, too_large = 0.0, 1.0  # c → 0 makes all alike
    while too_large - c > 1e-6:
        middle = (c + too_large) / 2
        enough = effective_share(weights**middle) >= goal
        c, too_large = (middle, too_large) if enough else (c, middle)
    return weights**c


def effective_share(weights: Doubles) -> float:
    """(Σ w)² / (N Σ w²): the share of the rows that the weights leave; 1 where all are equal."""
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))
