"""The local critic by ridge regression, against NumPy in float64."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Transition
from icql.nn import backend
from icql.nn.critics import Critics, local_critics
from icql.nn.ridge import Ridge, solve
from icql.settings.shared import LocalSettings

OBS, ACT, ROWS, N, D = 3, 2, 7, 5, 4
DISCOUNT = 0.9


def critics(seed: int, *, actions: int = ACT, **local) -> Critics:
    """Two of them whose every parameter differs from where it starts."""
    given = LocalSettings(module="ridge", features=D, normalise="unit", **local)
    fresh = local_critics(
        *(OBS, actions, (8,), 2),
        local=given,
        context=N,
        discount=DISCOUNT,
        key=jax.random.key(seed),
    )
    leaves, structure = jax.tree.flatten(fresh)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    moved = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


def context(seed: int = 0) -> Transition:
    keys = jax.random.split(jax.random.key(seed), 6)
    sizes = [(OBS,), (ACT,), (), (OBS,), (ACT,)]
    values = [jax.random.normal(k, (ROWS, N, *z)) for k, z in zip(keys, sizes, strict=False)]
    return Transition(*values, (jax.random.uniform(keys[5], (ROWS, N)) > 0.3).astype(jnp.float32))


def kernel_weights(s, near, kernel: float) -> np.ndarray:
    """exp(−kernel d² / mean d²) of a context's states, then of mean 1."""
    squares = ((np.asarray(near, np.float64) - np.asarray(s, np.float64)) ** 2).sum(1)
    weights = np.exp(-kernel * squares / squares.mean())
    return weights / weights.mean()


def by_numpy(mine: Critics, prior: Critics, s, a, context: Transition) -> np.ndarray:
    """min_w ‖y − Φ w‖² + λN ‖w − w₀‖², context by context, in the primal: (critics, rows)."""

    def member(critics: Critics, i: int):
        one = jax.tree.map(lambda x: x[i] if eqx.is_array(x) else x, critics.members)

        def phi(*inputs):
            found = np.asarray(one.features(jnp.concatenate(inputs, -1)), np.float64)
            return found / np.sqrt((found**2).sum(-1, keepdims=True) + 1e-6)

        w0, rho = (np.asarray(x, np.float64) for x in (one.module.w0, one.module.rho))
        return phi, w0, np.log1p(np.exp(rho)) + 1e-4

    values = np.empty((2, ROWS))
    for i in range(2):
        phi, w0, ridge = member(mine, i)
        phi_bar, w0_bar, _ = member(prior, i)
        rows, after = phi(context.s, context.a), phi_bar(context.s_next, context.a_next)
        y = np.asarray(context.r) + DISCOUNT * np.asarray(context.mask) * (after @ w0_bar)
        for j in range(ROWS):
            counted = np.diag(kernel_weights(s[j], context.s[j], mine.members.kernel))
            left = rows[j].T @ counted @ rows[j] + ridge * N * np.eye(D)
            w = np.linalg.solve(left, rows[j].T @ counted @ y[j] + ridge * N * w0)
            values[i, j] = phi(s, a)[j] @ w
    return values


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(("with_target", "kernel"), [(False, 0.0), (True, 0.0), (True, 1.5)])
def test_values_are_those_of_the_regression(with_target, kernel, gpu, monkeypatch):
    monkeypatch.setattr(backend, "critics_at_once", lambda: gpu)
    monkeypatch.setattr(backend, "context_with_query", lambda: gpu)
    q, target = critics(0, kernel=kernel), critics(5) if with_target else None
    s, a = jax.random.normal(jax.random.key(2), (ROWS, OBS)), jnp.full((ROWS, ACT), 0.3)
    expected = by_numpy(q, target or q, s, a, context())
    found = q(s, a, context(), prior=target)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # any number of other actions at the price of one solve
    at = q.at(s, context(), prior=target)
    several = at(jnp.stack([a, -a]))
    np.testing.assert_allclose(several[:, 0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        several[:, 1], by_numpy(q, target or q, s, -a, context()), rtol=1e-4, atol=1e-5
    )


def test_targets_are_no_way_for_gradients_and_lambda_learns():
    q, target = critics(0), critics(5)
    s, a = jnp.ones((ROWS, OBS)), jnp.full((ROWS, ACT), 0.3)
    through = jax.grad(lambda prior: q(s, a, context(), prior=prior).sum())(target)
    assert all(not np.any(x) for x in jax.tree.leaves(through))
    own = jax.grad(lambda q: q(s, a, context(), prior=target).sum())(q)
    assert all(np.any(x) for x in jax.tree.leaves(own))

    # the gradient of w₀ with its own targets held is that with a copy as target
    copy = jax.tree.map(jnp.copy, q)
    alone = jax.grad(lambda q: q(s, a, context()).sum())(q)
    beside = jax.grad(lambda q: q(s, a, context(), prior=copy).sum())(q)
    for mine, expected in zip(jax.tree.leaves(alone), jax.tree.leaves(beside), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def test_a_context_without_rewards_has_the_values_of_the_prior():
    """The paper's critic is 0 there; as λ grows, Q̂ goes to φᵀw₀."""
    empty = eqx.tree_at(lambda c: c.r, context(), jnp.zeros((ROWS, N)))
    q = critics(0)
    s, a = jnp.ones((ROWS, OBS)), jnp.full((ROWS, ACT), 0.3)
    assert np.abs(q(s, a, empty)).min() > 0
    strong = eqx.tree_at(lambda q: q.members.module.rho, q, jnp.full(2, 1e6))
    one = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, q.members)
    prior = one.module.prior(one.phi(jnp.concatenate([s, a], -1), key=None))
    np.testing.assert_allclose(strong(s, a, empty)[0], prior, rtol=1e-3, atol=1e-5)


def test_v_has_no_actions():
    v = critics(3, actions=0)
    assert v(jnp.ones((ROWS, OBS)), None, context()).shape == (2, ROWS)
    assert v.ridge.shape == (2,)


@pytest.mark.parametrize("ridge", [0.01, 0.1, 5.0])
def test_lambda_starts_where_it_is_told(ridge):
    np.testing.assert_allclose(Ridge(4, ridge).ridge, ridge + 1e-4, rtol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 20, 40])
def test_solves_as_lapack_does(n):
    rng = np.random.default_rng(n)
    half = rng.normal(size=(3, 2, n, n + 1))
    k, b = half @ half.swapaxes(-1, -2) + 1e-3 * np.eye(n), rng.normal(size=(3, 2, n))
    expected = np.linalg.solve(k, b[..., None])[..., 0]
    with jax.enable_x64(True):
        np.testing.assert_allclose(solve(jnp.asarray(k), jnp.asarray(b)), expected, rtol=1e-8)
    strong = k / n + np.eye(n)  # as λN I makes it
    found = solve(jnp.asarray(strong, jnp.float32), jnp.asarray(b, jnp.float32))
    np.testing.assert_allclose(
        found, np.linalg.solve(strong, b[..., None])[..., 0], rtol=1e-3, atol=1e-5
    )


def test_gradients_of_the_solve_by_finite_differences():
    rng = np.random.default_rng(0)
    half, move = rng.normal(size=(2, 3, 6, 6))
    b, way = rng.normal(size=(2, 3, 6))

    def value(t):
        moved = half + t * move
        k = moved @ moved.swapaxes(-1, -2) + jnp.eye(6)
        return (jax.vmap(solve)(k, b + t * way) ** 2).sum()

    with jax.enable_x64(True):
        half, move, b, way = (jnp.asarray(x) for x in (half, move, b, way))
        numeric = float(value(1e-5) - value(-1e-5)) / 2e-5
        assert abs(numeric) > 1e-2
        np.testing.assert_allclose(float(jax.grad(value)(0.0)), numeric, rtol=1e-6)


def test_a_context_of_one_row_repeated_has_finite_values_and_gradients():
    same = jax.tree.map(lambda x: jnp.broadcast_to(x[:, :1], x.shape), context())
    q = eqx.tree_at(
        lambda q: q.members.module.rho, critics(0), jnp.full(2, -60.0)
    )  # λ at its least
    s, a = jnp.ones((ROWS, OBS)), jnp.full((ROWS, ACT), 0.3)
    value, gradient = jax.value_and_grad(lambda q: q(s, a, same).sum())(q)
    assert np.isfinite(value)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_many_critics_at_once_on_few_threads():
    """LAPACK's solvers, compiled like this, can deadlock two threads: products cannot."""
    k = jnp.eye(20) * 2 + 0.1
    many = jax.jit(jax.vmap(jax.vmap(lambda b: jax.vmap(solve, (None, 0))(k, b))))
    b = jnp.ones((2, 3, 256, 20))
    np.testing.assert_allclose(many(b), jnp.full(b.shape, 0.25), rtol=1e-5)
