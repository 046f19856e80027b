"""Flow matching and chunked targets against independent arithmetic."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from icql.algos.base import Batch, Spec, Transition, Window
from icql.algos.fql import FQL, aggregate
from icql.algos.presets import resolve_preset
from icql.algos.qc import QC
from icql.algos.registry import make_algorithm
from icql.errors import UserError
from icql.losses import chunk_target, distillation_loss, flow_matching, flow_point, masked_mean
from icql.nn.flow import Flow, noise_of_state
from icql.settings.algorithms import FQLSettings, QCSettings
from icql.settings.change import override
from icql.settings.contexts import ContextSettings
from icql.settings.shared import LocalSettings, PolicySettings

OBS, ACT = 3, 2


def test_flow_loss_by_hand():
    """z = 2, a = -1, t = 1/4: the path is at 1.25 and its velocity is -3 all along."""
    noise, a, t = jnp.array([[2.0]]), jnp.array([[-1.0]]), jnp.array([[0.25]])
    np.testing.assert_allclose(flow_point(noise, a, t), [[1.25]])
    np.testing.assert_allclose(flow_matching(jnp.array([[0.5]]), noise, a), [[3.5**2]])


def test_velocity_is_the_derivative_of_the_path():
    rng = np.random.default_rng(0)
    noise, a = (jnp.asarray(rng.normal(size=(5, ACT)), jnp.float32) for _ in range(2))
    point = [np.asarray(flow_point(noise, a, jnp.full((5, 1), t))) for t in (0.3, 0.7)]
    slope = (point[1] - point[0]) / 0.4
    np.testing.assert_allclose(flow_matching(jnp.asarray(slope), noise, a), 0, atol=1e-10)
    np.testing.assert_allclose(flow_point(noise, a, jnp.zeros((5, 1))), noise)
    np.testing.assert_allclose(flow_point(noise, a, jnp.ones((5, 1))), a)


def test_euler_steps_against_a_plain_loop():
    flow = Flow(OBS, ACT, PolicySettings(hidden=(8,)), steps=10, key=jax.random.key(0))
    s, z = jnp.full((4, OBS), 0.3), jax.random.normal(jax.random.key(1), (4, ACT))
    x = np.asarray(z)
    for i in range(10):
        x = x + 0.1 * np.asarray(flow.velocity(s, jnp.asarray(x), jnp.full((4, 1), 0.1 * i)))
    np.testing.assert_allclose(flow.act(s, z), np.clip(x, -1, 1), rtol=1e-4, atol=1e-5)


def test_a_trained_flow_has_the_behaviours_two_modes():
    """Logged actions are ±0.7, independent of the state: so must be the flow's."""
    algo = FQL(
        FQLSettings(
            hidden=(32, 32),
            policy=PolicySettings(hidden=(32, 32), learning_rate=3e-3),
            batch_size=256,
            critic_learning_rate=3e-3,
        ),
        Spec(1, 1, 600),
    )
    key = jax.random.key(0)

    @eqx.filter_jit
    def train(state, key):
        arrays, static = eqx.partition(state, eqx.is_array)

        def body(i, arrays):
            signs, update_key = jax.random.split(jax.random.fold_in(key, i))
            a = 0.7 * jax.random.rademacher(signs, (256, 1), jnp.float32)
            zeros = jnp.zeros((256, 1))
            query = Transition(zeros, a, zeros[:, 0], zeros, a, zeros[:, 0])
            state = algo.update(eqx.combine(arrays, static), Batch(query), update_key)[0]
            return eqx.filter(state, eqx.is_array)

        return eqx.combine(jax.lax.fori_loop(0, 600, body, arrays), static)

    state = train(eqx.filter_jit(algo.init)(key), key)
    z = jax.random.normal(jax.random.key(3), (500, 1))
    a = np.asarray(state.flow.model.act(jnp.zeros((500, 1)), z))
    assert np.mean(np.abs(np.abs(a) - 0.7) < 0.2) > 0.85
    assert 0.35 < np.mean(a > 0) < 0.65
    one_step = np.asarray(state.pi.model.raw(jnp.zeros((500, 1)), z))
    assert np.mean(np.abs(one_step - a)) < 0.25  # distilled: the same action from the same noise


def test_aggregate():
    q = jnp.array([[1.0, 5.0], [3.0, -1.0]])
    np.testing.assert_allclose(aggregate(q, "mean"), [2, 2])
    np.testing.assert_allclose(aggregate(q, "min"), [1, -1])


def test_noise_is_standard_normal_and_belongs_to_the_state():
    s = jax.random.normal(jax.random.key(0), (2000, OBS))
    z = np.asarray(noise_of_state(s, (ACT,)))
    assert stats.kstest(z.ravel(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(z.T)[0, 1]) < 0.1
    order = np.random.default_rng(0).permutation(2000)[:50]
    np.testing.assert_array_equal(noise_of_state(s[order], (ACT,)), z[order])
    nearby = noise_of_state(s.at[:, 1].multiply(1 + 1e-6), (ACT,))
    assert abs(np.corrcoef(z[:, 0], np.asarray(nearby)[:, 0])[0, 1]) < 0.1


# --- chunks ---------------------------------------------------------------------------------------


def test_chunk_target_by_a_slow_loop():
    rng = np.random.default_rng(0)
    r, mask = rng.normal(size=(6, 5)), np.ones((6, 5))
    mask[::2, -1] = 0
    v = rng.normal(size=6)
    expected = []
    for i in range(6):
        total, factor = 0.0, 1.0
        for j in range(5):
            total += factor * r[i, j]
            factor *= 0.9
        expected.append(total + factor * mask[i, -1] * v[i])
    y = chunk_target(*(jnp.asarray(x, jnp.float32) for x in (r, mask, v)), 0.9)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_chunk_target_of_one_step_is_the_bellman_target():
    y = chunk_target(jnp.array([[1.0], [1.0]]), jnp.array([[1.0], [0.0]]), jnp.full(2, 10.0), 0.9)
    np.testing.assert_allclose(y, [10.0, 1.0], rtol=1e-6)


def test_masked_mean_counts_the_whole_batch():
    loss = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    assert float(masked_mean(loss, jnp.array([True, False]))) == pytest.approx(4.0 / 4)


def chunk_batch(seed: int, valid: np.ndarray) -> Batch:
    rng = np.random.default_rng(seed)
    b, h = valid.shape

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.uniform(-0.9, 0.9, shape), jnp.float32)

    ones = jnp.ones((b, h))
    steps = Transition(
        normal(b, h, OBS),
        normal(b, h, ACT),
        normal(b, h),
        normal(b, h, OBS),
        normal(b, h, ACT),
        ones,
    )
    index = jnp.zeros((b, h), jnp.int32)
    window = Window(steps, jnp.asarray(valid), index, jnp.zeros((b, h)), index[:, 0])
    return Batch(jax.tree.map(lambda x: x[:, 0], steps), window=window)


def test_what_lies_beyond_the_episode_does_not_train_qc():
    """Steps marked invalid may hold anything: flow and critics come out the same."""
    algo = QC(
        QCSettings(
            hidden=(8,),
            policy=PolicySettings(hidden=(8,)),
            chunk=3,
            samples=2,
            flow_steps=2,
            batch_size=4,
        ),
        Spec(OBS, ACT, 10),
    )
    valid = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
    batch = chunk_batch(0, valid)
    state, key = eqx.filter_jit(algo.init)(jax.random.key(0)), jax.random.key(1)
    update = eqx.filter_jit(algo.update)

    def with_reward(batch: Batch, row: int) -> Batch:
        r = batch.window.steps.r.at[row].add(100.0)
        return eqx.tree_at(lambda b: b.window.steps.r, batch, r)

    q = [
        jax.tree.leaves(update(state, b, key)[0].q.model)
        for b in (batch, with_reward(batch, 1), with_reward(batch, 3))
    ]
    assert all(np.array_equal(a, b) for a, b in zip(q[0], q[1], strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(q[0], q[2], strict=True))

    def flow_loss(batch: Batch) -> float:
        return float(update(state, batch, key)[1]["flow_loss"])

    everything = dataclasses.replace(batch.window, valid=jnp.ones_like(batch.window.valid))
    full = flow_loss(dataclasses.replace(batch, window=everything))
    assert 0 < flow_loss(batch) < full  # the masked entries count as zeros


def test_qc_critic_loss_is_the_chunk_target_of_the_best_of_n():
    algo = QC(
        QCSettings(
            hidden=(8,),
            policy=PolicySettings(hidden=(8,)),
            chunk=3,
            samples=4,
            flow_steps=2,
            batch_size=4,
        ),
        Spec(OBS, ACT, 10),
    )
    batch = chunk_batch(1, np.ones((4, 3), bool))
    state, key = eqx.filter_jit(algo.init)(jax.random.key(0)), jax.random.key(1)
    _, metrics = eqx.filter_jit(algo.update)(state, batch, key)
    steps, noise_key = batch.window.steps, jax.random.split(key, 3)[0]
    tries = jax.random.normal(noise_key, (4, 4, 3 * ACT))
    s_next, expected = steps.s_next[:, -1], []
    for i in range(4):
        chunks = [state.flow.model.act(s_next[i], z) for z in tries[:, i]]
        values = [float(state.q.model.at(s_next[i])(c).mean()) for c in chunks]
        best = max(values)  # the target critics are still the critics
        y = sum(0.99**j * float(steps.r[i, j]) for j in range(3)) + 0.99**3 * best
        q = np.asarray(state.q.model.at(steps.s[i, 0])(steps.a[i].reshape(-1)))
        expected.append((q - y) ** 2)
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean(expected), rel=1e-4)


def test_distillation_by_hand():
    q = jnp.array([2.0, 4.0])
    a, a_flow = jnp.array([[1.0, 0.0], [3.0, 1.0]]), jnp.array([[0.0, 0.0], [1.0, 2.0]])
    loss, distance = distillation_loss(q, a, a_flow, 10.0)
    assert distance == pytest.approx((1 + 0 + 4 + 1) / 4)
    assert loss == pytest.approx(10 * 1.5 - 3.0)


@pytest.mark.parametrize("name", ["fql", "qc"])
def test_targets_follow_the_critics_as_they_were(name):
    """fql and qc, target_update: τ of the parameters before the gradient step."""
    small = {"hidden": (8,), "policy.hidden": (8,), "batch_size": 4, "target_rate": 0.25}
    settings = override(resolve_preset(name, "quick", None).settings, small)
    algo = make_algorithm(name, settings, Spec(OBS, ACT, 10))
    batch = chunk_batch(2, np.ones((4, settings.chunk if name == "qc" else 3), bool))
    update = eqx.filter_jit(algo.update)
    begin = algo.init(jax.random.key(0))
    first, _ = update(begin, batch, jax.random.key(1))
    second, _ = update(first, batch, jax.random.key(2))
    states = (begin.q.model, first.q.model, first.q_target, second.q_target)
    for fresh, q, target, later in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(target, fresh, rtol=1e-6)
        np.testing.assert_allclose(
            later, 0.75 * np.asarray(fresh) + 0.25 * np.asarray(q), rtol=1e-5, atol=1e-7
        )


def test_qc_fql_distils_the_flow_and_bootstraps_from_one_step():
    """Critic and policy losses of the distilled actor, worked out row by row."""
    settings = QCSettings(
        hidden=(8,),
        policy=PolicySettings(hidden=(8,)),
        chunk=3,
        flow_steps=2,
        batch_size=4,
        actor="distilled",
    )
    assert settings.alpha == 100.0
    algo = QC(settings, Spec(OBS, ACT, 10))
    batch = chunk_batch(2, np.ones((4, 3), bool))
    state, key = eqx.filter_jit(algo.init)(jax.random.key(0)), jax.random.key(1)
    _, metrics = eqx.filter_jit(algo.update)(state, batch, key)
    steps, keys = batch.window.steps, jax.random.split(key, 4)
    z_next, z = (jax.random.normal(k, (4, 3 * ACT)) for k in (keys[0], keys[3]))
    errors, distances, values = [], [], []
    for i in range(4):
        chunk_next = jnp.clip(state.pi.model.raw(steps.s_next[i, -1], z_next[i]), -1, 1)
        q_next = float(state.q.model.at(steps.s_next[i, -1])(chunk_next).mean())
        y = sum(0.99**j * float(steps.r[i, j]) for j in range(3)) + 0.99**3 * q_next
        q = np.asarray(state.q.model.at(steps.s[i, 0])(steps.a[i].reshape(-1)))
        errors.append((q - y) ** 2)
        a = np.asarray(state.pi.model.raw(steps.s[i, 0], z[i]))
        distances.append((a - np.asarray(state.flow.model.act(steps.s[i, 0], z[i]))) ** 2)
        values.append(float(state.q.model.at(steps.s[i, 0])(jnp.clip(a, -1, 1)).mean()))
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean(errors), rel=1e-4)
    assert float(metrics["distillation"]) == pytest.approx(np.mean(distances), rel=1e-4)
    expected = 100 * np.mean(distances) - np.mean(values)
    assert float(metrics["policy_loss"]) == pytest.approx(expected, rel=1e-4)


def test_fql_with_a_local_critic_learns_from_in_context_values():
    """Its critic loss, with TD in every context and the target worked out in NumPy."""
    local = LocalSettings(layers=3, features=4, dropout=0.0, c_scale=4.0)
    settings = FQLSettings(
        critic="local",
        hidden=(8,),
        policy=PolicySettings(hidden=(8,)),
        flow_steps=2,
        local=local,
        context=ContextSettings(k=5),
    )
    algo = FQL(settings, Spec(OBS, ACT, 10))
    rows, context, context_next = (transitions_of(seed, n) for seed, n in ((0, 1), (1, 5), (2, 5)))
    query = jax.tree.map(lambda x: x[:, 0], rows)
    state, key = eqx.filter_jit(algo.init)(jax.random.key(0)), jax.random.key(1)
    _, metrics = eqx.filter_jit(algo.update)(state, Batch(query, context, context_next), key)

    def q_hat(s: np.ndarray, a: np.ndarray, context: Transition, member: int) -> np.ndarray:
        critic = jax.tree.map(lambda x: x[member] if eqx.is_array(x) else x, state.q.model.members)

        def phi(s: np.ndarray, a: np.ndarray) -> np.ndarray:
            return np.asarray(critic.features(jnp.concatenate([s, a], -1)), np.float64)

        values = []
        for i in range(len(s)):
            now, after = phi(context.s[i], context.a[i]), phi(context.s_next[i], context.a_next[i])
            after = np.asarray(context.mask[i])[:, None] * after
            w = np.zeros(4)
            for c in np.asarray(critic.module.C):
                delta = np.asarray(context.r[i]) + (0.99 * after - now) @ w
                w = w + c @ now.T @ delta / len(now)
            values.append(phi(s[i], a[i]) @ w)
        return np.stack(values)

    a_next = state.pi.model.sample(query.s_next, key=jax.random.split(key, 5)[0])
    q_next = np.mean([q_hat(query.s_next, a_next, context_next, i) for i in (0, 1)], axis=0)
    y = np.asarray(query.r) + 0.99 * np.asarray(query.mask) * q_next
    errors = [(q_hat(query.s, query.a, context, i) - y) ** 2 for i in (0, 1)]
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean(errors), rel=1e-4)


def transitions_of(seed: int, n: int) -> Transition:
    """Six rows of n made-up transitions, some of them terminal."""
    rng = np.random.default_rng(seed)

    def uniform(*shape: int) -> jax.Array:
        return jnp.asarray(rng.uniform(-0.9, 0.9, (6, n, *shape)), jnp.float32)

    mask = jnp.asarray(rng.random((6, n)) < 0.7, jnp.float32)
    return Transition(uniform(OBS), uniform(ACT), uniform(), uniform(OBS), uniform(ACT), mask)


def test_qc_executes_a_chunk_to_its_end_and_plans_anew_when_an_episode_begins():
    algo = QC(
        QCSettings(
            hidden=(8,), policy=PolicySettings(hidden=(8,)), chunk=3, samples=4, flow_steps=2
        ),
        Spec(OBS, ACT, 10),
    )
    policy = algo.policy(eqx.filter_jit(algo.init)(jax.random.key(0)))
    step, choose = eqx.filter_jit(type(policy).step), eqx.filter_jit(type(policy.chunks).choose)
    s = jax.random.normal(jax.random.key(1), (7, 2, OBS))
    fresh = np.zeros((7, 2), bool)
    fresh[0] = True
    fresh[2, 1] = True  # the second row's episode ends after two steps
    carry, played, plans = policy.start(2), [], []
    for t in range(7):
        a, carry = step(policy, carry, s[t], jnp.zeros(2), jnp.asarray(fresh[t]))
        played.append(np.asarray(a))
        noise = jnp.moveaxis(noise_of_state(s[t], (4, 3 * ACT)), 1, 0)
        plans.append(np.asarray(choose(policy.chunks, s[t], noise)).reshape(2, 3, ACT))
    for row, begins in ((0, [0, 0, 0, 3, 3, 3, 6]), (1, [0, 0, 2, 2, 2, 5, 5])):
        for t, begin in enumerate(begins):
            np.testing.assert_allclose(played[t][row], plans[begin][row][t - begin], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: FQLSettings(alpha=-1.0), "alpha"),
        (lambda: FQLSettings(flow_steps=0), "flow_steps"),
        (lambda: QCSettings(chunk=0), "chunk"),
        (lambda: QCSettings(samples=0), "samples"),
        (lambda: QCSettings(alpha=-1.0), "alpha"),
        (lambda: QCSettings(discount=1.0), "discount"),
        (lambda: QCSettings(critic="local"), "critic: QC has no local critic.*fql --critic local"),
    ],
)
def test_settings_out_of_range(make, setting):
    with pytest.raises(UserError, match=setting):
        make()
