"""For how long sensors may stand still: counted by hand, and as rarely exceeded as stated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evidence.test_sensors import log_of
from icql.evidence.habits import STATES
from icql.evidence.still_limits import fit_still_limits
from icql.evidence.stillness import FOREVER, runs

STEPS = 60


def resting(episodes: int, seed: int) -> np.ndarray:
    """Columns that move at every, at every second and at every fifth state, by chance."""
    rng = np.random.default_rng(seed)
    moves = rng.uniform(size=(episodes, STEPS, 3)) < (1.0, 0.5, 0.2)
    moves[:, [0, -1]] = True
    return np.cumsum(moves * rng.normal(size=moves.shape), axis=1).astype(np.float32)


def by_hand(episodes: np.ndarray, rate: float) -> list[float]:
    """The limits, by loops."""
    longest = [
        [max(len(list(same)) for _, same in itertools.groupby(column)) for column in one.T]
        for one in episodes
    ]
    shares = sorted(
        max(
            (mine + STATES) / (max(other[c] for other in longest if other is not one) + STATES)
            for c, mine in enumerate(one)
        )
        for one in longest
    )
    place = next(n for n in range(1, len(shares) + 2) if n >= (len(shares) + 1) * (1 - rate) - 1e-9)
    stretch = shares[min(place, len(shares)) - 1]
    most = [max(one[c] for one in longest) for c in range(len(longest[0]))]
    return [max((stretch * (n + STATES) - STATES) // 1, 1) for n in most]


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("episodes", [3, 20, 41])
def test_limits_are_those_counted_by_hand(episodes, rate):
    states = resting(episodes, episodes)
    found = fit_still_limits(log_of(states), rate=rate)
    assert found.states.tolist() == by_hand(states, rate)
    assert found.rate == max(rate, 1 / (episodes + 1))


@pytest.mark.parametrize("episodes", [12, 60])
def test_new_episodes_stand_still_for_longer_as_rarely_as_stated(episodes):
    """Over many logs; less often where whole numbers of states leave nothing in between."""
    beyond, rate = [], 0.1
    for seed in range(120):
        states = resting(episodes + 40, 1000 + seed)
        limits = fit_still_limits(log_of(states[40:]), rate=rate).states
        beyond.append(np.mean([(runs(one) > limits).any() for one in states[:40]]))
    assert 0.1 * rate < np.mean(beyond) < 1.25 * rate


def test_of_what_rested_through_an_episode_nothing_is_said():
    states = resting(10, 0)
    states[3, :, 1] = 7.0
    found = fit_still_limits(log_of(states), rate=0.1)
    assert found.states[1] == FOREVER
    assert found.as_json()["states"][1] is None
    others = fit_still_limits(log_of(states[..., [0, 2]]), rate=0.1)
    assert found.states[[0, 2]].tolist() == others.states.tolist()
    states[...] = 7.0
    assert fit_still_limits(log_of(states), rate=0.1).as_json()["states"] == [None] * 3
