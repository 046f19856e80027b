"""Theory against construction: literal prompt = reduced = dual = explicit TD, in float64."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icql
from icql.nn.ablations import LinearMLP, SoftmaxTransformer
from icql.nn.in_context import LinearTransformer, bounded, dual, literal_prompt, reduced
from icql.nn.kernels import td

DISCOUNT = 0.97


def draw(seed: int, n: int = 7, d: int = 5, layers: int = 4, terminals: float = 0.3) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "phi": np.tanh(rng.normal(size=(n, d))),
        "phi_next": np.tanh(rng.normal(size=(n, d))),
        "rewards": rng.normal(size=n),
        "C": rng.normal(size=(layers, d, d)) * 0.3,
        "mask": (rng.random(n) > terminals).astype(np.float64),
    }


def explicit_td(phi, phi_next, rewards, C, mask, discount) -> np.ndarray:
    """Preconditioned SARSA, transition by transition, in plain loops."""
    n, d = phi.shape
    weights = [np.zeros(d)]
    for c in C:
        w, total = weights[-1], np.zeros(d)
        for i in range(n):
            bootstrap = discount * (phi_next[i] @ w) if mask[i] else 0.0
            total += (rewards[i] + bootstrap - phi[i] @ w) * phi[i]
        weights.append(w + c @ total / n)
    return np.array(weights)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    d=st.integers(1, 8),
    layers=st.integers(1, 6),
    terminals=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_literal_reduced_and_explicit_td_agree_in_every_layer(seed, n, d, layers, terminals):
    context = draw(seed, n, d, layers, terminals)
    query = np.random.default_rng(seed + 1).normal(size=d)
    expected = explicit_td(**context, discount=DISCOUNT)
    weights = np.asarray(icql.local_weights(**context, discount=DISCOUNT))
    assert weights.dtype == np.float64
    assert weights.shape == (layers + 1, d)
    np.testing.assert_allclose(weights, expected, rtol=1e-10, atol=1e-12)
    for layer in range(layers + 1):
        partial = {**context, "C": context["C"][:layer]}
        literal = icql.literal_prompt_q(**partial, phi_query=query, discount=DISCOUNT)
        np.testing.assert_allclose(literal, query @ expected[layer], rtol=1e-10, atol=1e-11)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 10), d=st.integers(1, 6))
def test_dual_form_equals_reduced_form(seed, n, d):
    c = draw(seed, n, d)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(c[k]) for k in ("phi", "phi_next", "rewards", "mask", "C")]
        expected, _ = reduced(*arrays, DISCOUNT)
        np.testing.assert_allclose(dual(*arrays, DISCOUNT), expected, rtol=1e-9, atol=1e-12)


def test_batched_contexts_are_independent():
    contexts = [draw(i) for i in range(5)]
    c = contexts[0]["C"]
    stacked = [np.stack([x[k] for x in contexts]) for k in ("phi", "phi_next", "rewards", "mask")]
    with jax.enable_x64(True):
        for form in (lambda *a: reduced(*a)[0], dual):
            together = form(*map(jnp.asarray, stacked), jnp.asarray(c), DISCOUNT)
            for i, x in enumerate(contexts):
                alone = explicit_td(**{**x, "C": c}, discount=DISCOUNT)[-1]
                np.testing.assert_allclose(together[i], alone, rtol=1e-10, atol=1e-12)


def test_only_the_last_row_of_the_prompt_changes():
    c = draw(3)
    query = np.ones(5)
    with jax.enable_x64(True):
        args = [jnp.asarray(c[k]) for k in ("phi", "phi_next", "rewards", "mask")]
        z = literal_prompt(*args, jnp.asarray(query), jnp.asarray(c["C"]), DISCOUNT)
        z0 = literal_prompt(*args, jnp.asarray(query), jnp.asarray(c["C"][:0]), DISCOUNT)
    np.testing.assert_array_equal(z[:-1], z0[:-1])
    assert not np.allclose(z[-1], z0[-1])


def test_many_layers_converge_to_lstd():
    """The fixed point of the recursion is the LSTD solution Φᵀ(Φ − γΦ')w = Φᵀr of the context."""
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(60, 4))
    phi_next = 0.5 * phi + 0.1 * rng.normal(size=(60, 4))
    rewards, mask = rng.normal(size=60), (rng.random(60) > 0.1).astype(float)
    lstd = np.linalg.solve(phi.T @ (phi - DISCOUNT * mask[:, None] * phi_next), phi.T @ rewards)
    C = np.tile(0.5 * np.eye(4), (400, 1, 1))
    weights = icql.local_weights(phi, phi_next, rewards, C, discount=DISCOUNT, mask=mask)
    np.testing.assert_allclose(weights[-1], lstd, rtol=1e-9)
    errors = np.linalg.norm(np.asarray(weights) - lstd, axis=1)
    assert errors[50] < 1e-2 * errors[0]


@pytest.mark.parametrize("argument", ["phi", "phi_next", "rewards", "C"])
def test_gradients_by_finite_differences(argument):
    c = draw(11, n=4, d=3, layers=3)
    direction = np.random.default_rng(5).normal(size=c[argument].shape)

    def value(t: float) -> jax.Array:
        moved = {k: jnp.asarray(v) for k, v in c.items()}
        moved[argument] = moved[argument] + t * direction
        w, _ = reduced(
            moved["phi"], moved["phi_next"], moved["rewards"], moved["mask"], moved["C"], DISCOUNT
        )
        return (w**2).sum() + w.sum()

    with jax.enable_x64(True):
        h = 1e-5
        numeric = float(value(h) - value(-h)) / (2 * h)
        exact = float(jax.grad(value)(0.0))
    assert abs(exact) > 1e-3
    np.testing.assert_allclose(exact, numeric, rtol=1e-6)


def test_a_terminal_transition_does_not_see_its_successor():
    c = draw(1)
    c["mask"] = np.zeros(7)
    other = {**c, "phi_next": c["phi_next"] + 100}
    np.testing.assert_array_equal(
        icql.local_weights(**c, discount=DISCOUNT), icql.local_weights(**other, discount=DISCOUNT)
    )


def test_shapes_that_do_not_fit_are_named():
    c = draw(0)
    with pytest.raises(icql.UserError, match="rewards"):
        icql.local_weights(**{**c, "rewards": c["rewards"][:3]}, discount=0.9)
    with pytest.raises(icql.UserError, match="C"):
        icql.local_weights(**{**c, "C": c["C"][:, :2]}, discount=0.9)


@pytest.mark.parametrize("name", ["linear", "mlp", "softmax"])
def test_modules_share_one_interface(name):
    b, n, d = 6, 5, 4
    key = jax.random.key(0)
    module = {
        "linear": lambda: LinearTransformer(3, d, 1.0),
        "mlp": lambda: LinearMLP(n, d, 16, key=key),
        "softmax": lambda: SoftmaxTransformer(d, layers=2, width=16, heads=4, key=key),
    }[name]()
    phi, phi_next, query = (
        jax.random.normal(k, s)
        for k, s in zip(jax.random.split(key, 3), [(b, n, d), (b, n, d), (b, d)], strict=True)
    )
    r, mask = jnp.ones((b, n)), jnp.ones((b, n))
    memory = module.read(phi, phi_next, r, mask, DISCOUNT)
    one = module.answer(memory, query)
    assert one.shape == (b,)
    several = module.answer(memory, jnp.stack([query, 2 * query]))
    assert several.shape == (2, b)
    np.testing.assert_allclose(several[0], one, rtol=1e-4, atol=1e-6)
    changed = module.answer(module.read(phi, phi_next, 2 * r, mask, DISCOUNT), query)
    assert not np.allclose(changed, one)
    # a terminal transition hides its successor from every module
    hidden = module.read(phi, phi_next, r, 0 * mask, DISCOUNT)
    also = module.read(phi, phi_next + 9, r, 0 * mask, DISCOUNT)
    np.testing.assert_array_equal(hidden, also)


# --- what the paper does not have: a learned w_0, a bound on C, another start ---------------------


def module_of(c: dict, w0, **options) -> LinearTransformer:
    layers, d, _ = c["C"].shape
    fresh = LinearTransformer(layers, d, 1.0, **options)
    return eqx.tree_at(
        lambda m: (m.C, m.w0),
        fresh,
        (jnp.asarray(c["C"], jnp.float32), None if w0 is None else jnp.asarray(w0, jnp.float32)),
        is_leaf=lambda x: x is None,
    )


def single(c: dict) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(c[x], jnp.float32) for x in ("phi", "phi_next", "rewards", "mask"))


@pytest.mark.parametrize("form", ["reduced", "dual", "fused"])
def test_td_begins_at_a_learned_w0_in_every_form(form, monkeypatch):
    monkeypatch.setattr(td, "fused", partial(td.fused, interpret=True))
    c = draw(3)
    w0 = np.random.default_rng(1).normal(size=c["phi"].shape[1])
    w, n = w0, len(c["phi"])
    expected = []
    for c_l in c["C"]:  # the recursion itself, in float64
        delta = c["rewards"] + DISCOUNT * c["mask"] * (c["phi_next"] @ w) - c["phi"] @ w
        w = w + c_l @ c["phi"].T @ delta / n
        expected.append(w)
    module = module_of(c, w0, form=form, initial="learned")
    np.testing.assert_allclose(module.read(*single(c), DISCOUNT), w, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(module.trace(*single(c), DISCOUNT), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["reduced", "dual", "fused"])
def test_gradients_reach_w0_in_every_form(form, monkeypatch):
    monkeypatch.setattr(td, "fused", partial(td.fused, interpret=True))
    c = draw(4)
    zero = np.zeros(c["phi"].shape[1])

    def value(w0, form):
        start = eqx.tree_at(lambda m: m.w0, module_of(c, zero, form=form, initial="learned"), w0)
        return start.read(*single(c), DISCOUNT).sum()

    w0 = jnp.asarray(zero, jnp.float32)
    expected = jax.grad(value)(w0, "reduced")
    assert np.abs(expected).min() > 0
    np.testing.assert_allclose(jax.grad(value)(w0, form), expected, rtol=1e-4, atol=1e-5)


def test_without_rewards_only_a_learned_w0_has_a_value():
    c = draw(5)
    c["rewards"] = np.zeros_like(c["rewards"])
    w0 = np.ones(c["phi"].shape[1])
    assert not np.any(module_of(c, None).read(*single(c), DISCOUNT))
    assert np.any(module_of(c, w0, initial="learned").read(*single(c), DISCOUNT))


def test_the_spectral_bound_holds_and_leaves_what_is_within_it():
    rng = np.random.default_rng(0)
    c = rng.normal(size=(6, 5, 5)) * np.geomspace(1e-3, 30, 6)[:, None, None]
    found = np.asarray(bounded(jnp.asarray(c, jnp.float32), 0.5), np.float64)
    for before, after in zip(c, found, strict=True):
        holder = np.sqrt(np.linalg.norm(before, 1) * np.linalg.norm(before, np.inf))
        assert np.linalg.norm(after, 2) <= 0.5 * (1 + 1e-5)
        np.testing.assert_allclose(after, before * min(1, 0.5 / holder), rtol=1e-4)
    # a multiple of the identity reaches the bound exactly
    np.testing.assert_allclose(bounded(7 * jnp.eye(3), 0.5), 0.5 * np.eye(3), rtol=1e-6)


@pytest.mark.parametrize("form", ["reduced", "dual", "fused"])
def test_every_form_computes_with_the_bounded_c(form, monkeypatch):
    monkeypatch.setattr(td, "fused", partial(td.fused, interpret=True))
    c = draw(6)
    c["C"] = 20 * c["C"]
    module = module_of(c, None, form=form, spectral_bound=0.3)
    small = np.asarray(bounded(jnp.asarray(c["C"], jnp.float32), 0.3), np.float64)
    expected = icql.local_weights(**{**c, "C": small}, discount=DISCOUNT)
    np.testing.assert_allclose(module.read(*single(c), DISCOUNT), expected[-1], 1e-4, 1e-5)
    np.testing.assert_allclose(module.trace(*single(c), DISCOUNT), expected[1:], 1e-4, 1e-5)


def test_c_starts_as_a_xavier_matrix_of_gain_a_tenth_per_layer():
    layers, d = 5, 200
    c = LinearTransformer(layers, d, 1.0, c_start="xavier", key=jax.random.key(0)).C
    spread = 0.1 / layers * np.sqrt(2 / (d + d))
    assert float(c.std()) == pytest.approx(spread, rel=0.01)
    assert abs(float(c.mean())) < spread / 50
    assert not np.allclose(c[0], c[1])
    same = LinearTransformer(layers, d, 0.1 * d / layers).C  # the identity of that gain
    np.testing.assert_allclose(same[0], 0.1 / layers * np.eye(d), rtol=1e-6)
