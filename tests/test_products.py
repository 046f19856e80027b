"""Products in bfloat16: what is rounded, what is not, and that every algorithm learns with them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from icql.errors import UserError
from icql.nn import mlp
from icql.nn.mlp import MLP
from icql.nn.products import product, products_in
from icql.settings.run import RunSettings

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 40, 7)).astype(np.float32)
W = RNG.normal(size=(7, 5)).astype(np.float32)
D_Y = RNG.normal(size=(3, 40, 5)).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def product_and_slopes(x, w, d_y):
    y, back = jax.vjp(product, x, w)
    return y, *back(d_y)


def by_hand(x, w, d_y):
    return x @ w, d_y @ w.T, np.einsum("abi,abo->io", x, d_y)


def test_factors_are_rounded_and_sums_are_not():
    with products_in("bfloat16"):
        found = product_and_slopes(X, W, D_Y)
    for mine, expected in zip(found, by_hand(*map(rounded, (X, W, D_Y))), strict=True):
        assert mine.dtype == jnp.float32
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_float32_is_the_default_and_comes_back():
    with products_in("bfloat16"):
        pass
    for mine, expected in zip(product_and_slopes(X, W, D_Y), by_hand(X, W, D_Y), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)
        assert np.abs(mine - expected).max() < 1e-4


def test_float64_is_left_alone():
    with jax.enable_x64(True), products_in("bfloat16"):
        found = product(jnp.asarray(X, jnp.float64), jnp.asarray(W, jnp.float64))
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, X.astype(np.float64) @ W.astype(np.float64), rtol=1e-12)


def test_several_networks_at_once_are_those_one_by_one():
    weights = jnp.stack([W, 2 * W])
    with products_in("bfloat16"):
        both = jax.vmap(product, (None, 0))(X, weights)
        np.testing.assert_allclose(both[1], product(X, 2 * W), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wrong", ["half", "float16", ""])
def test_an_unknown_precision_is_refused(wrong):
    with pytest.raises(UserError, match="must be one of float32, bfloat16"):
        RunSettings(precision=wrong)


@pytest.mark.parametrize("gpu", [False, True])
def test_activations_are_bfloat16_on_a_gpu_only(monkeypatch, gpu):
    net = MLP(7, (16, 16), 3, key=jax.random.key(0))
    monkeypatch.setattr(mlp, "on_gpu", lambda: gpu)
    with products_in("bfloat16"):
        program = str(jax.make_jaxpr(lambda x: net(x))(X[0]))
    assert ("f32[40,16]" in program) is not gpu
    assert "f32[40,3]" in program  # what comes out, in any case
