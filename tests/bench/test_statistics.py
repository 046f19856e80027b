"""Statistics over runs × tasks, against arithmetic of another hand and against SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from icql.bench.statistics import (
    aggregate,
    fullest_block,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    resampled,
)
from icql.evaluation.scores import summary

RNG = np.random.default_rng(3)
OURS = {"a": [10.0, 12.0, 20.0], "b": [5.0, 5.0, 7.0, 9.0, 30.0]}
THEIRS = {"b": [5.0, 8.0], "a": [12.0, 11.0, 25.0], "c": [0.0]}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11, 40])
def test_the_interquartile_mean_is_scipys_trimmed_mean(n):
    scores = RNG.normal(size=n)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25))


def test_the_interquartile_mean_by_hand():
    assert interquartile_mean([100.0, 1.0, 2.0, -50.0]) == 1.5
    assert interquartile_mean([[1.0, 2.0, 3.0, 9.0], [0.0, 0.0, 4.0, 0.0]]).tolist() == [2.5, 0.0]
    with pytest.raises(ValueError, match="no scores"):
        interquartile_mean([])


def test_students_interval_is_scipys():
    scores = RNG.normal(50, 5, size=5)
    interval = stats.t.interval(0.95, 4, scores.mean(), stats.sem(scores))
    assert summary(scores)["ci95"] == pytest.approx(interval, rel=1e-4)


def test_seeds_are_drawn_anew_within_each_task_alone():
    drawn = resampled(OURS, 400, np.random.default_rng(0))
    assert [d.shape for d in drawn] == [(400, 3), (400, 5)]
    for sample, values in zip(drawn, OURS.values(), strict=True):
        assert set(sample.ravel()) == set(values)


def test_the_interval_of_an_aggregate_is_that_of_all_draws():
    """Two seeds of two tasks have 16 draws: their exact quantiles."""
    scores = {"a": [0.0, 10.0], "b": [100.0, 140.0]}
    every = [
        np.mean([*a, *b])
        for a in itertools.product(scores["a"], repeat=2)
        for b in itertools.product(scores["b"], repeat=2)
    ]
    found = aggregate(scores, lambda x: x.mean(-1), samples=20_000)
    assert found["value"] == np.mean([0.0, 10.0, 100.0, 140.0])
    assert found["low"] == min(every)
    assert found["high"] == max(every)
    ordered = np.sort(np.repeat(every, 1250))  # each draw is as likely as the next
    half = aggregate(scores, lambda x: x.mean(-1), samples=20_000, seed=1)
    assert (half["low"], half["high"]) == tuple(np.quantile(ordered, [0.025, 0.975]))


def test_the_interval_is_scipys_for_one_task():
    scores = RNG.normal(50, 10, size=30)
    ours = aggregate({"a": scores.tolist()}, samples=4000)
    theirs = stats.bootstrap(
        (scores,),
        lambda x, axis: stats.trim_mean(x, 0.25, axis=axis),
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours["value"] == pytest.approx(stats.trim_mean(scores, 0.25))
    assert abs(ours["low"] - theirs.low) < 0.1 * width
    assert abs(ours["high"] - theirs.high) < 0.1 * width


def test_one_seed_has_no_width():
    assert aggregate({"a": [1.0], "b": [3.0]}) == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_the_probability_of_improvement_is_mann_whitneys_u():
    found = probability_of_improvement(OURS, THEIRS)
    by_task = [
        stats.mannwhitneyu(OURS[t], THEIRS[t]).statistic / (len(OURS[t]) * len(THEIRS[t]))
        for t in ("a", "b")
    ]
    assert found["value"] == pytest.approx(np.mean(by_task))
    assert found["low"] <= found["value"] <= found["high"]
    back = probability_of_improvement(THEIRS, OURS)
    assert back["value"] == pytest.approx(1 - found["value"])
    sure = probability_of_improvement({"a": [5.0, 6.0]}, {"a": [1.0, 2.0]})
    assert sure == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert probability_of_improvement({"a": [1.0]}, {"a": [1.0]})["value"] == 0.5
    with pytest.raises(ValueError, match="in common"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})


def test_a_performance_profile_counts_runs_above():
    profile = performance_profile(OURS, [4.0, 5.0, 11.0, 30.0])
    by_hand = [(3 / 3 + 5 / 5) / 2, (3 / 3 + 3 / 5) / 2, (2 / 3 + 1 / 5) / 2, 0.0]
    assert profile.tolist() == pytest.approx(by_hand)


def test_the_fullest_block_has_the_most_entries_without_a_gap():
    """By hand, and against every subset of methods."""
    tasks_of = {"a": "xyz", "b": "xy", "c": "xy", "d": "z"}
    assert fullest_block(tasks_of) == (["a", "b", "c"], {"x", "y"})
    assert fullest_block({"a": "xy", "b": "x"}) == (["a", "b"], {"x"})  # of equals, more methods
    assert fullest_block({"a": "", "b": "x"}) == (["b"], {"x"})
    assert fullest_block({"a": ""}) == fullest_block({}) == ([], set())
    rng = np.random.default_rng(0)
    for _ in range(50):
        tasks_of = {m: {t for t in "stuvw" if rng.random() < 0.6} for m in "abcdef"}
        subsets = (c for n in range(1, 7) for c in itertools.combinations(tasks_of, n))
        most = max(len(c) * len(set.intersection(*(tasks_of[m] for m in c))) for c in subsets)
        methods, tasks = fullest_block(tasks_of)
        assert len(methods) * len(tasks) == most
        assert all(tasks <= tasks_of[m] for m in methods)
