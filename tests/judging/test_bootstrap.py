"""Intervals over episodes."""

from __future__ import annotations

import numpy as np
import pytest

from icql.judging import bootstrap
from icql.judging.bootstrap import draws, interval, replicated_means

VALUES = np.random.default_rng(0).normal(3.0, 2.0, 200)


def test_the_same_seed_gives_the_same_interval():
    one = interval(replicated_means(VALUES, 0), 0, spread=0.3, nets=3)
    assert one == interval(replicated_means(VALUES, 0), 0, spread=0.3, nets=3)
    assert one != interval(replicated_means(VALUES, 1), 1, spread=0.3, nets=3)


def test_it_is_that_of_the_mean():
    low, high = interval(replicated_means(VALUES, 0), 0)
    error = VALUES.std() / np.sqrt(len(VALUES))
    assert low == pytest.approx(VALUES.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(VALUES.mean() + 1.96 * error, abs=0.15 * error)


def test_networks_that_disagree_widen_it_as_students_t_says():
    """Alike episodes leave only the networks' doubt: 4.30 σ on each side for three of them."""
    low, high = interval(replicated_means(np.full(20, 5.0), 0), 0, spread=1.0, nets=3)
    assert (high - low) / 2 == pytest.approx(4.303, rel=0.15)
    low, high = interval(replicated_means(np.full(20, 5.0), 0), 0, widened=0.5)
    assert (low, high) == pytest.approx((4.5, 5.5))


def test_what_is_not_finite_has_no_interval():
    assert interval(np.array([1.0, np.nan]), 0) is None


def test_blocks_do_not_change_the_draws(monkeypatch):
    whole = np.concatenate(list(draws(50, 0)))
    monkeypatch.setattr(bootstrap, "ROOM", 700)
    parts = list(draws(50, 0))
    assert len(parts) > 10
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (whole.sum(1) == 50).all()
