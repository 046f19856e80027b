"""Losses against independent arithmetic."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from icql.losses import advantage_weights, bellman_target, expectile
from icql.nn.policies import GaussianPolicy


def test_expectile_by_hand():
    u = jnp.array([-2.0, 0.0, 3.0])
    np.testing.assert_allclose(expectile(u, 0.9), [0.1 * 4, 0.0, 0.9 * 9], rtol=1e-6)
    np.testing.assert_allclose(expectile(u, 0.5), 0.5 * np.asarray(u) ** 2, rtol=1e-6)


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.9])
def test_expectile_is_minimised_by_the_expectile(tau):
    """The minimiser m satisfies τ E(x−m)+ = (1−τ) E(m−x)+."""
    x = np.random.default_rng(0).normal(size=2000)
    grid = np.linspace(-2, 2, 4001)
    best = grid[np.argmin([float(expectile(jnp.asarray(x - m), tau).sum()) for m in grid])]
    above, below = np.clip(x - best, 0, None).mean(), np.clip(best - x, 0, None).mean()
    assert tau * above == pytest.approx((1 - tau) * below, rel=0.01)


def test_advantage_weights_are_clipped_and_never_overflow():
    weights = advantage_weights(jnp.array([-1.0, 0.0, 1.0, 1e6]), 2.0, 100.0)
    expected = [math.exp(-2), 1.0, math.exp(2), 100.0]
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_bellman_target_drops_the_bootstrap_at_terminals():
    y = bellman_target(jnp.array([1.0, 1.0]), jnp.array([1.0, 0.0]), jnp.array([10.0, 10.0]), 0.9)
    np.testing.assert_allclose(y, [10.0, 1.0], rtol=1e-6)


def test_gaussian_log_prob_against_the_density():
    import jax

    policy = GaussianPolicy(3, 2, (8,), key=jax.random.key(0))
    s, a = jnp.ones((4, 3)), jnp.full((4, 2), 0.3)
    mean, std = np.asarray(policy(s)), np.exp(np.asarray(policy.log_std))
    density = np.exp(-0.5 * ((0.3 - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(policy.log_prob(s, a), np.log(density).sum(-1), rtol=1e-5)
