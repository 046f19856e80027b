"""Weights from local comparison, against sums written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from icql.errors import UserError
from icql.graph.comparison import (
    effective_share,
    episode_outcomes,
    lambda_returns,
    ranks,
    ranks_among_all,
    row_weights,
)
from icql.settings.draw import DrawSettings

R = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
MASK = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
BROKEN = np.array([False, False, True, False, True])
V_NEXT = np.array([10.0, 20.0, 30.0, 40.0, 50.0])


def test_trace_zero_is_one_step_and_one_is_the_logged_outcome():
    one_step = lambda_returns(R, MASK, V_NEXT, BROKEN, discount=0.5, trace=0.0)
    np.testing.assert_allclose(one_step, R + 0.5 * MASK * V_NEXT)
    logged = lambda_returns(R, MASK, V_NEXT, BROKEN, discount=0.5, trace=1.0)
    cut = 5 + 0.5 * 50  # a run that is broken off goes on with V(s')
    np.testing.assert_allclose(
        logged, [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3, 4 + 0.5 * cut, cut]
    )


def test_between_them_it_is_the_sum_of_decaying_steps():
    gamma, trace = 0.9, 0.7
    found = lambda_returns(R, MASK, V_NEXT, BROKEN, discount=gamma, trace=trace)
    # generalised advantages: Σ (γλ)^t δ, on top of the values that the steps start from
    v = np.array([7.0, 10.0, 20.0, 8.0, 40.0])  # V of the own state: V_NEXT of the row before
    delta = R + gamma * MASK * V_NEXT - v
    expected = [delta[0] + gamma * trace * (delta[1] + gamma * trace * delta[2]) + v[0]]
    np.testing.assert_allclose(found[:1], expected)


def test_ranks_count_equals_half_and_holes_not_at_all():
    values = np.array([1.0, 2.0, 2.0, 5.0])
    context = np.array([[1, 2, 3], [0, 2, 3], [0, -1, -1], [-1, -1, -1]])
    np.testing.assert_allclose(ranks(values, context), [0, 1.5 / 3, 1, 0.5])


def test_what_whole_episodes_earned_whatever_their_numbers_and_order():
    r, episode = np.array([1.0, 2, 4, 8, 16]), np.array([7, 7, 3, 7, 3])
    earned = episode_outcomes(r, np.array([1.0, 1, 1, 0, 1]), episode)
    np.testing.assert_array_equal(earned, [11, 11, 20, 11, 20])


def test_where_nothing_ends_an_episode_is_worth_what_it_earned_per_step():
    r, episode = np.array([1.0, 2, 4, 8, 16]), np.array([7, 7, 3, 7, 3])
    earned = episode_outcomes(r, np.ones(5), episode)
    np.testing.assert_allclose(earned, [11 / 3, 11 / 3, 10, 11 / 3, 10])


def test_ranks_among_all_rows_of_other_episodes():
    rng = np.random.default_rng(0)
    values, episode = (
        rng.integers(0, 9, 60).astype(float),
        rng.permutation(np.repeat(range(7), 9)[:60]),
    )
    others = np.array([np.flatnonzero(episode != e) for e in episode], dtype=object)
    expected = [
        np.mean((values[rows] < own) + 0.5 * (values[rows] == own))
        for own, rows in zip(values, others, strict=True)
    ]
    np.testing.assert_allclose(ranks_among_all(values, episode), expected)
    np.testing.assert_array_equal(ranks_among_all(values, np.zeros(60, int)), 0.5)


def test_ranks_do_not_depend_on_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    values, context = rng.normal(size=50), rng.integers(-1, 50, (50, 7))
    whole = ranks(values, context)
    monkeypatch.setattr("icql.graph.comparison.BLOCK", 8)
    np.testing.assert_array_equal(ranks(values, context), whole)


CONTEXT = np.array([[1, 2], [0, 2], [0, 1]])
EPISODE = np.arange(3)
RETURNS, VALUES = np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (DrawSettings(), [1, 1, 1]),
        (DrawSettings(by="rank", beta=2.0), np.exp([-2.0, -1.0, 0.0])),
        (DrawSettings(by="episode", beta=2.0), np.exp([-2.0, -1.0, 0.0])),
        (DrawSettings(by="top", share=0.4), [0, 0, 1]),
        (DrawSettings(by="top", share=0.6), [0, 1, 1]),
        (
            DrawSettings(by="advantage", beta=1.0),
            np.exp(np.array([-1.0, 0, 4]) / np.std([-1.0, 0, 4])),
        ),
        (DrawSettings(by="robust", beta=1.0), np.exp(np.array([-1.0, 0, 4]) / 1.4826)),
        (DrawSettings(by="advantage", beta=50.0, limit=7.0), [None, 1, 7]),
    ],
    ids=["uniform", "rank", "episode", "top", "top half", "advantage", "robust", "limit"],
)
def test_weights(settings, expected):
    found = row_weights(RETURNS, VALUES, CONTEXT, EPISODE, settings)
    assert found.mean() == pytest.approx(1)
    known = [i for i, value in enumerate(expected) if value is not None]
    ratio = np.array([expected[i] for i in known], float)
    np.testing.assert_allclose(found[known] / found[2], ratio / ratio[-1], rtol=1e-12)


@pytest.mark.parametrize("by", ["advantage", "robust", "rank", "top", "episode"])
def test_constant_rewards_leave_all_rows_alike(by):
    same = np.full(3, 2.0)
    np.testing.assert_allclose(row_weights(same, same, CONTEXT, EPISODE, DrawSettings(by=by)), 1)


def test_weights_that_vanish_are_refused():
    with pytest.raises(UserError, match=r"draw\.by: all weights vanish"):
        row_weights(
            np.array([-1e9, -1e9, -1e9]),
            np.zeros(3),
            CONTEXT,
            EPISODE,
            DrawSettings(by="robust", beta=1e9),
        )
    with pytest.raises(UserError, match="not finite"):
        row_weights(
            np.array([np.nan, 0, 0]), VALUES, CONTEXT, EPISODE, DrawSettings(by="advantage")
        )


@pytest.mark.parametrize("by", ["advantage", "robust", "rank", "episode"])
@pytest.mark.parametrize("least", [300, 10_000])
def test_a_lower_beta_leaves_the_least_rows(by, least):
    """As many as asked for, or half of all; by the same rule with a smaller β."""
    rng = np.random.default_rng(0)
    returns, values = rng.normal(size=1000), np.zeros(1000)
    context, alone = rng.integers(0, 1000, (1000, 20)), np.arange(1000)
    sharp = row_weights(returns, values, context, alone, DrawSettings(by=by, beta=10.0, limit=1e30))
    wide = DrawSettings(by=by, beta=10.0, limit=1e30, least=least)
    found = row_weights(returns, values, context, alone, wide)
    assert effective_share(sharp) < 0.25
    assert effective_share(found) == pytest.approx(min(least / 1000, 0.5), abs=1e-3)
    lower = np.polyfit(np.log(sharp), np.log(found), 1)[0] * 10.0
    same = DrawSettings(by=by, beta=lower, limit=1e30)
    np.testing.assert_allclose(found, row_weights(returns, values, context, alone, same), rtol=1e-6)


def test_weights_that_leave_enough_rows_stay_as_they_are():
    kept = row_weights(
        RETURNS, VALUES, CONTEXT, EPISODE, DrawSettings(by="rank", beta=0.5, least=1)
    )
    np.testing.assert_array_equal(
        kept, row_weights(RETURNS, VALUES, CONTEXT, EPISODE, DrawSettings(by="rank", beta=0.5))
    )
    top = DrawSettings(by="top", share=0.4, least=3)  # its share is what was asked for
    np.testing.assert_array_equal(row_weights(RETURNS, VALUES, CONTEXT, EPISODE, top), [0, 0, 3])


def test_effective_share():
    assert effective_share(np.ones(10)) == pytest.approx(1)
    assert effective_share(np.array([1.0, 0, 0, 0])) == pytest.approx(0.25)
