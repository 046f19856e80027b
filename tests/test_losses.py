"""Losses against hand-worked numbers and NumPy/SciPy."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate
from scipy.special import logsumexp

from icql.algos.base import Spec
from icql.algos.presets import resolve_preset
from icql.algos.registry import make_algorithm
from icql.losses import (
    advantage_weights,
    bellman_target,
    cloning_actor_loss,
    conservative_gap,
    dmg_actor_loss,
    expectile,
    mild_value,
    normalised_q,
    rebrac_value,
    smoothed_action,
    td3bc_actor_loss,
)
from icql.nn.policies import GaussianPolicy
from icql.settings.algorithms import RankSettings
from icql.settings.shared import PolicySettings

RNG = np.random.default_rng(0)


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
    policy = GaussianPolicy(3, 2, PolicySettings(hidden=(8,)), key=jax.random.key(0))
    s, a = jnp.ones((4, 3)), jnp.full((4, 2), 0.3)
    mean, std = np.asarray(policy(s)), np.exp(np.asarray(policy.log_std))
    density = np.exp(-0.5 * ((0.3 - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(policy.log_prob(s, a), np.log(density).sum(-1), rtol=1e-5)


def test_smoothing_clips_the_noise_first_and_the_action_then():
    a = jnp.array([[0.0, 0.9, -0.9, -0.9]])
    noise = jnp.array([[1.0, 10.0, -1.0, 10.0]])
    # 0.2 · noise = 0.2, 2, −0.2, 2; clipped to ±0.5; the sums 0.2, 1.4, −1.1, −0.4 clipped to ±1
    expected = [[0.2, 1.0, -1.0, -0.4]]
    np.testing.assert_allclose(smoothed_action(a, noise, 0.2, 0.5), expected, rtol=1e-6)


def test_normalised_q_has_mean_size_one_and_a_constant_scale():
    q = jnp.array([2.0, -4.0, 6.0])
    np.testing.assert_allclose(normalised_q(q), [0.5, -1.0, 1.5], rtol=1e-6)
    # the scale 4 is held constant: the gradient of the sum is 1/4 everywhere
    np.testing.assert_allclose(jax.grad(lambda q: normalised_q(q).sum())(q), 0.25, rtol=1e-6)
    assert np.isfinite(normalised_q(jnp.zeros(3))).all()  # a local critic without rewards


def test_q_in_units_of_its_spread_does_not_feel_what_is_added_to_all():
    q = jnp.array([1.0, -2.0, 4.0])
    np.testing.assert_allclose(normalised_q(q, "spread"), q / np.sqrt(6.0), rtol=1e-6)
    gradient = jax.grad(lambda q: normalised_q(q, "spread")[0])
    np.testing.assert_allclose(gradient(q), [1 / np.sqrt(6.0), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(gradient(q + 50), gradient(q), rtol=1e-4)
    assert np.isfinite(normalised_q(jnp.ones(3), "spread")).all()


@pytest.mark.parametrize(
    ("form", "weight", "by_hand"),
    [
        # Q = 2, 4 with mean size 3; squared differences 1 + 4 and 0 + 1
        ("original", 2.5, -2.5 * 1.0 + (1 + 4 + 0 + 1) / 4),
        ("retuned", 0.4, -1.0 + 0.4 * (5 + 1) / 2),
        ("paper", 2.5, -3.0 + 2.5 * (5 + 1) / 2),
    ],
)
def test_forms_of_td3bc_by_hand(form, weight, by_hand):
    q, difference = jnp.array([2.0, 4.0]), jnp.array([[1.0, -2.0], [0.0, 1.0]])
    assert td3bc_actor_loss(q, difference, weight, form) == pytest.approx(by_hand, rel=1e-6)


def test_alpha_means_the_opposite_in_the_two_readings():
    """More α: less cloning in the original, more cloning in the paper's formula."""
    q, difference = jnp.array([1.0, 1.0]), jnp.array([[0.5], [0.5]])

    def pulls(form, alpha):  # on Q and on the action's distance
        return jax.grad(lambda q, d: td3bc_actor_loss(q, d, alpha, form), argnums=(0, 1))(
            q, difference
        )

    for form, stronger in (("original", 0), ("paper", 1)):
        weak, strong = pulls(form, 1.0), pulls(form, 2.0)
        np.testing.assert_allclose(strong[stronger], 2 * np.asarray(weak[stronger]), rtol=1e-6)
        np.testing.assert_allclose(strong[1 - stronger], weak[1 - stronger], rtol=1e-6)


def test_rebrac_by_hand():
    difference = jnp.array([[1.0, 2.0], [0.5, 0.0]])
    value = rebrac_value(jnp.array([3.0, 1.0]), difference, 0.1)
    np.testing.assert_allclose(value, [3 - 0.5, 1 - 0.025], rtol=1e-6)
    loss = cloning_actor_loss(jnp.array([3.0, 1.0]), difference, 0.1)
    assert loss == pytest.approx(((0.5 - 3) + (0.025 - 1)) / 2, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_conservative_gap_against_scipy(temperature):
    q, sampled = RNG.normal(size=(2, 5)), RNG.normal(size=(2, 7, 5))
    log_density = RNG.normal(size=(7, 5))
    expected = temperature * logsumexp((sampled - log_density) / temperature, axis=1) - q
    ours = conservative_gap(
        jnp.asarray(q), jnp.asarray(sampled), jnp.asarray(log_density), temperature
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_conservative_gap_by_hand_and_without_overflow():
    # log(e^1/e^0 + e^2/e^1) − 0.5 = log 2e − 0.5
    gap = conservative_gap(
        jnp.array([[0.5]]), jnp.array([[[1.0], [2.0]]]), jnp.array([[0.0], [1.0]]), 1.0
    )
    np.testing.assert_allclose(gap, [[np.log(2) + 1 - 0.5]], rtol=1e-6)
    large = conservative_gap(jnp.zeros((1, 1)), jnp.full((1, 2, 1), 1e4), jnp.zeros((2, 1)), 1.0)
    np.testing.assert_allclose(large, 1e4 + np.log(2), rtol=1e-6)


def test_importance_weights_make_proposals_agree_with_the_integral():
    """log ∫ exp Q(a) da over [−1, 1], from uniform and from lopsided samples alike."""

    def q(a):
        return 3 * a - a**2

    exact = np.log(integrate.quad(lambda a: np.exp(q(a)), -1, 1)[0])
    n = 200_000
    uniform = RNG.uniform(-1, 1, n)
    skewed = 2 * RNG.beta(3, 2, n) - 1  # density ½ · 12 x² (1 − x) at x = (a + 1) / 2
    x = (skewed + 1) / 2
    for a, density in ((uniform, np.full(n, 0.5)), (skewed, 6 * x**2 * (1 - x))):
        gap = conservative_gap(
            jnp.zeros((1, 1)),
            jnp.asarray(q(a))[None, :, None],
            jnp.asarray(np.log(density))[:, None],
            1.0,
        )
        assert float(gap[0, 0]) - np.log(n) == pytest.approx(exact, abs=0.03)


def test_the_mild_target_lies_between_in_sample_and_policy_value():
    q_next, v_next = jnp.array([10.0, 0.0]), jnp.array([2.0, 4.0])
    np.testing.assert_allclose(mild_value(q_next, v_next, 0.25), [4.0, 3.0], rtol=1e-6)
    np.testing.assert_array_equal(mild_value(q_next, v_next, 0.0), v_next)  # IQL's target
    np.testing.assert_array_equal(mild_value(q_next, v_next, 1.0), q_next)  # TD3's target


def test_q_in_units_of_what_noise_changes():
    q, change = jnp.array([1.0, -2.0, 4.0]), jnp.array([0.5, -0.5, 3.0])
    spread = np.sqrt(np.mean((np.array([0.5, -0.5, 3.0]) - 1) ** 2))
    np.testing.assert_allclose(normalised_q(q, "noise", change), q / spread, rtol=1e-6)
    assert np.isfinite(normalised_q(q, "noise", jnp.ones(3))).all()  # actions change nothing


def test_dmg_actor_by_hand():
    q, difference = jnp.array([2.0, 4.0]), jnp.array([[1.0, -2.0], [0.0, 1.0]])
    loss = dmg_actor_loss(q, difference, jnp.array([3.0, 0.5]), 0.1)
    # Q/3 has mean 1; 3 · (1 + 4)/2 and 0.5 · (0 + 1)/2 over two rows
    assert loss == pytest.approx(-1 + 0.1 * (7.5 + 0.25) / 2, rel=1e-6)


@pytest.mark.parametrize(("name", "shifted"), [("rebrac", False), ("icql-rank", True)])
def test_the_unit_of_q_reaches_the_actor(name, shifted):
    """What all states earn alike moves ReBRAC's weight of cloning, and not ICQL-rank's."""
    settings = resolve_preset(name, "paper", None).settings
    algorithm = make_algorithm(name, settings, Spec(3, 2, 10))
    difference = jnp.full((3, 2), 0.1)

    def slope(q):
        return jax.grad(lambda q: algorithm.actor_loss(jnp.stack([q, q + 9]), difference))(q)

    q = jnp.array([1.0, -2.0, 4.0])
    same = np.allclose(slope(q), slope(q + 50), rtol=1e-3)
    assert same == shifted


def test_in_units_of_the_logs_noise_the_scales_of_actions_and_values_do_not_matter():
    """E[−min Q / std(ΔQ) + β ‖(π − a)/σ‖²] with ΔQ = min Q(a + ε) − min Q(a), by hand."""
    settings = replace(RankSettings(), q_unit="noise", actor_bc=0.3)
    rng = np.random.default_rng(0)
    slope, offset = rng.normal(size=(2, 4, 2)), rng.normal(size=(2, 4))
    a, difference = rng.uniform(-0.2, 0.2, (2, 4, 2))

    def loss(sizes, worth):
        algorithm = make_algorithm("icql-rank", settings, Spec(3, 2, 10, deviations=sizes))
        sigma = np.asarray(sizes)
        # two critics, linear in the action: their slopes are per σ
        per_sigma = worth * slope / sigma

        def q_at(x):
            return jnp.asarray(worth * offset) + (jnp.asarray(per_sigma) * x).sum(-1)

        logged, moved = jnp.asarray(a * sigma), jnp.asarray(difference * sigma)
        key = jax.random.key(1)
        change = algorithm.changed(q_at, logged, key)
        noise = np.asarray(jax.random.normal(key, a.shape)) * sigma
        least = [np.asarray(q_at(x)).min(0) for x in (logged + noise, logged)]
        np.testing.assert_allclose(change, least[0] - least[1], rtol=1e-4, atol=1e-5 * worth)
        q = q_at(logged + moved)
        by_hand = 0.3 * (difference**2).sum(-1) - np.asarray(q).min(0) / np.std(change)
        value = algorithm.actor_loss(q, moved, change)
        np.testing.assert_allclose(value, by_hand.mean(), rtol=1e-4)
        return float(value)

    plain = loss((0.1, 0.1), 1.0)
    assert loss((0.1, 0.1), 50.0) == pytest.approx(plain, rel=1e-3)
    assert loss((0.02, 0.05), 1.0) == pytest.approx(plain, rel=1e-3)
