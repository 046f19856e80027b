"""Optimisers of policies and critics, against Adam's and AdamW's recursions in NumPy."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.actor_critic import critic_optimiser, policy_optimiser
from icql.algos.base import Spec
from icql.algos.optimise import descend, start
from icql.nn.policies import GaussianPolicy
from icql.settings.algorithms import IQLSettings, ReBRACSettings
from icql.settings.shared import ActorSettings, PolicySettings

STEPS = 5


def by_hand(
    values: list[Any], slopes: list[Any], rate: float, decay: float, cosine: bool, stacked: bool
) -> Any:
    """AdamW with decay of matrices alone; the slope of step t is t times the first."""
    moved = []
    for x, g in zip(values, slopes, strict=True):
        x, m, v = x.astype(np.float64), np.zeros_like(g), np.zeros_like(g)
        for t in range(1, STEPS + 1):
            m, v = 0.9 * m + 0.1 * t * g, 0.999 * v + 0.001 * (t * g) ** 2
            step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            pace = rate * (0.5 * (1 + np.cos(np.pi * (t - 1) / STEPS)) if cosine else 1.0)
            x = x - pace * (step + (decay * x if x.ndim - stacked > 1 else 0))
        moved.append(x)
    return moved


@pytest.mark.parametrize("networks", [1, 2])
@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_of_a_policy_are_those_of_adamw(decay: float, cosine: bool, networks: int) -> None:
    chosen = PolicySettings(
        hidden=(4,), networks=networks, layer_norm=True, learning_rate=0.05, weight_decay=decay,
        cosine=cosine,
    )  # fmt: skip
    optimiser = policy_optimiser(ActorSettings(policy=chosen), Spec(3, 2, STEPS))
    policy = GaussianPolicy(3, 2, chosen, key=jax.random.key(0))
    begin = jax.tree.leaves(eqx.filter(policy, eqx.is_array))
    keys = jax.random.split(jax.random.key(1), len(begin))
    slopes = [jax.random.normal(k, x.shape) for k, x in zip(keys, begin, strict=True)]
    stacked = networks > 1
    assert {x.ndim for x in begin} == (
        {1, 2, 3} if stacked else {1, 2}
    )  # log_std, offsets, scales of LayerNorm; matrices
    state = start(policy, optimiser)
    for t in range(1, STEPS + 1):

        def loss(policy: Any, t: int = t) -> Any:
            leaves = jax.tree.leaves(eqx.filter(policy, eqx.is_array))
            return jnp.float32(t) * sum(
                (x * g).sum() for x, g in zip(leaves, slopes, strict=True)
            ), 0

        state, _, _ = descend(state, optimiser, loss)
    found = jax.tree.leaves(eqx.filter(state.model, eqx.is_array))
    as_doubles = [[np.asarray(x, np.float64) for x in arrays] for arrays in (begin, slopes)]
    expected = by_hand(*as_doubles, 0.05, decay, cosine, stacked)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_cosine_ends_in_standstill() -> None:
    chosen = PolicySettings(hidden=(4,), learning_rate=0.05, weight_decay=0.3, cosine=True)
    optimiser = policy_optimiser(ActorSettings(policy=chosen), Spec(3, 2, 2))
    state = start(GaussianPolicy(3, 2, chosen, key=jax.random.key(0)), optimiser)

    def loss(policy: Any) -> Any:
        return sum(x.sum() for x in jax.tree.leaves(eqx.filter(policy, eqx.is_array))), 0

    for _ in range(2):
        state, _, _ = descend(state, optimiser, loss)
    after, _, _ = descend(state, optimiser, loss)
    for mine, before in zip(
        jax.tree.leaves(after.model), jax.tree.leaves(state.model), strict=True
    ):
        np.testing.assert_array_equal(mine, before)


@pytest.mark.parametrize(("kind", "delay"), [(ReBRACSettings, 2), (IQLSettings, 1)])
def test_a_cosine_of_critics_ends_with_the_last_of_their_steps(kind: Any, delay: int) -> None:
    settings = kind(critic_cosine=True, critic_learning_rate=0.1)
    optimiser = critic_optimiser(settings, Spec(3, 2, 2))
    state = start(jnp.ones(3), optimiser)
    moved = []
    for _ in range(2 * delay + 1):
        after, _, _ = descend(state, optimiser, lambda x: (x.sum(), 0))
        moved.append(float(state.model[0] - after.model[0]))
        state = after
    pace = 0.1 * 0.5 * (1 + np.cos(np.pi * np.arange(2 * delay + 1) / (2 * delay)))
    np.testing.assert_allclose(moved, pace, rtol=1e-4, atol=1e-6)  # Adam's steps on a plane
    assert settings.scheduled_by == "critic_cosine"
