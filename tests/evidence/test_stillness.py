"""A sensor that stops moving is told from one that is slow, as rarely wrongly as stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evidence.test_alarm import LENGTH, walks
from icql.errors import UserError
from icql.evidence.stillness import fit_stillness, runs


def slow(episodes: int, seed: int):
    """Walks whose third column moves now and then, and whose last one never does."""
    log, rng = walks(episodes, seed), np.random.default_rng(seed + 100)
    states = log.states.copy().reshape(episodes, LENGTH, 4)
    moves = rng.uniform(size=(episodes, LENGTH)) < 0.7
    moves[:, -1] = True
    moves[:, 0] = True
    at = np.maximum.accumulate(np.where(moves, np.arange(LENGTH), 0), axis=1)
    states[..., 2] = np.take_along_axis(states[..., 2], at, 1)
    states[..., 3] = 5.0
    return replace(log, states=states.reshape(-1, 4))


def test_how_long_columns_stay():
    states = np.float32([[1, 0], [1, 1], [1, 1], [2, 1], [2, 1]])
    assert runs(states).tolist() == [[1, 1], [2, 1], [3, 2], [1, 3], [2, 4]]
    first = np.array([True, False, True, False, False])
    assert runs(states, first).tolist() == [[1, 1], [2, 1], [1, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_new_episodes_are_called_stuck_as_rarely_as_stated(rate):
    still = fit_stillness(slow(1000, 0), rate=rate)
    assert still.rate == pytest.approx(rate)
    assert still.watched.tolist() == [True, True, True, False]
    assert still.limit[:2].tolist() == [1, 1]
    new = slow(1000, 1).states.reshape(1000, LENGTH, 4)
    wrong = np.mean([still(one).any() for one in new])
    assert wrong <= rate + 0.02
    assert wrong > 0  # the limit is not simply beyond everything


@pytest.mark.parametrize("column", [0, 2])
def test_a_sensor_stuck_at_a_typical_value_is_caught_and_named(column):
    still = fit_stillness(slow(300, 0))
    one = slow(1, 7).states.copy()
    one[3:, column] = one[3, column]
    found = still(one)
    assert found[3 + still.limit[column] :, column].all()
    assert not np.delete(found, column, axis=1).any()


def test_few_episodes_promise_less_and_say_so():
    still = fit_stillness(slow(9, 0), rate=0.05)
    assert still.rate == pytest.approx(3 * (1 - 9 / 10))
    with pytest.raises(UserError, match=r"must have shape \(T, 4\)"):
        still(np.zeros((3, 5)))
    with pytest.raises(UserError, match="between 0 and 1"):
        fit_stillness(slow(9, 0), rate=0)
