"""Statistics of scores."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from icql.evaluation import summary


@pytest.mark.parametrize("n", [2, 3, 5, 10, 31, 32, 100, 1000])
def test_summary_against_scipy(n: int) -> None:
    scores = np.random.default_rng(n).normal(60, 10, n)
    found = summary(scores)
    low, high = scipy.stats.t.interval(0.95, n - 1, scores.mean(), scipy.stats.sem(scores))
    assert found["ci95"] == pytest.approx([low, high], abs=2e-3)
    assert found["mean"] == pytest.approx(scores.mean())
    assert found["std"] == pytest.approx(scores.std())
    assert found["iqm"] == pytest.approx(scipy.stats.trim_mean(scores, 0.25))
    assert found["n"] == n


def test_summary_of_one_seed_has_no_interval() -> None:
    assert summary([7.0]) == {"mean": 7.0, "std": 0.0, "iqm": 7.0, "ci95": None, "n": 1}


@pytest.mark.parametrize("scores", [[], [1.0, float("nan")]])
def test_summary_refuses_what_has_no_mean(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="finite and at least one"):
        summary(scores)
