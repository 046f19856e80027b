"""The contract that every registered offline algorithm keeps, with a global or a local critic."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
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
from icql.data.tasks import list_tasks
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
    "length": 5,
    "timesteps": LENGTH,
    "layers": 1,
    "width": 8,
    "heads": 2,
    "warmup": 2,
    "memory": 16,
    "refresh": 4,
    "candidates": 4,
}
OFFLINE = [name for name, entry in ALGORITHMS.items() if not entry.online]
CASES = {
    **{name: (name, {}) for name in OFFLINE},
    "rebrac-local": ("rebrac", {"critic": "local"}),
    "cql-local": ("cql", {"critic": "local", "lagrange": True}),
}
# other branches of the same files: it is enough that they learn
BRANCHES = {
    "icql-policy-value": ("icql", {"value": "policy"}),
    "td3bc-retuned": ("td3bc", {"form": "retuned"}),
    "td3bc-paper": ("td3bc", {"form": "paper"}),
    "dmg-local": ("dmg", {"critic": "local"}),
}
# leaves that training leaves alone on purpose
FIXED: dict[str, tuple[str, ...]] = {}
cases = pytest.mark.parametrize("case", CASES)
every = pytest.mark.parametrize("name", OFFLINE)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Compile without most optimisations: that is nearly all the time these tests take."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


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
    name, changes = {**CASES, **BRANCHES}[case]
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
    return Loop(algo, to_device(data, normaliser, neighbours, length=algo.needs.length), seeds)


def copy(states: Any) -> Any:
    return jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, states)


@dataclasses.dataclass(frozen=True)
class Run:
    """Two seeds side by side: fresh, and after 5 + 5 updates."""

    loop: Loop
    begin: Any
    end: Any
    metrics: dict[str, np.ndarray]


@cache
def run_of(case: str) -> Run:
    loop = make_loop(case, *((0, 1) if case in CASES else (0,)))
    begin = loop.init()
    states, _ = loop.advance(copy(begin), 0, 5)
    return Run(loop, begin, *loop.advance(states, 5, 5))


@cases
def test_a_seed_decides_every_bit_whatever_the_chunks(case):
    """From the same seeds 5 + 5 updates and 10 updates are equal: what resuming rests on."""
    run = run_of(case)
    whole, _ = run.loop.advance(run.loop.init(), 0, 10)
    assert tree_hash(run.end) == tree_hash(whole)


@cases
def test_nothing_is_recompiled_after_the_first_chunk(case, monkeypatch):
    run = run_of(case)

    def traced(*_: Any) -> None:
        raise AssertionError("the update was traced again")

    monkeypatch.setattr(type(run.loop.algorithm), "update", traced)
    run.loop.advance(copy(run.end), 10, 3)


@pytest.mark.parametrize("case", [*CASES, *BRANCHES])
def test_gradients_reach_every_parameter(case):
    """No network, target or moment is left as it began, and all metrics are numbers."""
    run = run_of(case)
    assert all(np.isfinite(value).all() for value in run.metrics.values()), run.metrics
    after = named_arrays(run.end)
    still = [
        name
        for name, array in named_arrays(run.begin).items()
        if np.issubdtype(array.dtype, np.floating)
        and np.array_equal(array, after[name])
        and not name.startswith(FIXED.get(case, ()))
    ]
    assert still == []


@cases
def test_seeds_differ_and_each_equals_its_own_run(case):
    run, alone = run_of(case), make_loop(case, 1)
    start = jax.tree.map(lambda x: x[1:] if eqx.is_array(x) else x, run.begin)
    single, _ = alone.advance(copy(start), 0, 10)
    both = named_arrays(run.end)
    for name, array in named_arrays(single).items():
        np.testing.assert_allclose(both[name][1], array[0], rtol=1e-3, atol=1e-4, err_msg=name)
    policies = named_arrays(eqx.filter_vmap(algorithm(case).policy)(run.end))
    assert any(not np.array_equal(array[0], array[1]) for array in policies.values())


@cases
def test_the_policy_acts_within_bounds_and_survives_the_disk(case, tmp_path: Path):
    algo = algorithm(case)
    policies = eqx.filter_vmap(algo.policy)(run_of(case).end)
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
    run = run_of(case)
    probe = run.loop.data.batch(jnp.arange(20))
    first = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, run.end)
    looks = algorithm(case).diagnose(first, probe)
    assert all(np.isfinite(np.asarray(value)).all() for value in looks.values())


def test_delayed_policies_ask_for_one_batch_per_critic_step():
    algo = algorithm("td3bc")
    assert algo.needs.batches == algo.settings.policy_delay == 2
    batch = run_of("td3bc").loop.data.sample(jax.random.key(0), 32)
    parts = batch.split(2)
    np.testing.assert_array_equal(parts.query.s.reshape(32, OBS), batch.query.s)


def test_a_local_critic_is_one_setting():
    """ReBRAC becomes its ICQL variant by `critic` alone, and the context matters to it."""
    assert type(algorithm("rebrac-local")) is type(algorithm("rebrac"))
    run = run_of("rebrac-local")
    critics = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, run.end.q.model)
    batch = run.loop.data.batch(jnp.arange(8))
    q = critics.at(batch.query.s, batch.context)(batch.query.a)
    other = jax.tree.map(lambda x: x[::-1], batch.context)
    assert not np.allclose(q, critics.at(batch.query.s, other)(batch.query.a))


@every
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_presets_resolve_for_every_task_and_name_their_source(name, preset):
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
