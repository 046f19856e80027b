"""The contract that every registered algorithm keeps, with a global or a local critic."""

from __future__ import annotations

import dataclasses
import re
from copy import copy as copy_of
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Algorithm, HasCritics, Spec
from icql.algos.presets import resolve_preset
from icql.algos.registry import algorithms, check_offline, make_algorithm
from icql.data.tasks import list_tasks
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.nn import backend
from icql.nn.mlp import in_precision
from icql.progress import Display
from icql.settings.change import override
from icql.settings.grid import Member
from icql.settings.run import Precision
from icql.training.checkpoints import Checkpoints
from icql.training.desk import check_finite
from icql.training.device import fit_normaliser, to_device
from icql.training.loop import Loop
from icql.training.trainer import find_contexts
from icql.weights import load_weights, named_arrays, save_weights, tree_hash

OBS, ACT, EPISODES, LENGTH = 4, 2, 10, 20
# what makes any algorithm tiny, where it has such a setting
TINY = {
    "batch_size": 16,
    "hidden": (8, 8),
    "policy.hidden": (8, 8),
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
    "memory_size": 16,
    "refresh": 4,
    "candidates": 4,
}
# a local critic with what the paper does not have
RIDGE = {
    "local.module": "ridge",
    "local.normalise": "unit",
    "context.exclude": "episode",
    "data.reward_shift": -0.5,
}
LINEAR = {
    "local.initial": "learned",
    "local.normalise": "layer",
    "local.c_start": "xavier",
    "local.spectral_bound": 0.5,
    "context.metric": "cosine",
    "data.reward_shift": 0.5,
}
OFFLINE = [name for name, entry in algorithms().items() if not entry.online]
# SAC learns online, but under the same contract; QC has no local critic (see its file); auto is
# another one by the time that there is data
CASES = {
    **{name: (name, {}) for name in algorithms() if name != "auto"},
    "icql-policy-value": ("icql", {"value": "policy"}),
    "icql-td3bc-paper": ("icql-td3bc", {"form": "paper"}),
    "icql-td3bc-ridge": ("icql-td3bc", {"local.module": "ridge"}),
    "rebrac-local": ("rebrac", {"critic": "local"}),
    "cql-local": ("cql", {"critic": "local", "lagrange": True}),
    "dmg-local": ("dmg", {"critic": "local"}),
    "fql-local": ("fql", {"critic": "local"}),
    "qc-distilled": ("qc", {"actor": "distilled"}),
}
# other branches of the same files: it is enough that they learn
BRANCHES = {
    "td3bc-retuned": ("td3bc", {"form": "retuned"}),
    "td3bc-paper": ("td3bc", {"form": "paper"}),
    "icql-ridge": ("icql", {**RIDGE, "value": "expectile"}),
    "icql-policy-value-ridge": ("icql", {**RIDGE, "value": "policy"}),
    "icql-td3bc-ridge-unit": ("icql-td3bc", RIDGE),
    "cql-ridge": ("cql", {**RIDGE, "critic": "local"}),
    "cql-kitchen": (
        "cql",
        {"importance_sampling": False, "max_backup": True, "cloning_steps": 5},
    ),
    "icql-options": ("icql", {**LINEAR, "value": "expectile"}),
    "icql-printed-sign": ("icql", {**LINEAR, "value": "policy", "expectile_sign": "q-y"}),
    "icql-td3bc-options": ("icql-td3bc", LINEAR),
    **{
        f"{name}-networks": (name, {"policy.networks": 2})
        for name in OFFLINE
        if name != "auto" and hasattr(resolve_preset(name, "quick", None).settings, "policy")
    },
}
# of those that a GPU computes otherwise, one of each kind
KERNELS = ("icql", "icql-policy-value", "icql-td3bc-ridge", "bc", "iql", "dt")
# leaves that training leaves alone on purpose
FIXED: dict[str, tuple[str, ...]] = {}
# case by case, so that one case's programs can be forgotten before the next one's are compiled
cases = pytest.mark.parametrize("case", CASES, scope="module")
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
def algorithm(case: str, precision: Precision = "float32") -> Algorithm[Any]:
    name, changes = {**CASES, **BRANCHES}[case]
    settings = resolve_preset(name, "quick", None).settings
    known = {f.name for f in dataclasses.fields(settings)}
    tiny = {key: value for key, value in TINY.items() if key.partition(".")[0] in known}
    settings = override(settings, {**tiny, **changes})
    return make_algorithm(name, settings, Spec(OBS, ACT, 1000, precision=precision))


def make_loop(case: str, *seeds: int, precision: Precision = "float32") -> Loop:
    """As the trainer makes it."""
    algo, data = algorithm(case, precision), transitions()
    normaliser = fit_normaliser(data, algo.settings.data)
    neighbours = find_contexts(algo, data, Display(quiet=True))
    fed = to_device(data, normaliser, neighbours, length=algo.needs.length)
    return Loop(algo, fed, seeds)


def copy(states: Any) -> Any:
    return jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, states)


@dataclasses.dataclass(frozen=True)
class Run:
    """Two seeds side by side: fresh, after 5 updates, and after 5 more."""

    loop: Loop
    begin: Any
    middle: Any
    end: Any
    metrics: dict[str, np.ndarray]


@lru_cache(maxsize=1)
def run_of(case: str) -> Run:
    jax.clear_caches()
    loop = make_loop(case, *((0, 1) if case in CASES else (0,)))
    begin = loop.init()
    middle, _ = loop.advance(copy(begin), 0, 5)
    return Run(loop, begin, middle, *loop.advance(copy(middle), 5, 5))


def other_loop(case: str) -> Loop:
    """The same program for the same two seeds in the other order."""
    loop = copy_of(run_of(case).loop)
    loop.keys = loop.keys[::-1]
    return loop


def swapped(states: Any) -> Any:
    # by way of NumPy: arrays tied to a device, as Orbax restores them, would be compiled for anew
    return jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x)[::-1]) if eqx.is_array(x) else x, states
    )


@cases
def test_a_seed_decides_every_bit_whatever_the_chunks(case):
    """From the same seeds 5 + 5 updates and 10 updates are equal."""
    run = run_of(case)
    whole, _ = run.loop.advance(copy(run.begin), 0, 10)
    assert tree_hash(run.end) == tree_hash(whole)


@cases
def test_a_checkpoint_resumes_to_the_same_bits_in_another_place(case, tmp_path: Path):
    run = run_of(case)
    written = Checkpoints(tmp_path)
    written.save(5, run.middle)
    written.close()
    found = Checkpoints(tmp_path)
    restored = found.restore(found.latest, run.begin)
    found.close()
    assert tree_hash(restored) == tree_hash(run.middle)
    states, _ = other_loop(case).advance(swapped(restored), found.latest, 5)
    assert tree_hash(swapped(states)) == tree_hash(run.end)


@cases
def test_nothing_is_recompiled_after_the_first_chunk(case, monkeypatch):
    run = run_of(case)
    # weak types count: what `init` returns would be compiled for apart from what updates return
    begin, middle = (eqx.filter(states, eqx.is_array) for states in (run.begin, run.middle))
    assert jax.tree.map(jax.typeof, begin) == jax.tree.map(jax.typeof, middle)

    def traced(*_: Any) -> None:
        raise AssertionError("the update was traced again")

    monkeypatch.setattr(type(run.loop.algorithm), "update", traced)
    run.loop.advance(copy(run.end), 10, 3)


@pytest.mark.parametrize("case", [*CASES, *BRANCHES], scope="module")
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
def test_seeds_differ_and_know_nothing_of_each_other(case):
    """Side by side in either order, each seed comes out the same to the bit."""
    run, other = run_of(case), other_loop(case)
    states, _ = other.advance(other.init(), 0, 10)
    assert tree_hash(swapped(states)) == tree_hash(run.end)
    policies = named_arrays(eqx.filter_vmap(algorithm(case).policy)(run.end))
    assert any(not np.array_equal(array[0], array[1]) for array in policies.values())


def test_a_seed_side_by_side_equals_its_own_run():
    """Within rounding: a program for one seed adds up in another order."""
    alone = make_loop("icql", 1)
    single, _ = alone.advance(alone.init(), 0, 10)
    both = named_arrays(run_of("icql").end)
    for name, array in named_arrays(single).items():
        np.testing.assert_allclose(both[name][1], array[0], rtol=1e-3, atol=1e-4, err_msg=name)


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


@pytest.mark.parametrize(
    ("case", "gpu"),
    [(case, False) for case in CASES] + [(case, True) for case in KERNELS],
    scope="module",
)
def test_bfloat16_reaches_the_products_of_every_update_and_nothing_it_keeps(case, gpu, monkeypatch):
    data, key = run_of(case).loop.data, jax.random.key(1)
    monkeypatch.setattr(backend, "on_gpu", lambda: gpu)

    def halves(function, tree):
        arrays, static = eqx.partition(tree, eqx.is_array)

        def program(arrays):
            return eqx.filter(function(eqx.combine(arrays, static)), eqx.is_array)

        found, after = jax.make_jaxpr(program, return_shape=True)(arrays)
        return len(re.findall(r"bf16\[", str(found))), jax.tree.map(lambda x: x.dtype, after)

    precisions: tuple[Precision, ...] = ("bfloat16",) if gpu else ("float32", "bfloat16")
    for precision in precisions:
        algo = algorithm(case, precision)
        batch = data.batch(jnp.arange(algo.settings.batch_size * algo.needs.batches))
        state = algo.init(jax.random.key(0))
        count, types = halves(lambda state: algo.update(state, batch, key)[0], state)  # noqa: B023
        assert (count > 0) is (precision == "bfloat16")
        assert types == jax.tree.map(lambda x: x.dtype, eqx.filter(state, eqx.is_array))
        # acting and looking are in float32, whatever updates are in
        probe = data.batch(jnp.arange(4))
        assert halves(lambda s: algo.policy(s)(jnp.ones((3, OBS))), state)[0] == 0  # noqa: B023
        assert halves(lambda s: algo.diagnose(s, probe), state)[0] == 0  # noqa: B023
        if isinstance(algo, HasCritics):
            exact = algo.critic(state)
            assert jax.tree.structure(exact) == jax.tree.structure(in_precision(exact, "float32"))


def test_a_run_in_bfloat16_is_near_that_in_float32_and_as_repeatable():
    exact, loop = run_of("icql"), make_loop("icql", 0, 1, precision="bfloat16")
    middle = in_precision(exact.middle, "bfloat16")
    (states, metrics), (again, _) = (loop.advance(copy(middle), 5, 5) for _ in range(2))
    assert tree_hash(states) == tree_hash(again) != tree_hash(exact.end)
    for name, expected in exact.metrics.items():
        np.testing.assert_allclose(metrics[name], expected, rtol=0.03, atol=1e-3, err_msg=name)


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
    q_critics = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, run.end.q.model)
    batch = run.loop.data.batch(jnp.arange(8))
    q = q_critics.at(batch.query.s, batch.context)(batch.query.a)
    other = jax.tree.map(lambda x: x[::-1], batch.context)
    assert not np.allclose(q, q_critics.at(batch.query.s, other)(batch.query.a))


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
        ("bc", "policy.dropout", 1.0),
        ("iql", "expectile", 1.0),
        ("icql", "local.layers", 0),
        ("icql", "context.k", 0),
        ("icql-td3bc", "noise_limit", -0.5),
        ("dt", "length", 0),
        ("radt", "candidates", 10_000),
        ("fql", "flow_steps", 0),
        ("qc", "samples", 0),
        ("sac", "discount", 1.5),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, setting, value):
    with pytest.raises(UserError, match=setting):
        override(algorithms()[name].settings(), {setting: value})


def test_sac_says_that_it_learns_online():
    with pytest.raises(UserError, match="icql data collect"):
        check_offline("sac")


@pytest.mark.parametrize(
    ("case", "told", "not_told"),
    [
        ("bc", ["--policy.learning-rate"], ["critic", "reward", "--local"]),
        ("dt", ["--learning-rate", "--gradient-clip"], ["critic", "reward", "--local"]),
        ("iql", ["--bound-values", "--data.reward-scale"], ["--critics", "--local", "--learning"]),
        ("icql", ["--bound-values", "--data.reward-scale", "--local.c-scale"], ["--learning"]),
        ("qc", ["--data.reward-scale"], ["--bound-values", "--local"]),
    ],
)
def test_advice_against_divergence_fits_the_algorithm(case, told, not_told):
    metrics, remedies = {"policy_loss": np.array([1.0, np.nan])}, algorithm(case).remedies
    members = [Member(0, {}), Member(1, {})]
    with pytest.raises(UserError, match="policy_loss of seed 1 is not finite") as stopped:
        check_finite(metrics, members, 7, remedies)
    assert all(word in stopped.value.fix for word in told)
    assert not any(word in stopped.value.fix for word in not_told)


def test_a_remedy_that_is_taken_is_not_told_again():
    def remedies(**changes):
        settings = override(algorithms()["iql"].settings(), changes)
        return " ".join(make_algorithm("iql", settings, Spec(OBS, ACT, 10)).remedies)

    assert "--critics 2" in remedies(critics=1)
    assert "--critics 2" not in remedies(critics=2)
    assert "--bound-values" not in remedies(bound_values=True)
    assert "--local.normalise unit" in remedies(critic="local")
    assert "--context.exclude episode" in remedies(critic="local")
    assert "--context.exclude" not in remedies(critic="local", **{"context.exclude": "episode"})
    assert "--local.normalise" not in remedies(critic="local", **{"local.normalise": "unit"})
    ridge = {"critic": "local", "local.module": "ridge"}
    assert "--context.exclude" in remedies(**ridge)
    assert "--local.c-scale" not in remedies(**ridge)
    assert "--context.exclude" not in remedies(**ridge, **{"context.exclude": "episode"})


def test_what_has_critics_says_so_and_what_values_are_possible():
    have = {name for name in CASES if isinstance(algorithm(name), HasCritics)}
    # SAC's values hold entropy as well; icql-graph's are solved before the first update
    assert set(CASES) - have == {"bc", "icql-graph", "dt", "radt", "sac"}
    for case in have:
        algo = dataclasses.replace(algorithm(case), spec=Spec(OBS, ACT, 10, (-1.0, 2.0)))
        rest = 1 - algo.settings.discount
        assert algo.value_range() == pytest.approx((-1 / rest, 2 / rest))
