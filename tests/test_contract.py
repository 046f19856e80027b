"""The contract that every registered offline algorithm keeps, with a global or a local critic."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Algorithm, Spec
from icql.algos.registry import ALGORITHMS, check_offline, make_algorithm, override, resolve_preset
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.files import load_weights, named_arrays, save_weights, tree_hash
from icql.progress import Display
from icql.training.device import fit_normaliser, to_device
from icql.training.loop import Loop
from icql.training.trainer import find_contexts

OBS, ACT, EPISODES, LENGTH = 4, 2, 10, 20
# what makes any algorithm tiny, where it has such a setting
TINY = {
    "batch_size": 16,
    "hidden": (8, 8),
    "samples": 2,
    "context.k": 3,
    "local.layers": 2,
    "local.features": 4,
}
OFFLINE = [name for name, entry in ALGORITHMS.items() if not entry.online]
CASES = {
    **{name: (name, {}) for name in OFFLINE},
    "iql-local": ("iql", {"critic": "local"}),
    "icql-policy-value": ("icql", {"value": "policy"}),
    "td3bc-local": ("td3bc", {"critic": "local"}),
    "td3bc-retuned": ("td3bc", {"form": "retuned"}),
    "td3bc-paper": ("td3bc", {"form": "paper"}),
    "rebrac-local": ("rebrac", {"critic": "local"}),
    "cql-local": ("cql", {"critic": "local"}),
    "cql-lagrange": ("cql", {"lagrange": True}),
    "dmg-local": ("dmg", {"critic": "local"}),
}
cases = pytest.mark.parametrize("case", CASES)
every = pytest.mark.parametrize("name", OFFLINE)


@cache
def transitions() -> Transitions:
    rng = np.random.default_rng(0)
    rows = EPISODES * LENGTH
    s, a = rng.normal(size=(rows, OBS)), rng.uniform(-0.9, 0.9, (rows, ACT))
    step = np.tile(np.arange(LENGTH), EPISODES)
    terminal = step == LENGTH - 1
    a_next = np.where(terminal[:, None], 0, np.roll(a, -1, 0))
    rewards = (s[:, 0] * a[:, 0] + 0.5).astype(np.float32)
    returns = rewards.reshape(EPISODES, LENGTH).sum(1)
    return Transitions(
        states=s.astype(np.float32),
        actions=a.astype(np.float32),
        rewards=rewards,
        next_states=np.roll(s, -1, 0).astype(np.float32),
        next_actions=a_next.astype(np.float32),
        mask=(~terminal).astype(np.float32),
        episode=np.repeat(np.arange(EPISODES), LENGTH).astype(np.int32),
        step=step.astype(np.int32),
        info=DataInfo("synthetic", episode_returns=tuple(returns.tolist())),
    )


@cache
def algorithm(case: str) -> Algorithm[Any]:
    name, changes = CASES[case]
    settings = resolve_preset(name, "quick", None).settings
    known = {f.name for f in dataclasses.fields(settings)}
    tiny = {key: value for key, value in TINY.items() if key.partition(".")[0] in known}
    settings = override(settings, {**tiny, **changes})
    return make_algorithm(name, settings, Spec(OBS, ACT, 1000))


def make_loop(case: str, *seeds: int) -> Loop:
    """As the trainer makes it."""
    algo, data = algorithm(case), transitions()
    normaliser = fit_normaliser(data, algo.settings.data)
    neighbours = find_contexts(algo, data, Display(quiet=True))
    return Loop(algo, to_device(data, normaliser, neighbours), seeds)


@cache
def trained(case: str) -> tuple[Any, Any, dict[str, np.ndarray], Loop]:
    """Fresh states of two seeds, the same after 5 + 5 updates, the metrics, and the loop."""
    loop = make_loop(case, 0, 1)
    begin = jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, loop.init())
    states, _ = loop.advance(loop.init(), 0, 5)
    states, metrics = loop.advance(states, 5, 5)
    return begin, states, metrics, loop


@cases
def test_chunks_of_any_length_compute_the_same_bits(case):
    """5 + 5 updates are 10 updates, in a new loop from the same seeds: what resuming rests on."""
    _, states, metrics, loop = trained(case)
    again = make_loop(case, 0, 1)
    whole, _ = again.advance(again.init(), 0, 10)
    assert tree_hash(states) == tree_hash(whole)
    assert all(np.isfinite(value).all() for value in metrics.values()), metrics


@cases
def test_nothing_is_recompiled_after_the_first_chunk(case, monkeypatch):
    _, states, _, loop = trained(case)

    def traced(*_: Any) -> None:
        raise AssertionError("the update was traced again")

    monkeypatch.setattr(type(loop.algorithm), "update", traced)
    loop.advance(jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, states), 10, 3)


@cases
def test_gradients_reach_every_parameter(case):
    """Every array that an optimiser or a moving average owns has moved, in every entry's leaf."""
    begin, states, _, _ = trained(case)
    before, after = named_arrays(begin), named_arrays(states)
    still = [
        name
        for name, array in before.items()
        if np.issubdtype(array.dtype, np.floating) and np.array_equal(array, after[name])
    ]
    assert still == []


@cases
def test_seeds_differ_and_each_equals_its_own_run(case):
    _, states, _, _ = trained(case)
    alone = make_loop(case, 1)
    single, _ = alone.advance(alone.init(), 0, 10)
    both, one = named_arrays(states), named_arrays(single)
    for name, array in one.items():
        np.testing.assert_allclose(both[name][1], array[0], rtol=1e-3, atol=1e-5, err_msg=name)
    policy = named_arrays(eqx.filter_vmap(loop_policy(case))(states))
    assert any(not np.array_equal(array[0], array[1]) for array in policy.values())


def loop_policy(case: str) -> Any:
    return algorithm(case).policy


@cases
def test_the_policy_acts_within_bounds_and_survives_the_disk(case, tmp_path: Path):
    _, states, _, _ = trained(case)
    algo = algorithm(case)
    policies = eqx.filter_vmap(algo.policy)(states)
    save_weights(tmp_path / "policy.safetensors", policies)
    like = eqx.filter_eval_shape(
        lambda keys: eqx.filter_vmap(algo.policy)(eqx.filter_vmap(algo.init)(keys)),
        jax.random.split(jax.random.key(9), 2),
    )
    loaded = load_weights(tmp_path / "policy.safetensors", like)
    assert tree_hash(loaded) == tree_hash(policies)
    s = 10 * jax.random.normal(jax.random.key(0), (2, 50, OBS))
    act = eqx.filter_vmap(lambda policy, s: policy(s), in_axes=(eqx.if_array(0), 0))
    actions = np.asarray(act(loaded, s))
    assert actions.shape == (2, 50, ACT)
    assert np.abs(actions).max() <= 1
    np.testing.assert_array_equal(actions, act(policies, s))


@cases
def test_diagnostics_are_finite(case):
    _, states, _, loop = trained(case)
    probe = loop.data.batch(jnp.arange(20))
    first = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, states)
    looks = algorithm(case).diagnose(first, probe)
    assert all(np.isfinite(np.asarray(value)).all() for value in looks.values())


def test_delayed_policies_ask_for_one_batch_per_critic_step():
    algo = algorithm("td3bc")
    assert algo.needs.batches == algo.settings.policy_delay == 2
    batch = make_loop("td3bc", 0).data.sample(jax.random.key(0), 32)
    parts = batch.split(2)
    np.testing.assert_array_equal(parts.query.s.reshape(32, OBS), batch.query.s)


def test_a_local_critic_is_one_setting():
    """ReBRAC becomes its ICQL variant by `critic` alone, and the context matters to it."""
    assert type(algorithm("rebrac-local")) is type(algorithm("rebrac"))
    _, states, _, loop = trained("rebrac-local")
    critics = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, states.q.model)
    batch = loop.data.batch(jnp.arange(8))
    q = critics.at(batch.query.s, batch.context)(batch.query.a)
    other = jax.tree.map(lambda x: x[::-1], batch.context)
    assert not np.allclose(q, critics.at(batch.query.s, other)(batch.query.a))


@every
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_presets_resolve_for_every_task_and_name_their_source(name, preset):
    from icql.data.tasks import list_tasks

    for task in [None, *list_tasks()]:
        chosen = resolve_preset(name, preset, task)
        assert chosen.sources
        assert chosen.run.steps > 0


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("td3bc", "alpha", -1.0),
        ("td3bc", "policy_delay", 0),
        ("td3bc", "discount", 1.0),
        ("rebrac", "actor_bc", -0.1),
        ("rebrac", "batch_size", 0),
        ("cql", "samples", 0),
        ("cql", "cql_temperature", 0.0),
        ("cql", "critic_learning_rate", 0.0),
        ("dmg", "mixture", 1.5),
        ("dmg", "expectile", 1.0),
        ("dmg", "advantage_limit", 0.5),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, setting, value):
    with pytest.raises(UserError, match=setting):
        override(ALGORITHMS[name].settings(), {setting: value})


def test_sac_says_that_it_learns_online():
    with pytest.raises(UserError, match="icql data collect"):
        check_offline("sac")
