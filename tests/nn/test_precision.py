"""Products in bfloat16: what is rounded, what is not, and that every algorithm learns with them."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from icql.errors import UserError
from icql.nn import backend
from icql.nn.initialisation import by_orthogonal
from icql.nn.mlp import MLP, Linear, in_precision
from icql.settings.run import RunSettings

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
X = RNG.normal(size=(3, 40, 7)).astype(np.float32)
W = RNG.normal(size=(7, 5)).astype(np.float32)
D_Y = RNG.normal(size=(3, 40, 5)).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def product(x, w, precision="bfloat16"):
    layer = eqx.tree_at(
        lambda layer: layer.weight, Linear(7, 5, init=by_orthogonal(1.0), key=KEY), w
    )
    return in_precision(layer, precision).product(x)


def product_and_slopes(precision):
    y, back = jax.vjp(lambda x, w: product(x, w, precision), jnp.asarray(X), jnp.asarray(W))
    return y, *back(jnp.asarray(D_Y))


def by_hand(x, w, d_y):
    return x @ w, d_y @ w.T, np.einsum("abi,abo->io", x, d_y)


def test_factors_are_rounded_and_sums_are_not():
    found = product_and_slopes("bfloat16")
    for mine, expected in zip(found, by_hand(*map(rounded, (X, W, D_Y))), strict=True):
        assert mine.dtype == jnp.float32
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_float32_is_the_default_and_comes_back():
    layer = Linear(7, 5, init=by_orthogonal(1.0), key=KEY)
    assert layer.precision == "float32"
    assert in_precision(layer, "bfloat16").precision == "bfloat16"
    assert layer.precision == "float32"  # the one that was given is as before
    for mine, expected in zip(product_and_slopes("float32"), by_hand(X, W, D_Y), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)
        assert np.abs(mine - expected).max() < 1e-4


def test_float64_is_left_alone():
    with jax.enable_x64(True):
        found = product(jnp.asarray(X, jnp.float64), jnp.asarray(W, jnp.float64))
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, X.astype(np.float64) @ W.astype(np.float64), rtol=1e-12)


def test_several_networks_at_once_are_those_one_by_one():
    weights = jnp.stack([W, 2 * W])
    both = jax.vmap(product, (None, 0))(jnp.asarray(X), weights)
    np.testing.assert_allclose(
        both[1], product(jnp.asarray(X), jnp.asarray(2 * W)), rtol=1e-6, atol=1e-6
    )


def test_a_whole_state_changes_its_precision_and_no_array():
    net = MLP(7, (16,), 3, key=KEY)
    state = {"net": net, "moments": optax.adam(1e-3).init(eqx.filter(net, eqx.is_inexact_array))}
    other = in_precision(state, "bfloat16")
    assert jax.tree.structure(other) != jax.tree.structure(state)
    assert jax.tree.structure(in_precision(other, "float32")) == jax.tree.structure(state)
    for mine, expected in zip(jax.tree.leaves(other), jax.tree.leaves(state), strict=True):
        assert mine is expected
    assert not np.array_equal(other["net"](jnp.asarray(X)), net(jnp.asarray(X)))


@pytest.mark.parametrize("wrong", ["half", "float16", ""])
def test_an_unknown_precision_is_refused(wrong):
    with pytest.raises(UserError, match="must be one of float32, bfloat16"):
        RunSettings(precision=wrong)


@pytest.mark.parametrize("gpu", [False, True])
def test_activations_are_bfloat16_on_a_gpu_only(monkeypatch, gpu):
    net = in_precision(MLP(7, (16, 16), 3, key=KEY), "bfloat16")
    monkeypatch.setattr(backend, "on_gpu", lambda: gpu)
    program = str(jax.make_jaxpr(lambda x: net(x))(X[0]))
    assert ("f32[40,16]" in program) is not gpu
    assert "f32[40,3]" in program  # what comes out, in any case
