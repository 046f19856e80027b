"""Pieces of networks: initialisation, normalisation, noise, dropout."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.nn.initialisation import orthogonal
from icql.nn.mlp import MLP, LayerNorm, dropout, normalise


@pytest.mark.parametrize("shape", [(40, 40), (7, 33), (33, 7), (5, 1), (1, 1)])
def test_initial_weights_are_orthonormal(shape):
    w = np.asarray(orthogonal(jax.random.key(3), *shape))
    assert w.shape == shape
    gram = w.T @ w if shape[0] >= shape[1] else w @ w.T
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=2e-6)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate):
    x = jnp.full((301, 333), 2.0)
    words = jax.random.bits(jax.random.key(0), (2, 2), jnp.uint32)
    y = np.asarray(dropout(x, rate, words[0]))
    assert np.mean(y == 0) == pytest.approx(rate, abs=0.005)
    assert y.mean() == pytest.approx(2.0, rel=0.01)
    kept = np.unique(y[y != 0])
    np.testing.assert_allclose(kept, 2 / (1 - rate), rtol=1e-4)
    assert not np.array_equal(y, dropout(x, rate, words[1]))


def test_layer_norm_against_its_definition():
    x = np.random.default_rng(0).normal(size=(4, 9)) * 3 + 1
    norm = LayerNorm(9)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-5)


def test_gradient_of_layer_norm_against_differences():
    rng = np.random.default_rng(1)
    x, scale, shift, d_y = (rng.normal(size=n) for n in ((2, 3, 7), 7, 7, (2, 3, 7)))

    def by_definition(x, scale, shift):
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift
        return (y * d_y).sum()

    given = [jnp.asarray(v, jnp.float32) for v in (x, scale, shift)]
    found = jax.grad(lambda *v: (normalise(*v) * d_y.astype(np.float32)).sum(), (0, 1, 2))(*given)
    for i, value in enumerate((x, scale, shift)):
        expected = np.empty_like(value)
        for at in np.ndindex(value.shape):
            change = np.zeros_like(value)
            change[at] = 1e-6
            up, down = ([x, scale, shift] for _ in range(2))
            up[i], down[i] = value + change, value - change
            expected[at] = (by_definition(*up) - by_definition(*down)) / 2e-6
        np.testing.assert_allclose(found[i], expected, rtol=1e-4, atol=1e-5)


def test_mlp_without_a_key_is_deterministic():
    net = MLP(3, (16, 16), 2, key=jax.random.key(0), dropout=0.5, layer_norm=True)
    x = jnp.ones((5, 3))
    np.testing.assert_array_equal(net(x), net(x))
    assert not np.allclose(net(x), net(x, key=jax.random.key(1)))


def test_noise_is_uniform_as_wide_as_each_input_says_and_only_in_training():
    widths = (0.5, 0.0, 2.0)
    net = MLP(3, (), 3, key=jax.random.key(0), noise=widths)
    net = eqx.tree_at(lambda net: net.layers[0].weight, net, jnp.eye(3))
    x = jnp.broadcast_to(jnp.array([1.0, -2.0, 3.0]), (4000, 3))
    np.testing.assert_array_equal(net(x), x)
    noise = np.asarray(net(x, key=jax.random.key(1)) - x, np.float64)
    assert (noise[:, 1] == 0).all()
    for column, width in ((0, 0.5), (2, 2.0)):
        found = np.sort(noise[:, column])
        # the largest distance from a uniform distribution function (Kolmogorov, p = 1e-4)
        expected = (found / width + 1) / 2
        steps = np.arange(1, 4001) / 4000
        assert np.abs(steps - expected).max() < 2.3 / np.sqrt(4000)
        assert np.abs(found).max() <= width
    assert abs(np.corrcoef(noise[:, 0], noise[:, 2])[0, 1]) < 0.06  # each input has its own
    assert (np.diff(noise[:, 0]) != 0).mean() > 0.99  # and so has each row
    other = np.asarray(net(x, key=jax.random.key(2)) - x)
    assert not np.allclose(noise, other)


def test_noise_leaves_dropout_as_it_is():
    plain, shaken = (
        MLP(3, (16, 16), 2, key=jax.random.key(0), dropout=0.5, noise=noise)
        for noise in ((), (0.0, 0.0, 0.0))
    )
    x, key = jax.random.normal(jax.random.key(1), (9, 3)), jax.random.key(2)
    np.testing.assert_array_equal(plain(x, key=key), shaken(x, key=key))
