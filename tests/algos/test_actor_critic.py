"""`bound_values`: what the next state is worth stays within what rewards can add up to."""

from __future__ import annotations

from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Batch, Spec, Transition
from icql.algos.iql import IQL
from icql.algos.presets import resolve_preset
from icql.algos.registry import make_algorithm
from icql.data.transitions import Transitions
from icql.settings.algorithms import IQLSettings
from icql.settings.change import override
from icql.training.device import Normaliser, reward_range

OBS, ACT, ROWS = 3, 2, 8
BOUNDED = [
    ("iql", {}),
    ("icql", {"value": "policy", "critic": "global"}),
    ("td3bc", {}),
    ("rebrac", {"critic_bc": 0.0}),
    ("cql", {"backup_entropy": False}),
    ("dmg", {}),
]


def batch(mask: float, rows: int) -> Batch:
    keys = jax.random.split(jax.random.key(0), 5)
    s, a, r, s_next, a_next = (
        jax.random.normal(key, (rows, *size))
        for key, size in zip(keys, [(OBS,), (ACT,), (), (OBS,), (ACT,)], strict=True)
    )
    return Batch(Transition(s, jnp.tanh(a), r, s_next, jnp.tanh(a_next), jnp.full(rows, mask)))


def critics_after_an_update(name: str, changes: dict, rewards: tuple[float, float], mask: float):
    small = {"hidden": (8,), "batch_size": ROWS, "bound_values": True, "discount": 0.9, **changes}
    settings = override(resolve_preset(name, "paper", None).settings, small)
    algorithm = make_algorithm(name, settings, Spec(OBS, ACT, 100, rewards))
    rows = ROWS * algorithm.needs.batches
    state, _ = algorithm.update(
        algorithm.init(jax.random.key(1)), batch(mask, rows), jax.random.key(2)
    )
    return jax.tree.leaves(state.q.model)


def test_bounds_by_hand():
    values, settings = jnp.array([-30.0, 1.0, 30.0]), IQLSettings(discount=0.9)
    bound = IQLSettings(discount=0.9, bound_values=True)

    def bounded(values, settings, spec):
        return IQL(settings, spec).bounded(values)

    for rewards, expected in {
        (-1.0, 2.0): [-10.0, 1.0, 20.0],
        (1.0, 2.0): [0.0, 1.0, 20.0],  # an episode may end
        (-2.0, -1.0): [-20.0, 0.0, 0.0],
    }.items():
        np.testing.assert_allclose(bounded(values, bound, Spec(1, 1, 1, rewards)), expected, 1e-6)
        np.testing.assert_array_equal(bounded(values, settings, Spec(1, 1, 1, rewards)), values)
    np.testing.assert_array_equal(bounded(values, bound, Spec(1, 1, 1)), values)  # range unknown


@pytest.mark.parametrize(("name", "changes"), BOUNDED, ids=[name for name, _ in BOUNDED])
def test_where_no_reward_is_possible_targets_are_as_at_the_end_of_an_episode(name, changes):
    found = critics_after_an_update(name, changes, (0.0, 0.0), mask=1.0)
    ended = critics_after_an_update(name, changes, (0.0, 0.0), mask=0.0)
    free = critics_after_an_update(name, changes, (-1e9, 1e9), mask=1.0)
    for mine, expected in zip(found, ended, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-7)
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(found, free, strict=True))


def test_rewards_are_measured_on_the_scale_that_is_trained_on():
    data = Mock(spec=Transitions, rewards=np.array([-1.0, 4.0], np.float32))

    normaliser = Normaliser(np.zeros(1, np.float32), np.ones(1, np.float32), 0.01)
    assert reward_range(data, normaliser) == pytest.approx((-0.01, 0.04))
