"""Intervals: episodes drawn again, and the doubt of the networks on top.

One replicate draws as many episodes as there are, with replacement, and takes the mean over them.
That is how much start states and logged returns leave open. How much the fit leaves open, the
networks say, each of which learned from its own draw of episodes: with S of them, whose estimates
spread by σ, every replicate is moved by σ t, t from Student's distribution with S − 1 degrees of
freedom. The interval holds the middle 95 % of the replicates.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from icql.judging.log import Doubles

DRAWS = 2000
LEVELS = (2.5, 97.5)
ROOM = 2**24  # counts that are held at once

Interval = tuple[float, float]


def draws(episodes: int, seed: int) -> Iterator[Doubles]:
    """How often each episode is drawn (b, E), block by block, `DRAWS` in all; by `seed`."""
    rng, left = np.random.default_rng([seed, 3]), DRAWS
    while left:
        block = min(left, max(1, ROOM // episodes))
        yield rng.multinomial(episodes, np.full(episodes, 1 / episodes), block).astype(np.float64)
        left -= block


def replicated_means(values: Doubles, seed: int) -> Doubles:
    """Means (DRAWS,) of values (E,) over drawn episodes."""
    return np.concatenate([counts @ values for counts in draws(len(values), seed)]) / len(values)


def interval(
    replicates: Doubles, seed: int, *, spread: float = 0.0, nets: int = 0, widened: float = 0.0
) -> Interval | None:
    """The middle 95 % of replicates, moved by the networks' `spread`; None if one is not finite.

    `widened` is added on both sides.
    """
    if spread and nets > 1:
        rng = np.random.default_rng([seed, 4])
        replicates = replicates + spread * rng.standard_t(nets - 1, len(replicates))
    if not np.isfinite(replicates).all():
        return None
    low, high = np.percentile(replicates, LEVELS)
    return float(low) - widened, float(high) + widened
