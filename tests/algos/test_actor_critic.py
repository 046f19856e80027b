"""What critic-based methods share: bounds on values, rewards as trained on, signs of losses."""

from __future__ import annotations

from unittest.mock import Mock

import equinox as eqx
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
from icql.training.device import (
    DeviceData,
    Normaliser,
    fit_normaliser,
    reward_range,
    to_device,
)
from icql.training.draws import alias_of
from icql.training.stream import rows_per_update
from icql.training.trainer import uniform_rows

OBS, ACT, ROWS = 3, 2, 8
BOUNDED = [
    ("iql", {}),
    ("icql", {"value": "policy", "critic": "global"}),
    ("td3bc", {}),
    ("rebrac", {"critic_bc": 0.0}),
    ("cql", {"backup_entropy": False, "init": "orthogonal"}),  # its own start has values near 0
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
        ({"local.module": "mlp", "local.kernel": 1.0}, "local.kernel"),
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


@pytest.mark.parametrize(("form", "read"), [("paper", "context"), ("original", "context_next")])
def test_td3bc_as_the_papers_appendix_prints_it_values_the_next_state_by_the_context_of_this_one(
    form, read
):
    algorithm = delayed("icql-td3bc", form=form, **{"context.k": 3, "local.features": 4})
    rows = algorithm.needs.batches * ROWS
    around = jax.tree.map(
        lambda x: jnp.stack([jnp.roll(x, i, 0) for i in range(3)], 1), batch(1.0, rows).query
    )
    state, key = algorithm.init(jax.random.key(1)), jax.random.key(2)

    def critics(**changes):
        both = {"context": around, "context_next": around, **changes}
        given = eqx.tree_at(
            lambda b: (b.context, b.context_next),
            batch(1.0, rows),
            (both["context"], both["context_next"]),
            is_leaf=lambda x: x is None,
        )
        q = algorithm.update(state, given, key)[0].q.model
        return np.concatenate([x.ravel() for x in jax.tree.leaves(q)])

    other = eqx.tree_at(lambda c: c.r, around, around.r + 1)
    moved = np.abs(critics(context_next=other) - critics()).max()
    assert bool(moved > 0) is (read == "context_next")


# --- Rows of the policy's own, drawn by weight ------------------------------------------------

DELAYED = ("td3bc", "rebrac", "dmg")
BY_RANK = {"draw.by": "rank", "draw.rows": "policy"}


def delayed(name: str, **changes):
    small = {"hidden": (8,), "policy.hidden": (8,), "batch_size": ROWS, "policy_delay": 2}
    settings = override(resolve_preset(name, "paper", None).settings, {**small, **changes})
    return make_algorithm(name, settings, Spec(OBS, ACT, 100))


def differ(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("name", DELAYED)
def test_critics_see_rows_drawn_alike_and_the_policy_those_drawn_by_weight(name):
    """Of 50 rows, told apart by their reward, only the last has any weight."""
    algorithm = delayed(name, **BY_RANK)
    assert (algorithm.needs.batches, algorithm.needs.uniform) == (3, 2)
    assert uniform_rows(algorithm) == 2 * ROWS
    assert rows_per_update(algorithm) == 3 * ROWS
    rows = np.zeros((50, 2 * (OBS + ACT + 1)), np.float32)
    rows[:, OBS + ACT] = np.arange(50)
    weights = np.zeros(50)
    weights[-1] = 1
    alias = alias_of(weights, uniform_rows(algorithm))
    data = DeviceData(jnp.asarray(rows), (), OBS, ACT, 50, alias=alias)
    drawn = data.sample(jax.random.key(0), rows_per_update(algorithm))
    critics, policy = algorithm.split(drawn)
    assert critics.query.r.shape == (2, ROWS)
    assert len(np.unique(critics.query.r)) > ROWS
    np.testing.assert_array_equal(policy.query.r, np.full(ROWS, 49.0))

    for changes in ({}, {"draw.by": "rank"}, {"draw.rows": "policy"}):
        usual = delayed(name, **changes)
        assert (usual.needs.batches, usual.needs.uniform, uniform_rows(usual)) == (2, 0, 0)
        critics, policy = usual.split(data.sample(jax.random.key(0), 2 * ROWS))
        np.testing.assert_array_equal(policy.query.r, critics.query.r[-1])


@pytest.mark.parametrize("name", DELAYED)
def test_rows_of_the_policy_reach_it_alone(name):
    algorithm = delayed(name, **BY_RANK)
    update = eqx.filter_jit(algorithm.update)
    state, key, given = algorithm.init(jax.random.key(1)), jax.random.key(2), batch(1.0, 3 * ROWS)

    def changed(start, stop):
        """The same rows but for some, whose actions and rewards are others."""
        there = (jnp.arange(3 * ROWS) >= start) & (jnp.arange(3 * ROWS) < stop)
        query = given.query
        query = eqx.tree_at(lambda t: t.r, query, jnp.where(there, -query.r, query.r))
        query = eqx.tree_at(lambda t: t.a, query, jnp.where(there[:, None], -query.a, query.a))
        return update(state, Batch(query), key)[0]

    plain = update(state, given, key)[0]
    own = changed(2 * ROWS, 3 * ROWS)
    assert not differ((own.q, own.q_target), (plain.q, plain.q_target))
    assert differ(own.pi.model, plain.pi.model)
    if name == "dmg":
        assert not differ(own.v, plain.v)
    for start in (0, ROWS):  # each critic step has a batch of its own
        assert differ(changed(start, start + ROWS).q, plain.q)


@pytest.mark.parametrize("name", ["cql", "fql", "qc", "iql", "icql", "bc", "icql-graph", "dt"])
def test_where_the_policy_has_no_rows_of_its_own_that_is_refused(name):
    settings = override(resolve_preset(name, "quick", None).settings, BY_RANK)
    algorithm = make_algorithm(name, settings, Spec(OBS, ACT, 100))
    with pytest.raises(UserError, match=r"draw\.rows policy: .*policy's alone.*draw\.rows all"):
        uniform_rows(algorithm)


def test_what_learns_by_rank_draws_by_rank():
    settings = resolve_preset("icql-rank", "paper", None).settings
    assert settings.policy_rows
    assert (settings.draw.by, settings.draw.trace) == ("rank", 1.0)
    algorithm = make_algorithm("icql-rank", settings, Spec(OBS, ACT, 100))
    assert uniform_rows(algorithm) == settings.batch_size * settings.policy_delay
