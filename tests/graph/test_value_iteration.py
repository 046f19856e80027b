"""The graph's critic against its theory, and against dynamic programming written another way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from icql.errors import UserError
from icql.graph.value_iteration import local_value_iteration


def expectile(values: np.ndarray, weights: np.ndarray, tau: float) -> float:
    """By its definition: the root of Σ w |τ − 1(x < v)| (x − v), found by bisection."""

    def slope(v: float) -> float:
        return float((weights * np.where(values < v, 1 - tau, tau) * (values - v)).sum())

    low, high = values.min(), values.max()
    return float(low) if low == high else float(brentq(slope, low, high, xtol=1e-14))


def swept(q, r, m, table, gamma, tau, weights=None) -> np.ndarray:
    """One sweep of the definition, row by row."""
    out = np.array(r, float)
    for i, row in enumerate(table):
        near = row >= 0
        if m[i] and near.any():
            w = np.ones(near.sum()) if weights is None else weights[i][near]
            out[i] += gamma * m[i] * expectile(q[row[near]], w, tau)
    return out


def problem(seed: int, rows: int = 40, k: int = 5):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, rows, (rows, k))
    table[rng.random((rows, k)) < 0.3] = -1
    table[:, 0] = rng.integers(0, rows, rows)  # at least one
    mask = (rng.random(rows) > 0.15).astype(float)
    return rng.normal(size=rows), mask, table, rng


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 0.7, 0.95]), st.booleans())
def test_it_is_the_fixed_point_of_the_definition(seed, tau, weighted):
    r, m, table, rng = problem(seed)
    w = rng.random(table.shape) + 0.1 if weighted else None
    q = local_value_iteration(r, m, table, discount=0.9, expectile=tau, weights=w, tolerance=1e-9)
    assert q.dtype == np.float64
    np.testing.assert_allclose(q, swept(q, r, m, table, 0.9, tau, w), atol=1e-8)


@pytest.mark.parametrize("tolerance", [1.0, 1e-3, 1e-7])
def test_the_tolerance_is_a_bound_on_the_error(tolerance):
    r, m, table, _ = problem(1)
    exact = local_value_iteration(r, m, table, discount=0.99, tolerance=1e-11)
    found = local_value_iteration(r, m, table, discount=0.99, tolerance=tolerance)
    assert np.abs(found - exact).max() <= tolerance


def test_any_start_ends_in_the_same_place():
    r, m, table, rng = problem(2)
    zero = local_value_iteration(r, m, table, discount=0.95, tolerance=1e-9)
    far = local_value_iteration(
        r, m, table, discount=0.95, tolerance=1e-9, start=1e4 * rng.normal(size=len(r))
    )
    np.testing.assert_allclose(zero, far, atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_monotone_contraction_within_bounds(seed):
    r, m, table, rng = problem(seed)
    gamma, tau = 0.9, 0.8
    q = rng.normal(size=len(r))
    higher = q + rng.random(len(r))
    one, two = (swept(x, r, m, table, gamma, tau) for x in (q, higher))
    assert (two >= one - 1e-12).all()
    assert np.abs(two - one).max() <= gamma * np.abs(higher - q).max() + 1e-12
    # the same of the solution: better rewards, better values; and never out of range
    base = local_value_iteration(r, m, table, discount=gamma, expectile=tau, tolerance=1e-9)
    more = local_value_iteration(
        r + rng.random(len(r)), m, table, discount=gamma, expectile=tau, tolerance=1e-9
    )
    assert (more >= base - 1e-8).all()
    assert base.min() >= min(r.min(), 0) / (1 - gamma) - 1e-8
    assert base.max() <= max(r.max(), 0) / (1 - gamma) + 1e-8


def test_exact_dynamic_programming_on_a_tabular_mdp():
    """Every state is its own neighbourhood and τ nearly 1: Q* by value iteration over a table."""
    rng = np.random.default_rng(0)
    states, actions, gamma = 12, 3, 0.9
    following = rng.integers(0, states, (states, actions))
    reward = rng.normal(size=(states, actions))
    ends = rng.random((states, actions)) < 0.1
    optimal = np.zeros((states, actions))
    for _ in range(2000):
        optimal = reward + gamma * np.where(ends, 0, optimal.max(1)[following])
    s, a = (x.ravel() for x in np.meshgrid(range(states), range(actions), indexing="ij"))
    table = np.stack([following[s, a] * actions + b for b in range(actions)], axis=1)
    q = local_value_iteration(
        reward[s, a], ~ends[s, a], table, discount=gamma, expectile=1 - 1e-9, tolerance=1e-9
    )
    np.testing.assert_allclose(q.reshape(states, actions), optimal, atol=1e-6)


def test_the_behaviour_on_a_chain():
    """τ = ½ and one row per state: the discounted return that was logged."""
    r = np.arange(1.0, 6.0)
    table = np.array([[1], [2], [3], [4], [-1]])
    q = local_value_iteration(
        r, [1, 1, 1, 1, 0], table, discount=0.5, expectile=0.5, tolerance=1e-12
    )
    expected = [sum(0.5**j * x for j, x in enumerate(r[i:])) for i in range(5)]
    np.testing.assert_allclose(q, expected, atol=1e-10)


def test_ends_one_step_episodes_and_time_limits():
    """A terminal row is its reward; a row cut by a time limit goes on from its neighbours."""
    r, gamma = np.array([1.0, 2.0, 4.0]), 0.5
    table = np.array([[-1, -1], [2, -1], [2, 1]])
    q = local_value_iteration(r, [0, 1, 1], table, discount=gamma, expectile=0.5, tolerance=1e-10)
    assert q[0] == 1
    # rows 1 and 2 solve q1 = 2 + γ q2 and q2 = 4 + γ (q1 + q2) / 2
    a = np.array([[1, -gamma], [-gamma / 2, 1 - gamma / 2]])
    np.testing.assert_allclose(q[1:], np.linalg.solve(a, [2, 4]), atol=1e-9)


def test_one_block_or_many(monkeypatch):
    r, m, table, _ = problem(3, rows=101)
    whole = local_value_iteration(r, m, table, discount=0.9, tolerance=1e-9)
    monkeypatch.setattr("icql.graph.value_iteration.BLOCK", 16)
    import icql.graph.value_iteration as module

    module._round.clear_cache()
    cut = local_value_iteration(r, m, table, discount=0.9, tolerance=1e-9)
    module._round.clear_cache()
    np.testing.assert_allclose(whole, cut, atol=1e-8)


def test_progress_rises_to_the_end():
    r, m, table, _ = problem(4)
    seen: list[float] = []
    local_value_iteration(
        r, m, table, discount=0.999, progress=lambda label, share: seen.append(share)
    )
    assert seen[-1] == 1.0
    assert all(0 <= x <= 1 for x in seen)


def test_nothing_to_solve():
    none = np.empty((0, 3), int)
    assert local_value_iteration([], [], none, discount=0.9).shape == (0,)
    constant = local_value_iteration(np.full(3, 2.0), np.ones(3), [[0], [1], [2]], discount=0.5)
    np.testing.assert_allclose(constant, 4, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": [1.0, np.nan]}, r"rewards, row 1: is not finite"),
        ({"mask": [1.0]}, r"mask: must have shape \(2,\)"),
        ({"next_context": [[0.5], [1.0]]}, "next_context: must be row numbers"),
        ({"next_context": [[2], [0]]}, "names row 2, but there are 2"),
        ({"next_context": [[-1], [0]]}, "1 rows that do not end have nothing to be compared with"),
        ({"weights": [[0.0], [1.0]]}, "nothing to be compared with"),
        ({"weights": [[-1.0], [1.0]]}, "weights: must be of shape"),
        ({"discount": 1.0}, r"discount: must be in \[0, 1\)"),
        ({"expectile": 1.0}, r"expectile: must be in \(0, 1\)"),
        ({"tolerance": 0.0}, "tolerance: must be positive"),
    ],
)
def test_bad_input(changes, message):
    given = {
        "rewards": [1.0, 2.0],
        "mask": [1.0, 1.0],
        "next_context": [[1], [0]],
        "discount": 0.9,
        **changes,
    }
    with pytest.raises(UserError, match=message):
        local_value_iteration(
            given.pop("rewards"), given.pop("mask"), given.pop("next_context"), **given
        )
