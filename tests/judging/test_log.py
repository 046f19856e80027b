"""Episodes of a log: order, ends, returns, the split."""

from __future__ import annotations

import numpy as np
import pytest

import chain
from icql.judging.log import Log


def test_shuffled_rows_come_back_in_time_order():
    data = chain.log(episodes=20)
    shuffled = data.subset(np.random.default_rng(0).permutation(len(data)))
    log, ordered = Log.of(shuffled), Log.of(data)
    np.testing.assert_array_equal(log.data.states, ordered.data.states)
    np.testing.assert_array_equal(log.first, ordered.first)
    assert (log.data.step[log.first] == 0).all()


def test_returns_are_discounted_sums_with_tails_where_cut():
    log = Log.of(chain.log(episodes=30, mean=-0.2, limit=15))
    assert 0 < log.cut.sum() < len(log)
    tails = np.arange(len(log.data)) * 0.01
    found = log.returns_to_go(0.9, tails)[log.first]
    for e, (first, last) in enumerate(zip(log.first, log.last, strict=True)):
        rewards = log.data.rewards[first : last + 1].astype(np.float64)
        expected = (rewards * 0.9 ** np.arange(len(rewards))).sum()
        if log.data.mask[last]:
            expected += 0.9 ** len(rewards) * tails[last]
        assert found[e] == pytest.approx(expected)


def test_a_missing_row_cuts_its_episode():
    data = chain.log(episodes=5, mean=-0.5)
    whole = Log.of(data)
    longest = int(np.argmax(whole.steps))
    hole = int(whole.first[longest]) + 2
    log = Log.of(data.subset(np.delete(np.arange(len(data)), hole)))
    assert len(log) == len(whole)
    assert log.steps[longest] == 2
    assert log.cut[longest]


def test_the_split_is_by_episode_and_by_seed():
    log = Log.of(chain.log(episodes=30))
    fitted, held = log.split(0.2, seed=0)
    assert len(held) == 6
    assert sorted([*fitted, *held]) == list(range(30))
    np.testing.assert_array_equal(held, log.split(0.2, seed=0)[1])
    assert not np.array_equal(held, log.split(0.2, seed=1)[1])
    assert len(np.intersect1d(log.rows_of(fitted), log.rows_of(held))) == 0


def test_possible_values_contain_those_of_an_early_end():
    log = Log.of(chain.log(episodes=30))
    low, high = log.possible(0.9)
    assert high == pytest.approx(float(log.data.rewards.max()) / 0.1)
    assert low == pytest.approx(float(log.data.rewards.min()) / 0.1)
