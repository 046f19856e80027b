"""CQL's options against NumPy: the best of several next actions, unweighted sums, cloning."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from icql.algos.base import Batch, Spec, Transition
from icql.algos.cql import CQL, CQLState
from icql.algos.presets import resolve_preset
from icql.algos.registry import make_algorithm
from icql.losses import log_temperature_loss
from icql.nn.policies import TanhGaussianPolicy
from icql.settings.change import override
from icql.settings.shared import PolicySettings
from icql.training.vary import check_grid

OBS, ACT, ROWS, SAMPLES = 3, 2, 6, 4
SMALL = {"hidden": (8,), "policy.hidden": (8,), "samples": SAMPLES}
RNG = np.random.default_rng(0)
KEY = jax.random.key(5)


def make(discrete: bool = False, **changes: Any) -> CQL:
    settings = override(resolve_preset("cql", "paper", None).settings, {**SMALL, **changes})
    algorithm = make_algorithm("cql", settings, Spec(OBS, ACT, 100, discrete=discrete))
    assert isinstance(algorithm, CQL)
    return algorithm


@cache
def batch(discrete: bool = False) -> Batch:
    s, s_next = (RNG.normal(size=(ROWS, OBS)) for _ in range(2))
    a = np.eye(ACT)[RNG.integers(0, ACT, ROWS)] if discrete else RNG.uniform(-0.9, 0.9, (ROWS, ACT))
    mask = np.array([1, 1, 0, 1, 1, 1])
    given = (s, a, RNG.normal(size=ROWS), s_next, a, mask)
    return Batch(Transition(*(jnp.asarray(x, jnp.float32) for x in given)))


def fresh(algorithm: CQL) -> CQLState:
    """Fresh networks, the critics' last layers large enough to tell actions apart."""
    state = algorithm.init(jax.random.key(1))

    def louder(critics: Any) -> Any:
        return eqx.tree_at(lambda q: q.members.net.layers[-1].weight, critics, replace_fn=loud)

    def loud(weight: Any) -> Any:
        return 100 * weight

    return eqx.tree_at(
        lambda s: (s.q.model, s.q_target), state, (louder(state.q.model), louder(state.q_target))
    )


def q_values(critics: Any, s: Any, a: Any) -> np.ndarray:
    """Q_i(s, a) by hand, in float64: (critics, …)."""
    first, last = critics.members.net.layers
    s = np.broadcast_to(s, (*np.shape(a)[:-1], OBS))
    x = np.concatenate([s, a], -1).astype(np.float64)
    found = []
    for i in range(len(first.weight)):
        w1, b1, w2, b2 = (
            np.asarray(part[i], np.float64)
            for part in (first.weight, first.bias, last.weight, last.bias)
        )
        found.append((np.maximum(x @ w1 + b1, 0) @ w2 + b2)[..., 0])
    return np.stack(found)


@pytest.mark.parametrize("entropy", [False, True])
def test_max_backup_takes_the_best_of_the_least(entropy: bool) -> None:
    """JaxCQL: min over critics, then the largest over the actions drawn, and that one's log π."""
    algorithm = make(max_backup=True, backup_entropy=entropy)
    state, query = fresh(algorithm), batch().query
    found = algorithm._next_value(state, batch(), jnp.asarray(0.5), KEY)
    drawn = [state.pi.model.sample(query.s_next, key=k) for k in jax.random.split(KEY, SAMPLES)]
    actions, log_probs = (np.stack(part) for part in zip(*drawn, strict=True))
    least = q_values(state.q_target, query.s_next, actions).min(0)
    expected = []
    for row in range(ROWS):
        best = max(range(SAMPLES), key=lambda i: least[i, row])
        expected.append(least[best, row] - 0.5 * entropy * log_probs[best, row])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(least.max(0), least[0])  # one action alone would give something else


def test_max_backup_of_choices_is_over_all_of_them() -> None:
    algorithm = make(discrete=True, max_backup=True)
    state, query = fresh(algorithm), batch(discrete=True).query
    found = algorithm._next_value(state, batch(discrete=True), jnp.ones(()), KEY)
    every = np.broadcast_to(np.eye(ACT)[:, None], (ACT, ROWS, ACT))
    expected = q_values(state.q_target, query.s_next, every).min(0).max(0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("divided", [True, False])
def test_the_conservative_loss_with_and_without_densities(divided: bool) -> None:
    """CORL, cql.py: [Q − log density] of samples, or [Q] of samples and the logged action."""
    algorithm = make(importance_sampling=divided, alpha=3.0, discount=0.0, cql_temperature=0.7)
    state, query = fresh(algorithm), batch().query
    _, metrics = eqx.filter_jit(algorithm.update)(state, batch(), KEY)
    sampled, log_density = algorithm._proposals(state.pi.model, query, jax.random.split(KEY, 4)[2])
    assert sampled.shape == (3 * SAMPLES, ROWS, ACT)
    logged = q_values(state.q.model, query.s, query.a)
    summed = q_values(state.q.model, query.s, sampled)  # critics, samples, rows
    summed = (
        summed - np.asarray(log_density)
        if divided
        else np.concatenate([logged[:, None], summed], 1)
    )
    gap = 0.7 * special.logsumexp(summed / 0.7, axis=1) - logged
    loss = ((np.asarray(query.r) - logged) ** 2).mean(1).sum() + 3.0 * gap.mean(1).sum()
    assert float(metrics["critic_loss"]) == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(log_density[:SAMPLES], ACT * np.log(0.5), rtol=1e-6)


def test_of_choices_the_sum_is_exact_either_way() -> None:
    losses = []
    for divided in (True, False):
        algorithm = make(discrete=True, importance_sampling=divided)
        _, metrics = algorithm.update(fresh(algorithm), batch(discrete=True), KEY)
        losses.append(float(metrics["critic_loss"]))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("discrete", [False, True])
def test_the_policy_clones_first_and_then_learns_from_q(discrete: bool) -> None:
    """The authors' cql.py: policy_loss = mean(T log π(ã|s) − log π(a|s)) in the first updates."""
    cloning, plain = make(discrete, cloning_steps=2), make(discrete)
    state, given = fresh(cloning), batch(discrete)
    first, metrics = eqx.filter_jit(cloning.update)(state, given, KEY)
    pi, pi_key = state.pi.model, jax.random.split(KEY, 4)[0]
    if discrete:
        log_probs = np.asarray(pi.log_probs(given.query.s))
        own = (np.exp(log_probs) * log_probs).sum(-1)
        logged = log_probs[np.arange(ROWS), np.asarray(given.query.a).argmax(-1)]
    else:
        own = np.asarray(pi.sample(given.query.s, key=pi_key)[1])
        logged = squashed_log_prob(pi, given.query.s, given.query.a)
    assert float(metrics["policy_loss"]) == pytest.approx((own - logged).mean(), rel=1e-4)
    assert int(first.step) == 1
    # at its second update it still clones, at its third it does what it does without
    at = {n: eqx.tree_at(lambda s: s.step, state, jnp.asarray(n)) for n in (1, 2)}
    losses = {n: cloning.update(at[n], given, KEY)[1]["policy_loss"] for n in at}
    without = plain.update(fresh(plain), given, KEY)[1]["policy_loss"]
    assert float(losses[1]) == pytest.approx(float(metrics["policy_loss"]), rel=1e-5)
    assert float(losses[2]) == pytest.approx(float(without), rel=1e-5)
    assert abs(float(losses[1] - losses[2])) > 1e-2
    assert plain.init(KEY).step is None


def squashed_log_prob(pi: Any, s: Any, a: Any) -> np.ndarray:
    """log π(a|s) with SciPy: of a normal u = atanh a, less log |da/du| = log(1 − a²)."""
    mean, log_std = np.split(np.asarray(pi.net(s), np.float64), 2, axis=-1)
    multiplier, offset = np.asarray(pi.log_std, np.float64)
    std = np.exp(np.clip(multiplier * log_std + offset, -20, 2))
    a = np.asarray(a, np.float64)
    return (stats.norm.logpdf(np.arctanh(a), mean, std) - np.log(1 - a**2)).sum(-1)


@pytest.mark.parametrize("form", [(1.0, -1.0), (0.5, -3.0)])
def test_the_policys_spread_has_an_offset_and_a_multiplier(form: tuple[float, float]) -> None:
    settings = PolicySettings(hidden=(8,), init="torch")
    pi = TanhGaussianPolicy(OBS, ACT, settings, log_std=form, key=KEY)
    s, a = batch().query.s, batch().query.a
    np.testing.assert_allclose(pi.log_prob(s, a), squashed_log_prob(pi, s, a), rtol=1e-4)
    drawn, log_prob = pi.sample(s, key=KEY)
    np.testing.assert_allclose(log_prob, squashed_log_prob(pi, s, drawn), rtol=1e-3)
    # where the network says 0, u has a spread of exp(offset)
    silent = eqx.tree_at(lambda p: p.net, pi, jax.tree.map(jnp.zeros_like, pi.net))
    u = np.arctanh(silent.sample(jnp.zeros((20_000, OBS)), key=KEY)[0])
    assert u.std() == pytest.approx(np.exp(form[1]), rel=0.02)


def test_cqls_fresh_policy_and_that_its_two_numbers_learn() -> None:
    algorithm = make()
    state = algorithm.init(KEY)
    np.testing.assert_array_equal(state.pi.model.log_std, [1.0, -1.0])
    after, _ = algorithm.update(state, batch(), KEY)
    assert np.all(np.asarray(after.pi.model.log_std) != [1.0, -1.0])


def test_the_offset_can_be_one_of_a_grid() -> None:
    check_grid(make(), {"log_std_offset": (-1.0, -2.0)}, batch())


def test_an_action_on_the_edge_has_a_finite_density() -> None:
    pi = make().init(KEY).pi.model
    assert np.isfinite(pi.log_prob(batch().query.s, jnp.ones((ROWS, ACT)))).all()


def test_temperature_is_learned_by_its_logarithm() -> None:
    """−log T · mean(log π + H̄), as CQL's and CORL's code has it: 0.5 · (0.2 − 1.0) · −1 = 0.4."""
    log_prob = jnp.asarray([0.1, 0.3])
    assert float(log_temperature_loss(jnp.asarray(0.5), log_prob, -1.0)) == pytest.approx(0.4)
    slope = jax.grad(lambda t: log_temperature_loss(t, log_prob, -1.0))(jnp.asarray(3.0))
    assert float(slope) == pytest.approx(0.8)  # whatever the temperature


def test_kitchen_is_as_published() -> None:
    """harness-offline-rl: JaxCQL, 512 × 3, α 10, no importance sampling, max-target backup."""
    preset = resolve_preset("cql", "paper", "kitchen-partial-v0")
    s = preset.settings
    assert (s.alpha, s.importance_sampling, s.max_backup) == (10.0, False, True)
    assert s.hidden == s.policy.hidden == (512, 512, 512)
    assert (s.policy.learning_rate, s.critic_learning_rate) == (3e-4, 3e-4)
    assert not s.data.normalise_states
    assert preset.run.steps == 1_000_000
    assert any("harness-offline-rl" in source for source in preset.sources)
