"""What critic-based methods share: bounds on values, rewards as trained on, signs of losses."""

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
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.settings.algorithms import IQLSettings
from icql.settings.change import override
from icql.settings.contexts import DataSettings
from icql.training.device import Normaliser, fit_normaliser, reward_range, to_device

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
    small = {
        "hidden": (8,),
        "policy.hidden": (8,),
        "batch_size": ROWS,
        "bound_values": True,
        "discount": 0.9,
        **changes,
    }
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
    shifted = Normaliser(np.zeros(1, np.float32), np.ones(1, np.float32), 0.01, -0.04)
    assert reward_range(data, shifted) == pytest.approx((-0.05, 0.0))
    # what values are possible follows: nothing positive can be earned any more
    algorithm = IQL(IQLSettings(discount=0.9), Spec(1, 1, 1, reward_range(data, shifted)))
    assert algorithm.value_range() == pytest.approx((-0.5, 0.0))


def test_a_shift_is_added_to_scaled_rewards_and_to_nothing_else():
    rng = np.random.default_rng(0)
    data = Transitions(
        states=rng.normal(size=(6, 2)).astype(np.float32),
        actions=rng.uniform(-0.9, 0.9, (6, 1)).astype(np.float32),
        rewards=np.arange(6, dtype=np.float32),
        next_states=rng.normal(size=(6, 2)).astype(np.float32),
        next_actions=rng.uniform(-0.9, 0.9, (6, 1)).astype(np.float32),
        mask=np.ones(6, np.float32),
        episode=np.zeros(6, np.int32),
        step=np.arange(6, dtype=np.int32),
        info=DataInfo("six", episode_returns=(10.0, 30.0)),
    )
    plain = to_device(data, fit_normaliser(data, DataSettings(reward_scale=0.5)), None)
    settings = DataSettings(reward_scale=0.5, reward_shift=-4.0)
    shifted = to_device(data, fit_normaliser(data, settings), None)
    np.testing.assert_allclose(shifted.take(jnp.arange(6)).r, 0.5 * np.arange(6) - 4)
    difference = np.asarray(shifted.rows - plain.rows)
    assert np.flatnonzero(difference.any(0)).tolist() == [3]  # s, s, a, then r
    # the shift is not scaled, whatever scales the rewards
    settings = DataSettings(normalise_returns=True, reward_shift=1.0)
    scaled = to_device(data, fit_normaliser(data, settings), None)
    np.testing.assert_allclose(scaled.take(jnp.arange(6)).r, 50 * np.arange(6) + 1)


@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_the_printed_sign_of_the_expectile_is_that_of_the_opposite_level(tau):
    """ρ_τ(Q̂ − y) = ρ_{1−τ}(y − Q̂): the same updates to the bit, and others unless τ = 0.5."""

    def trained(**changes):
        small = {
            "hidden": (8,),
            "policy.hidden": (8,),
            "critic": "global",
            "value": "policy",
            **changes,
        }
        settings = override(IQLSettings(), small)
        algorithm = make_algorithm("iql", settings, Spec(OBS, ACT, 100))
        state = algorithm.init(jax.random.key(1))
        state, metrics = algorithm.update(state, batch(1.0, ROWS), jax.random.key(2))
        return np.concatenate([x.ravel() for x in jax.tree.leaves(state.q.model)]), metrics

    printed, metrics = trained(expectile=tau, expectile_sign="q-y")
    opposite, same = trained(expectile=1 - tau)
    np.testing.assert_allclose(printed, opposite, rtol=1e-6)
    assert float(metrics["critic_loss"]) == pytest.approx(float(same["critic_loss"]), rel=1e-6)
    usual, _ = trained(expectile=tau)
    assert np.allclose(printed, usual, atol=1e-7) is (tau == 0.5)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"local.module": "mlp", "local.initial": "learned"}, "local.initial"),
        ({"local.module": "softmax", "local.spectral_bound": 1.0}, "local.spectral_bound"),
        ({"local.module": "ridge", "local.c_start": "xavier"}, "local.c_start"),
        ({"local.module": "ridge", "local.spectral_bound": 1.0}, "local.spectral_bound"),
        ({"local.ridge": 0.0}, "local.ridge"),
        ({"local.normalise": "batch"}, "local.normalise"),
        ({"value": "expectile", "expectile_sign": "q-y"}, "expectile_sign"),
    ],
)
def test_options_that_would_do_nothing_are_refused(changes, where):
    with pytest.raises(UserError, match=r"must|belongs|reading B") as refused:
        override(IQLSettings(), changes)
    assert refused.value.where == where


def test_settings_that_need_each_other_are_changed_together():
    """In either order: a section is checked once all of its changes are in."""
    ridge = override(IQLSettings(), {"local.module": "ridge", "local.initial": "learned"})
    assert ridge.local.initial == "learned"  # which a ridge's prior is anyway
    changes = {"local.spectral_bound": 1.0, "local.module": "linear"}
    mlp = override(IQLSettings(), {"local.module": "mlp"})
    assert override(mlp, changes).local.spectral_bound == 1
