"""Targets of fitted Q evaluation are held in the range of what was logged."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chain
from icql.algos.optimise import start
from icql.judging.fitting import Drawn
from icql.judging.fqe import Evaluator, FQEUpdate, _Shared, fit_q
from icql.judging.log import Log
from icql.nn.mlp import MLP
from icql.settings.judge import JudgeSettings

ROWS, LIMITS = 8, (-1.0, 2.0)
SMALL = JudgeSettings(updates=5, discount=chain.GAMMA, hidden=(8,), batch_size=32)


@pytest.fixture(scope="module")
def shared() -> _Shared:
    keys = jax.random.split(jax.random.key(0), 5)
    return _Shared(
        pairs=jax.random.normal(keys[0], (ROWS, 3)),
        rewards=jax.random.normal(keys[1], (ROWS,)),
        ahead=jnp.full(ROWS, 0.9),
        next_states=jax.random.normal(keys[2], (ROWS, 2)),
        next_actions=jax.random.normal(keys[3], (1, ROWS, 1)),
        limits=jnp.asarray(LIMITS),
    )


def stepped(shared: _Shared, said: float) -> list[np.ndarray]:
    """Parameters after one step towards a target network that says the same everywhere."""
    update = FQEUpdate(learning_rate=0.1, target_rate=0.5, updates=10)
    net = MLP(3, (4,), 1, key=jax.random.key(1))
    last = net.layers[-1]
    constant = eqx.tree_at(
        lambda n: (n.layers[-1].weight, n.layers[-1].bias),
        net,
        (jnp.zeros_like(last.weight), jnp.full_like(last.bias, said)),
    )
    state = Evaluator(start(net, update.optimiser), constant)
    after = update(state, (jnp.asarray(0), shared), jnp.arange(ROWS))
    return [np.asarray(x) for x in jax.tree.leaves(eqx.filter(after.online.model, eqx.is_array))]


@pytest.mark.parametrize(("wild", "held"), [(50.0, LIMITS[1]), (-50.0, LIMITS[0])])
def test_a_value_beyond_the_log_counts_as_the_nearest_in_it(shared, wild, held):
    for one, other in zip(stepped(shared, wild), stepped(shared, held), strict=True):
        np.testing.assert_array_equal(one, other)
    inside = stepped(shared, 0.5)
    assert any((a != b).any() for a, b in zip(inside, stepped(shared, held), strict=True))


def test_limits_are_the_least_and_the_largest_logged_outcome():
    log = Log.of(chain.log(episodes=30, mean=0.5))
    rows = np.arange(len(log))
    there = np.zeros((1, *log.data.actions.shape), np.float32)
    q = fit_q(log, there, Drawn.of(log, rows, SMALL.seeds, 0), SMALL, lambda done, q: True)
    tails = float(log.data.rewards.mean()) / (1 - chain.GAMMA)
    logged = log.returns_to_go(chain.GAMMA, tails)
    assert q.limits == pytest.approx((logged.min(), logged.max()))
    wild = np.array([-1e9, logged.mean(), 1e9])
    np.testing.assert_allclose(q.held(wild), [logged.min(), logged.mean(), logged.max()])
