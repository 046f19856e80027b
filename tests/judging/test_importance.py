"""Importance sampling and doubly robust against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

import chain
from icql.judging.importance import LIMIT, Weighted, log_ratios, weigh
from icql.judging.log import Log

GAMMA = 0.9


def normal(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    log = Log.of(chain.log(episodes=12, limit=8))
    n = len(log.data)
    rows = {
        "policy": rng.uniform(-1, 1, (n, 1)),
        "mean": rng.uniform(-0.3, 0.5, (n, 1)),
        "log_std": rng.uniform(-1, 0, (n, 1)),
        "q": rng.normal(size=n),
        "v": rng.normal(size=n),
        "v_next": rng.normal(size=n),
    }
    ratios = log_ratios(log.data.actions, rows["policy"], rows["mean"], rows["log_std"])
    weighted = weigh(log, ratios, rows["q"], rows["v"], rows["v_next"], GAMMA)
    return log, rows, ratios, weighted


def loops(log: Log, rows: dict, counts: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Both estimates and the whole episodes' weights, as the equations say."""
    std, a = np.exp(rows["log_std"]), log.data.actions
    ratio = (normal(a, rows["policy"], std) / normal(a, rows["mean"], std)).prod(-1)
    longest = int(log.steps.max())
    importance, robust = 0.0, float(counts @ rows["v"][log.first] / counts.sum())
    final = np.zeros(len(log))
    for t in range(longest + 1):
        weights, paid, corrections = np.zeros(len(log)), np.zeros(len(log)), np.zeros(len(log))
        for e, (first, last) in enumerate(zip(log.first, log.last, strict=True)):
            so_far = ratio[first : min(first + t, last) + 1]
            weights[e] = min(so_far.prod(), LIMIT)
            i = first + t
            if i <= last:
                paid[e] = log.data.rewards[i]
                ahead = GAMMA * log.data.mask[i] * rows["v_next"][i]
                corrections[e] = log.data.rewards[i] + ahead - rows["q"][i]
            elif i == last + 1 and log.data.mask[last]:
                paid[e] = rows["v_next"][last]
        share = counts * weights / (counts * weights).sum()
        importance += GAMMA**t * float(share @ paid)
        robust += GAMMA**t * float(share @ corrections)
        final = weights
    return importance, robust, final


@pytest.mark.parametrize("counts", [np.ones(12), np.array([0, 3, 1, 0, 1, 2, 1, 0, 0, 2, 1, 1.0])])
def test_estimates_are_those_of_the_equations(case, counts):
    log, rows, _, weighted = case
    assert log.cut.any()
    importance, robust, final = loops(log, rows, counts)
    assert weighted.per_decision(counts[None])[0] == pytest.approx(importance)
    assert weighted.doubly_robust(counts[None])[0] == pytest.approx(robust)
    size = final.sum() ** 2 / (final**2).sum()
    assert weighted.effective_sample_size == pytest.approx(size)


def test_the_behaviour_itself_has_all_episodes_and_its_own_returns(case):
    log, rows, _, _ = case
    zero = np.zeros(len(log.data))
    same = log_ratios(log.data.actions, rows["mean"], rows["mean"], rows["log_std"])
    weighted: Weighted = weigh(log, same, zero, zero, zero, GAMMA)
    assert weighted.effective_sample_size == pytest.approx(len(log))
    logged = log.returns_to_go(GAMMA, 0.0)[log.first].mean()
    assert weighted.per_decision(np.ones((1, len(log))))[0] == pytest.approx(logged)


def test_exact_values_leave_nothing_to_correct():
    """Where Q obeys its equation on every row, weights do not matter: the estimate is V(s_0)."""
    log = Log.of(chain.log(episodes=10))
    returns = log.returns_to_go(GAMMA, 0.0)
    v_next = np.where(log.broken, 0.0, np.append(returns[1:], 0.0))
    ratios = np.random.default_rng(1).normal(size=len(returns))
    weighted = weigh(log, ratios, returns, returns, v_next, GAMMA)
    expected = returns[log.first].mean()
    assert weighted.doubly_robust(np.ones((1, 10)))[0] == pytest.approx(expected)


def test_whatever_q_says_the_behaviour_corrected_is_what_was_logged(case):
    """With all weights alike, errors on logged steps add up to the miss at the start."""
    log, rows, _, _ = case
    q, tails = rows["q"], rows["v_next"]
    v_next = np.where(log.broken, tails, np.append(q[1:], 0.0))
    alike = weigh(log, np.zeros(len(q)), q, q, v_next, GAMMA)
    logged = log.returns_to_go(GAMMA, tails)[log.first].mean()
    assert alike.doubly_robust(np.ones((1, len(log))))[0] == pytest.approx(logged)
    ratios = np.random.default_rng(1).normal(size=len(q))
    assert weigh(log, ratios, q, q, v_next, GAMMA).corrected.mean() == pytest.approx(logged)


def test_weights_are_clipped(case):
    log, _, _, _ = case
    zero = np.zeros(len(log.data))
    ratios = zero.copy()
    ratios[log.first[0]] = 50.0
    weighted = weigh(log, ratios, zero, zero, zero, GAMMA)
    shares = weighted.weights[:, -1] / weighted.weights[:, -1].sum()
    assert shares[0] == pytest.approx(LIMIT / (LIMIT + len(log) - 1))


def test_far_policies_leave_one_episode_and_no_nan(case):
    log, rows, _, _ = case
    away = log_ratios(log.data.actions, rows["mean"] + 50, rows["mean"], rows["log_std"])
    zero = np.zeros(len(log.data))
    weighted = weigh(log, away, zero, zero, zero, GAMMA)
    assert weighted.effective_sample_size < 2
    assert np.isfinite(weighted.per_decision(np.ones((1, len(log)))))
