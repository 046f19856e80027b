"""Algorithms that choose among discrete actions, given as one-hot rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Batch, Spec, Transition
from icql.algos.cql import CQLState
from icql.algos.presets import resolve_preset
from icql.algos.registry import algorithms, make_algorithm
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.losses import expected_soft_value
from icql.nn.policies import CategoricalPolicy
from icql.progress import Display
from icql.settings.change import override
from icql.settings.shared import PolicySettings
from icql.training.device import fit_normaliser, to_device
from icql.training.draws import alias_of
from icql.training.loop import Loop
from icql.training.trainer import compare, find_contexts

OBS, CHOICES, ROWS = 2, 3, 600
SMALL = {"batch_size": 64, "policy.hidden": (32,), "policy.learning_rate": 3e-3}
CRITICS = {"hidden": (32,), "critic_learning_rate": 3e-3}
LOCAL = {"context.k": 8, "local.layers": 4, "local.features": 8, "local.c_scale": 8.0}


@cache
def bandit() -> Transitions:
    """One-step episodes; which of three choices pays is written in the state.

    The behaviour takes that choice half of the time: less often than the other two together in
    places, so that cloning alone knows it barely.
    """
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, (ROWS, OBS)).astype(np.float32)
    taken = np.where(rng.random(ROWS) < 0.5, best(s), rng.integers(0, CHOICES, ROWS))
    rewards = (taken == best(s)).astype(np.float32)
    none = np.zeros(ROWS, np.float32)
    return Transitions(
        states=s,
        actions=np.eye(CHOICES, dtype=np.float32)[taken],
        rewards=rewards,
        next_states=s,
        next_actions=np.zeros((ROWS, CHOICES), np.float32),
        mask=none,
        episode=np.arange(ROWS, dtype=np.int32),
        step=np.zeros(ROWS, np.int32),
        info=DataInfo("bandit", episode_returns=tuple(rewards.tolist())),
    )


def best(s: np.ndarray) -> np.ndarray:
    return np.where(s[:, 0] > 0.2, 0, np.where(s[:, 1] > 0, 1, 2))


def made(name: str, changes: dict[str, Any], steps: int = 400) -> Any:
    settings = override(resolve_preset(name, "quick", None).settings, changes)
    return make_algorithm(name, settings, Spec(OBS, CHOICES, steps, discrete=True))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bc", {}),
        ("icql-graph", {"draw.beta": 3.0, "draw.trace": 1.0}),
        ("iql", CRITICS),
        ("icql", {**CRITICS, **LOCAL}),
        ("cql", {**CRITICS, "alpha": 0.1}),
    ],
)
def test_the_choice_that_pays_is_learned(name, changes):
    data, algorithm = bandit(), made(name, {**SMALL, **changes})
    neighbours = find_contexts(algorithm, data, Display(quiet=True))
    weighed = compare(algorithm.settings, data, Display(quiet=True), None)
    alias = None if weighed is None else alias_of(weighed.weights)
    fed = to_device(data, fit_normaliser(data, algorithm.settings.data), neighbours, alias=alias)
    loop = Loop(algorithm, fed, (0,))
    states, metrics = loop.advance(loop.init(), 0, 400)
    assert all(np.isfinite(value).all() for value in metrics.values())
    policy = algorithm.policy(jax.tree.map(lambda x: x[0], states))
    s = np.random.default_rng(1).uniform(-1, 1, (500, OBS)).astype(np.float32)
    a = np.asarray(policy(jnp.asarray(s)))
    assert set(np.unique(a)) <= {0.0, 1.0}
    assert (a.sum(1) == 1).all()
    assert (a.argmax(1) == best(s)).mean() > 0.85


def test_what_learns_real_numbers_refuses_choices():
    refused = [n for n, e in algorithms().items() if not e.discrete and n not in ("auto", "sac")]
    assert "td3bc" in refused
    for name in refused:
        with pytest.raises(UserError, match=r"are 3 choices.*Take one that can choose: icql, "):
            made(name, {})


def test_a_policy_over_choices_has_probabilities():
    policy = CategoricalPolicy(OBS, CHOICES, PolicySettings(hidden=(8,)), key=jax.random.key(0))
    s = 5 * jax.random.normal(jax.random.key(1), (4, OBS))
    logits = np.asarray(policy.net(s), np.float64)
    found = np.asarray(policy.log_probs(s))
    expected = np.log(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for i in range(CHOICES):
        one = jnp.tile(jnp.eye(CHOICES)[i], (4, 1))
        np.testing.assert_allclose(policy.log_prob(s, one), expected[:, i], rtol=1e-5)
    many = policy.sample(jnp.broadcast_to(s, (4000, 4, OBS)), key=jax.random.key(2))
    np.testing.assert_allclose(many.mean(0), np.exp(expected), atol=0.04)
    np.testing.assert_array_equal(policy(s).argmax(1), expected.argmax(1))


def test_the_expected_soft_value_by_hand():
    q = jnp.array([[[1.0, 5.0], [2.0, 0.0]], [[3.0, 4.0], [1.0, 6.0]]])  # critics, choices, batch
    p = np.array([[0.25, 0.75], [0.5, 0.5]])
    expected = [
        0.25 * (1 - 2 * np.log(0.25)) + 0.75 * (1 - 2 * np.log(0.75)),
        0.5 * (4 - 2 * np.log(0.5)) + 0.5 * (0 - 2 * np.log(0.5)),
    ]
    found = expected_soft_value(q, jnp.log(jnp.asarray(p, jnp.float32)), 2.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_cql_sums_over_every_choice_exactly():
    """Its gap and TD error of a batch, from values of each choice in NumPy."""
    algorithm = made("cql", {**SMALL, **CRITICS, "backup_entropy": True, "discount": 0.9})
    state: CQLState = algorithm.init(jax.random.key(0))
    rng = np.random.default_rng(3)
    s, after = (rng.normal(size=(5, OBS)).astype(np.float32) for _ in range(2))
    taken = rng.integers(0, CHOICES, 5)
    r, mask = rng.normal(size=5).astype(np.float32), np.array([1, 1, 0, 1, 1], np.float32)
    a = np.eye(CHOICES, dtype=np.float32)[taken]
    query = Transition(*map(jnp.asarray, (s, a, r, after, a, mask)))
    _, metrics = eqx.filter_jit(algorithm.update)(state, Batch(query), jax.random.key(1))

    def values(states: np.ndarray) -> np.ndarray:
        each = [np.tile(np.eye(CHOICES, dtype=np.float32)[i], (5, 1)) for i in range(CHOICES)]
        found = [state.q.model(jnp.asarray(states), jnp.asarray(x)) for x in each]
        return np.stack(found, -1).astype(np.float64)  # critics, batch, choices

    log_p = np.asarray(state.pi.model.log_probs(jnp.asarray(after)), np.float64)
    v_next = (np.exp(log_p) * (values(after).min(0) - log_p)).sum(1)  # the temperature begins as 1
    y, here = r + 0.9 * mask * v_next, values(s)
    logged = here[:, np.arange(5), taken]
    gap = np.log(np.exp(here).sum(-1)) - logged
    np.testing.assert_allclose(metrics["gap"], gap.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["td_error"], np.abs(y - logged).mean(), rtol=1e-4)
