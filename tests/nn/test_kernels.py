"""GPU kernels, run in Pallas' interpreter, against the plain forms that run elsewhere."""

from __future__ import annotations

import re
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from icql.algos.base import Transition
from icql.nn import backend
from icql.nn.critics import local_critics
from icql.nn.in_context import reduced
from icql.nn.kernels import elimination, features, norm
from icql.nn.kernels.norm import norm_dropout
from icql.nn.kernels.td import fused
from icql.nn.mlp import MLP, LayerNorm, dropout, in_precision
from icql.nn.ridge import eliminated, solve
from icql.settings.shared import LocalSettings


def random_words(key: jax.Array) -> jax.Array:
    return jax.random.bits(key, (2,), jnp.uint32)


def context(lead: tuple[int, ...], n: int, d: int, layers: int) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(n + d), 5)
    return (
        jnp.tanh(jax.random.normal(keys[0], (*lead, n, d))),
        jnp.tanh(jax.random.normal(keys[1], (*lead, n, d))),
        jax.random.normal(keys[2], (*lead, n)),
        (jax.random.uniform(keys[3], (*lead, n)) > 0.3).astype(jnp.float32),
        jax.random.normal(keys[4], (layers, d, d)) * 0.2,
    )


@pytest.mark.parametrize(
    ("lead", "n", "d", "layers"), [((3,), 5, 6, 4), ((2, 2), 20, 16, 3), ((1,), 1, 1, 1)]
)
def test_the_td_kernel_has_the_values_and_gradients_of_the_reduced_form(lead, n, d, layers):
    inputs = context(lead, n, d, layers)
    direction = jax.random.normal(jax.random.key(7), (*lead, d))

    def plain(*x):
        return (reduced(*x, 0.97)[0] * direction).sum()

    def kernel(*x):
        return (fused(*x, 0.97, interpret=True) * direction).sum()

    everything = tuple(range(5))
    value, gradients = jax.value_and_grad(plain, everything)(*inputs)
    found, found_gradients = jax.value_and_grad(kernel, everything)(*inputs)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    for mine, expected in zip(found_gradients, gradients, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-6)


def test_the_td_kernel_serves_several_critics_each_with_its_own_c():
    *shared, c = context((4,), 3, 4, 2)
    both = jnp.stack([c, 2 * c])
    several = jax.vmap(lambda c: fused(*shared, c, 0.9, interpret=True))(both)
    for mine, its_c in zip(several, both, strict=True):
        np.testing.assert_allclose(mine, reduced(*shared, its_c, 0.9)[0], rtol=1e-5, atol=1e-6)


def systems(*shape: int) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(sum(shape)), 2)
    half = jax.random.normal(keys[0], (*shape, shape[-1]))
    return half @ half.mT / shape[-1] + jnp.eye(shape[-1]), jax.random.normal(keys[1], shape)


@pytest.mark.parametrize("shape", [(3, 1), (2, 4, 20), (2, 32)])
def test_the_elimination_kernel_solves_as_the_plain_loop_does(shape):
    k, b = systems(*shape)
    found = elimination.eliminated(k, b, interpret=True)
    np.testing.assert_allclose(found, eliminated(k, b), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((k @ found[..., None])[..., 0], b, rtol=1e-4, atol=1e-5)


def test_the_ridge_solve_on_a_gpu_has_the_values_and_gradients_of_that_elsewhere(monkeypatch):
    k, b = systems(2, 3, 20)

    def value(k, b):
        both = jax.vmap(jax.vmap(solve))(k, b), solve(k[0], b[1])  # of critics, and as they are
        return sum((x**2).sum() for x in both)

    expected, gradients = jax.value_and_grad(value, (0, 1))(k, b)
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    calls = []

    def kernel(k, b):
        calls.append(b.shape)
        return real(k, b, interpret=True)

    real = elimination.eliminated
    monkeypatch.setattr(elimination, "eliminated", kernel)
    found, found_gradients = jax.value_and_grad(value, (0, 1))(k, b)
    assert calls
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for mine, theirs in zip(found_gradients, gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


WIDE = (7, 1000)  # takes more than one program, with fewer rows each


@pytest.mark.parametrize(
    ("shape", "rate"), [((37, 12), 0.1), ((2, 3, 32), 0.0), ((16, 8), 0.5), (WIDE, 0.1)]
)
def test_the_norm_kernel_has_the_values_and_gradients_of_the_plain_block(shape, rate):
    keys = jax.random.split(jax.random.key(1), 6)
    size = shape[-1]
    inputs = (
        jax.random.normal(keys[0], shape),
        *(jax.random.normal(keys[i], (size,)) for i in (1, 2, 3)),
    )
    direction = jax.random.normal(keys[4], shape)
    words = random_words(keys[5]) if rate else None

    def plain(x, bias, scale, shift):
        norm = eqx.tree_at(lambda n: (n.scale, n.shift), LayerNorm(size), (scale, shift))
        y = norm(jax.nn.relu(x + bias))
        return ((dropout(y, rate, words) if rate else y) * direction).sum()

    def kernel(x, bias, scale, shift):
        y = norm_dropout(x, bias, scale, shift, words, rate, interpret=True)
        return (y * direction).sum()

    everything = (0, 1, 2, 3)
    value, gradients = jax.value_and_grad(plain, everything)(*inputs)
    found, found_gradients = jax.value_and_grad(kernel, everything)(*inputs)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    for mine, expected in zip(found_gradients, gradients, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_network_computes_the_same_with_and_without_its_kernel(monkeypatch, precision):
    net = MLP(5, (16, 12), 4, key=jax.random.key(0), layer_norm=True, dropout=0.2)
    x, key = jax.random.normal(jax.random.key(1), (21, 5)), jax.random.key(2)
    plain, plain_dropped = net(x), net(x, key=key)
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    monkeypatch.setattr(norm, "norm_dropout", partial(norm_dropout, interpret=True))
    tolerance = 1e-5 if precision == "float32" else 0.03
    net = in_precision(net, precision)
    np.testing.assert_allclose(net(x), plain, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(net(x, key=key), plain_dropped, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("inputs", "hidden", "rows"), [(5, (16, 32), 70), (23, (256, 256), 9)])
def test_phi_in_one_kernel_is_as_near_to_float32_as_layer_by_layer(
    monkeypatch, inputs, hidden, rows
):
    fresh = MLP(inputs, hidden, 16, key=jax.random.key(0), layer_norm=True, final_activation="tanh")
    net = jax.tree.map(lambda leaf: leaf + 0.1, fresh)  # biases and shifts too
    x = jax.random.normal(jax.random.key(1), (2, rows, inputs))
    exact = net(x)
    layers = [
        (layer.weight, layer.bias, norm.scale, norm.shift)
        for layer, norm in zip(net.layers[:-1], net.norms, strict=True)
    ]
    last = net.layers[-1]
    assert features.fits(inputs, (*hidden, 16))
    found = features.forward(x, layers, (last.weight, last.bias), "tanh", interpret=True)
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    monkeypatch.setattr(norm, "norm_dropout", partial(norm_dropout, interpret=True))
    by_layer = in_precision(net, "bfloat16").by_layer(x)
    assert jnp.abs(found - exact).mean() <= jnp.abs(by_layer - exact).mean()


def test_all_kernels_can_be_lowered_for_a_gpu():
    """As far as a machine without one can tell: what Triton lacks is found here."""
    several, words = context((3,), 20, 64, 20), random_words(jax.random.key(0))
    layers = [(jnp.ones((23, 64)), *[jnp.ones(64)] * 3), (jnp.ones((64, 64)), *[jnp.ones(64)] * 3)]
    last, x, vectors = (jnp.ones((64, 16)), jnp.ones(16)), jnp.ones((70, 23)), [jnp.ones(23)] * 3

    def both_ways(loss):
        return lambda *arguments: jax.value_and_grad(loss, tuple(range(len(arguments))))(*arguments)

    programs = [
        (both_ways(lambda *c: fused(*c, 0.99).sum()), several, 2),
        (both_ways(lambda x, *v: norm_dropout(x, *v, words, 0.1).sum()), (x, *vectors), 2),
        (lambda x: features.forward(x, layers, last, "tanh"), (x,), 1),
        (elimination.eliminated, systems(2, 3, 20), 1),
    ]
    gpu = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    for program, arguments, kernels in programs:
        with use_abstract_mesh(AbstractMesh((), (), abstract_device=gpu)):  # jax 0.12 asks for one
            lowered = jax.jit(program).trace(*arguments).lower(lowering_platforms=("cuda",))
        assert len(re.findall(r"@\S*triton", lowered.as_text())) == kernels


def test_phi_in_one_kernel_has_the_gradient_of_its_layers(monkeypatch):
    net = MLP(4, (16, 16), 16, key=jax.random.key(0), layer_norm=True, final_activation="tanh")
    x = jax.random.normal(jax.random.key(1), (11, 4))
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    monkeypatch.setattr(norm, "norm_dropout", partial(norm_dropout, interpret=True))
    whole = partial(features.forward, interpret=True)
    monkeypatch.setattr(features, "forward", whole)
    net = in_precision(net, "bfloat16")
    gradient = eqx.filter_grad(lambda net: net(x).sum())(net)
    expected = eqx.filter_grad(lambda net: net.by_layer(x).sum())(net)
    difference = net(x) - net.by_layer(x)
    for mine, its in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert jnp.abs(difference).max() > 0  # without a gradient it is the kernel


@pytest.mark.parametrize(
    ("inputs", "widths"), [(200, (16, 16)), (5, (16, 12)), (5, (1024, 16)), (5, (8, 16))]
)
def test_sizes_that_the_kernel_of_phi_cannot_take_are_left_to_the_layers(inputs, widths):
    assert not features.fits(inputs, widths)


def test_dropout_numbers_are_unrelated_between_neighbours_and_between_keys():
    ones = jnp.ones((400, 256))
    words = [random_words(jax.random.key(k)) for k in (0, 1)]
    first, second = (np.asarray(dropout(ones, 0.5, w)) > 0 for w in words)
    pairs = [
        (first[:, 1:], first[:, :-1]),
        (first[1:], first[:-1]),
        (first, second),
        (first[:, ::2], first[:, 1::2]),
    ]
    for a, b in pairs:
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(a.size)


def critics(**local):
    return local_critics(
        3,
        2,
        (32, 32),
        2,
        local=LocalSettings(layers=6, features=16, c_scale=4.0, form="reduced", **local),
        context=10,
        discount=0.99,
        key=jax.random.key(0),
    )


def queries() -> tuple[jax.Array, jax.Array, Transition]:
    keys = jax.random.split(jax.random.key(1), 7)
    normal = jax.random.normal
    return (
        normal(keys[5], (9, 3)),
        normal(keys[6], (9, 2)),
        Transition(
            normal(keys[0], (9, 10, 3)),
            normal(keys[1], (9, 10, 2)),
            normal(keys[2], (9, 10)),
            normal(keys[3], (9, 10, 3)),
            normal(keys[4], (9, 10, 2)),
            jnp.ones((9, 10)),
        ),
    )


@pytest.mark.parametrize("context_dropout", [True, False])
def test_one_pass_over_context_and_query_equals_two(monkeypatch, context_dropout):
    s, a, around = queries()
    q = critics(context_dropout=context_dropout)
    monkeypatch.setattr(backend, "context_with_query", lambda: True)
    np.testing.assert_allclose(q(s, a, around), q.at(s, around)(a), rtol=1e-5, atol=1e-6)
    dropped = q(s, a, around, key=jax.random.key(3))
    assert not np.allclose(dropped, q(s, a, around))
    np.testing.assert_array_equal(dropped, q(s, a, around, key=jax.random.key(3)))


def test_critics_side_by_side_equal_critics_one_after_the_other(monkeypatch):
    s, a, around = queries()
    q, key = critics(context_dropout=False), jax.random.key(5)

    def values(q):
        both = q(s, a, around), q(s, a, around, key=key), q.at(s, around, key=key)(a, key=key)
        return jnp.stack(both)

    def gradient(q):
        return jax.tree.leaves(eqx.filter_grad(lambda q: (values(q) ** 2).mean())(q))

    in_turn, slopes = values(q), gradient(q)  # as on a CPU
    monkeypatch.setattr(backend, "critics_at_once", lambda: True)
    monkeypatch.setattr(backend, "context_with_query", lambda: True)
    np.testing.assert_allclose(values(q), in_turn, rtol=1e-5, atol=1e-6)
    for mine, expected in zip(gradient(q), slopes, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-6)


def test_phi_in_one_kernel_serves_several_networks():
    x = jax.random.normal(jax.random.key(1), (70, 5))
    keys = jax.random.split(jax.random.key(2), 6)
    w, v = (
        jax.random.normal(k, (2, *size))
        for k, size in zip(keys[:2], [(5, 16), (16, 16)], strict=True)
    )
    b, scale, shift, c = (jax.random.normal(k, (2, 16)) for k in keys[2:])

    def network(w, b, scale, shift, v, c):
        return features.forward(x, [(w, b, scale, shift)], (v, c), "none", interpret=True)

    both = jax.vmap(network)(w, b, scale, shift, v, c)
    for i in range(2):
        alone = network(*(p[i] for p in (w, b, scale, shift, v, c)))
        np.testing.assert_allclose(both[i], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gpu", [False, True])
def test_bfloat16_changes_values_and_gradients_by_little(monkeypatch, gpu):
    """The bound of docs/performance.md: root mean square, 2 % of values, 5 % of gradients."""
    (s, a, around), q = queries(), critics()

    def value_and_slope(precision):
        own = in_precision(q, precision)
        gradient = eqx.filter_grad(lambda q: (q(s, a, around) ** 2).mean())(own)
        return own(s, a, around), jnp.concatenate([x.ravel() for x in jax.tree.leaves(gradient)])

    expected, slope = value_and_slope("float32")
    monkeypatch.setattr(backend, "on_gpu", lambda: gpu)
    monkeypatch.setattr(norm, "norm_dropout", partial(norm_dropout, interpret=True))
    monkeypatch.setattr(features, "forward", partial(features.forward, interpret=True))
    found, other = value_and_slope("bfloat16")
    assert found.dtype == other.dtype == jnp.float32
    assert 0 < np.sqrt(np.mean((found - expected) ** 2)) < 0.02 * np.std(expected)
    assert 0 < float(jnp.linalg.norm(slope - other) / jnp.linalg.norm(slope)) < 0.05
