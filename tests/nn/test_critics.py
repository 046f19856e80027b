"""Critics: an ensemble behind one face, global or local."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Transition
from icql.nn import backend
from icql.nn.critics import global_critics, local_critics, normalised
from icql.settings.shared import LocalSettings


@pytest.mark.parametrize("kind", ["local", "global"])
def test_critics_are_independent_and_act_on_any_leading_axes(kind):
    if kind == "global":
        critics = global_critics(5, (8,), 2, key=jax.random.key(0))
    else:
        local = {"local": LocalSettings(layers=2, features=4), "context": 5, "discount": 0.9}
        critics = local_critics(3, 2, (8,), 2, **local, key=jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 6)
    normal = jax.random.normal
    context = Transition(
        normal(keys[0], (7, 5, 3)),
        normal(keys[1], (7, 5, 2)),
        normal(keys[2], (7, 5)),
        normal(keys[3], (7, 5, 3)),
        normal(keys[4], (7, 5, 2)),
        jnp.ones((7, 5)),
    )
    at = critics.at(normal(keys[5], (7, 3)), context)
    one = at(jnp.full((7, 2), 0.5))
    assert one.shape == (2, 7)
    assert not np.allclose(one[0], one[1])
    several = at(jnp.stack([jnp.full((7, 2), 0.5), jnp.zeros((7, 2))]))
    assert several.shape == (2, 2, 7)
    np.testing.assert_allclose(several[:, 0], one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["none", "unit", "layer"])
def test_normalised_features_by_hand(how):
    phi = np.random.default_rng(0).normal(size=(3, 5, 4)) + 2
    size = np.sqrt((phi**2).sum(-1, keepdims=True))
    centred = phi - phi.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True))
    expected = {"none": phi, "unit": phi / size, "layer": centred / spread}[how]
    found = normalised(jnp.asarray(phi, jnp.float32), how)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # a feature of zeros has no direction: no value may become infinite
    slope = jax.grad(lambda x: normalised(x, how).sum())(jnp.zeros(4))
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(("how", "kernel"), [("unit", 0.0), ("layer", 0.0), ("unit", 2.0)])
def test_context_and_query_are_normalised_alike(how, kernel, gpu, monkeypatch):
    """Q̂ of a linear critic by hand, from features normalised and rows weighed by hand."""
    monkeypatch.setattr(backend, "critics_at_once", lambda: gpu)
    monkeypatch.setattr(backend, "context_with_query", lambda: gpu)
    chosen = {"normalise": how, "kernel": kernel}
    local = LocalSettings(layers=2, features=4, c_scale=4.0, dropout=0.0, **chosen)
    given = {"local": local, "context": 5, "discount": 0.9, "key": jax.random.key(0)}
    critics = local_critics(3, 2, (8,), 1, **given)
    rng = np.random.default_rng(1)
    s, a, s_next, a_next = (rng.normal(size=(7, 5, n)).astype(np.float32) for n in (3, 2, 3, 2))
    r, mask = rng.normal(size=(7, 5)).astype(np.float32), np.ones((7, 5), np.float32)
    context = Transition(*map(jnp.asarray, (s, a, r, s_next, a_next, mask)))
    net = jax.tree.map(lambda x: x[0], critics.members.features)

    def phi(*pair):
        found = np.asarray(net(jnp.asarray(np.concatenate(pair, -1))), np.float64)
        if how == "layer":
            found = found - found.mean(-1, keepdims=True)
            return found / np.sqrt((found**2).mean(-1, keepdims=True) + 1e-5)
        return found / np.sqrt((found**2).sum(-1, keepdims=True) + 1e-6)

    expected, rows, after = [], phi(s, a), phi(s_next, a_next)
    for i in range(7):
        squares = np.float64((s[i] - s[i, 0]) ** 2).sum(1)
        k = np.exp(-kernel * squares / squares.mean())
        w = np.zeros(4)
        for _ in range(2):  # C = I
            errors = r[i] + 0.9 * after[i] @ w - rows[i] @ w
            w = w + rows[i].T @ (k / k.mean() * errors) / 5
        expected.append(phi(s[i, 0], a[i, 1]) @ w)
    state, action = jnp.asarray(s[:, 0]), jnp.asarray(a[:, 1])
    np.testing.assert_allclose(critics(state, action, context)[0], expected, rtol=1e-4, atol=1e-5)
    found = critics.at(state, context)(action)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    traced = critics.trace(state, action, context)[-1]
    np.testing.assert_allclose(traced, expected, rtol=1e-4, atol=1e-5)
