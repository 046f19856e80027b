"""ICQL-graph's update, against the Gaussian's density in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from icql.algos.base import Batch, Spec, Transition
from icql.algos.icql_graph import ICQLGraph
from icql.settings.algorithms import GraphSettings
from icql.settings.change import override

OBS, ACT, ROWS = 3, 2, 16


def test_a_step_is_down_the_negative_log_likelihood() -> None:
    settings = override(GraphSettings(), {"policy.hidden": (5,), "policy.learning_rate": 0.01})
    algorithm = ICQLGraph(settings, Spec(OBS, ACT, 1000))
    state = algorithm.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 2)
    s, a = (
        jax.random.normal(keys[0], (ROWS, OBS)),
        jnp.tanh(jax.random.normal(keys[1], (ROWS, ACT))),
    )
    nothing = jnp.zeros(ROWS)
    batch = Batch(Transition(s, a, nothing, s, a, nothing))
    after, metrics = algorithm.update(state, batch, jax.random.key(2))

    pi = state.pi.model
    first, last = ((np.asarray(x.weight), np.asarray(x.bias)) for x in pi.net.layers)
    hidden = np.maximum(np.asarray(s) @ first[0] + first[1], 0)
    centred = hidden - hidden.mean(1, keepdims=True)
    hidden = centred / np.sqrt(hidden.var(1, keepdims=True) + 1e-5)  # LayerNorm, fresh
    mean = np.tanh(hidden @ last[0] + last[1])
    z = (np.asarray(a) - mean) / 1.0  # log_std starts at 0
    density = -0.5 * z**2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(metrics["policy_loss"], -density.sum(1).mean(), rtol=1e-5)

    # Adam's first step is the learning rate against the sign of the slope
    slope = (1 - z**2).mean(0)  # of −log N by log σ
    np.testing.assert_allclose(after.pi.model.log_std, -0.01 * np.sign(slope), rtol=1e-3)
    through = ((mean - np.asarray(a)) * (1 - mean**2)).mean(0)  # by the last offset
    moved = np.asarray(after.pi.model.net.layers[1].bias) - last[1]
    np.testing.assert_allclose(moved, -0.01 * np.sign(through), rtol=1e-3)


def test_rewards_and_what_follows_do_not_reach_the_policy() -> None:
    """All that they say is in the weights by which rows are drawn."""
    settings = override(GraphSettings(), {"policy.hidden": (5,)})
    algorithm = ICQLGraph(settings, Spec(OBS, ACT, 1000))
    state, ones = algorithm.init(jax.random.key(0)), jnp.ones(ROWS)
    s, a = jnp.ones((ROWS, OBS)), jnp.zeros((ROWS, ACT))
    poor = Batch(Transition(s, a, 0 * ones, s, a, ones))
    rich = Batch(Transition(s, a, 9 * ones, -s, a + 0.5, 0 * ones))
    one, other = (algorithm.update(state, b, jax.random.key(2))[0] for b in (poor, rich))
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)
