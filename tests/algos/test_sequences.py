"""Windows of episodes, and what is trained on them: DT and RA-DT."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icql.algos.base import Spec
from icql.algos.dt import DT, action_loss, trajectory_of
from icql.algos.radt import ACTING, NO_EPISODE, Archive
from icql.data.transitions import Steps, Transitions
from icql.errors import UserError
from icql.evaluation.rollout import Player, act_all, rollout, start_all, step_all
from icql.nn.policies import Standardised
from icql.nn.transformer import DecisionTransformer, Goal, History, Trajectory, causal_mask
from icql.settings.algorithms import DTSettings, RADTSettings
from icql.settings.contexts import DataSettings
from icql.training.device import DeviceData, Normaliser, find_episodes, to_device

OBS, ACT = 2, 1
PLAIN = Normaliser(np.zeros(OBS, np.float32), np.ones(OBS, np.float32), 1.0)


def log(lengths: list[int], ends: list[bool], invalid: set[int] = frozenset()) -> Transitions:  # type: ignore[assignment]
    """Episodes whose rewards and states say where they are: r = 100·episode + step."""
    rows = sum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    number = np.concatenate([np.arange(n) for n in lengths])
    last = np.concatenate([np.arange(n) == n - 1 for n in lengths])
    terminal = last & np.asarray(ends)[episode]
    where = np.stack([episode, number], 1).astype(np.float32)
    return Transitions.from_steps(
        Steps(
            observations=where,
            actions=np.full((rows, ACT), 0.5, np.float32),
            rewards=(100.0 * episode + number).astype(np.float32),
            terminals=terminal,
            timeouts=last & ~terminal,
            next_observations=where + np.float32([0, 1]),
            valid=np.array([i not in invalid for i in range(rows)]),
        )
    )


def on_device(data: Transitions, length: int, scale: float = 1.0, shift: float = 0.0) -> DeviceData:
    changed = dataclasses.replace(PLAIN, reward_scale=scale, reward_shift=shift)
    return to_device(data, changed, None, length=length)


# --- windows --------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 9), st.booleans()), min_size=1, max_size=6),
    st.sets(st.integers(0, 30), max_size=3),
    st.integers(1, 4),
)
@example([(9, True), (4, False)], {4}, 4)  # a row left out in the middle breaks the run
def test_windows_never_leave_their_episode(episodes, invalid, length):
    lengths, ends = [n for n, _ in episodes], [e for _, e in episodes]
    try:
        data = log(lengths, ends, invalid)
        device = on_device(data, length)
    except UserError:
        return  # nothing is left, or no episode is long enough
    window = jax.tree.map(np.asarray, device.window(jnp.arange(len(data))))
    for i in range(len(data)):
        steps = 0  # a slow count of the steps that follow on from row i
        while (
            steps < length
            and i + steps < len(data)
            and data.episode[i + steps] == data.episode[i]
            and data.step[i + steps] == data.step[i] + steps
        ):
            steps += 1
        np.testing.assert_array_equal(window.valid[i], np.arange(length) < steps)
        assert window.episode[i] == data.episode[i]
        expected = np.stack(
            [np.full(steps, data.episode[i]), data.step[i] + np.arange(steps)], axis=1
        )
        np.testing.assert_array_equal(window.steps.s[i, :steps], expected)
        np.testing.assert_array_equal(window.timestep[i, :steps], expected[:, 1])
        # even the padding comes from the same episode
        np.testing.assert_array_equal(window.steps.s[i, :, 0], np.full(length, data.episode[i]))


def test_returns_to_go_by_a_slow_loop():
    data = log([4, 3, 5], [True, False, True])
    window = on_device(data, 2, scale=0.5, shift=-3.0).window(jnp.arange(len(data)))
    for i in range(len(data)):
        rest = sum(
            0.5 * float(data.rewards[j]) - 3
            for j in range(i, len(data))
            if data.episode[j] == data.episode[i]
        )
        assert float(window.to_go[i, 0]) == pytest.approx(rest)


def test_batches_are_windows_only_where_asked_for():
    data = log([5, 5], [True, True])
    window = on_device(data, 3).sample(jax.random.key(0), 16).window
    assert window is not None
    assert window.steps.s.shape == (16, 3, OBS)
    plain = to_device(data, PLAIN, None)
    assert plain.sample(jax.random.key(0), 4).window is None


@pytest.mark.parametrize("order", ["shuffled", "reversed", "two orders"])
def test_shuffled_transitions_are_refused(order):
    data = log([6, 6], [True, True])
    rows = {
        "shuffled": np.random.default_rng(0).permutation(len(data)),
        "reversed": np.arange(len(data))[::-1],
        "two orders": np.append(np.arange(0, len(data), 2), np.arange(1, len(data), 2)),
    }[order]
    with pytest.raises(UserError, match="shuffled"):
        find_episodes(data.subset(rows), PLAIN, 2)


def test_a_window_longer_than_every_episode_is_refused():
    data = log([6, 4, 3], [False, True, True])  # 5, 4 and 2 transitions
    find_episodes(data, PLAIN, 5)
    with pytest.raises(UserError, match=r"sequence length.*6 steps .*\(5 transitions\)"):
        find_episodes(data, PLAIN, 6)


# --- the Transformer ------------------------------------------------------------------------------


def transformer(cross: bool = False, dropout: float = 0.0) -> DecisionTransformer:
    return eqx.filter_jit(
        lambda key: DecisionTransformer(
            OBS,
            ACT,
            width=8,
            layers=2,
            heads=2,
            timesteps=20,
            rate=dropout,
            cross=cross,
            key=key,
        )
    )(jax.random.key(0))


def trajectory(seed: int, rows: int = 3, length: int = 5) -> Trajectory:
    rng = np.random.default_rng(seed)
    return Trajectory(
        to_go=jnp.asarray(rng.normal(size=(rows, length)), jnp.float32),
        s=jnp.asarray(rng.normal(size=(rows, length, OBS)), jnp.float32),
        a=jnp.asarray(rng.normal(size=(rows, length, ACT)), jnp.float32),
        timestep=jnp.tile(jnp.arange(length), (rows, 1)),
        valid=jnp.ones((rows, length), bool),
    )


@cache
def apply(cross: bool = False) -> Any:
    return eqx.filter_jit(transformer(cross))


@pytest.mark.parametrize("t", [0, 2, 4])
def test_the_future_does_not_change_the_present(t):
    """π at t depends on R̂_≤t, s_≤t and a_<t, and on nothing after."""
    now = trajectory(0)
    later = trajectory(1)

    def mixed(first: int, kept: int) -> Trajectory:
        """Before `first` (actions: `kept`) from one trajectory, after it from another."""
        return Trajectory(
            now.to_go.at[:, first:].set(later.to_go[:, first:]),
            now.s.at[:, first:].set(later.s[:, first:]),
            now.a.at[:, kept:].set(later.a[:, kept:]),
            now.timestep,
            now.valid,
        )

    before = apply()(now)
    np.testing.assert_allclose(apply()(mixed(t + 1, t))[:, : t + 1], before[:, : t + 1], rtol=1e-5)
    assert not np.allclose(apply()(mixed(t, t))[:, t], before[:, t])
    if t:
        assert not np.allclose(apply()(mixed(t + 1, t - 1))[:, t], before[:, t])


def test_padding_is_never_seen_and_its_side_does_not_matter():
    whole, other = trajectory(0), trajectory(1)

    def padded(side: str) -> Trajectory:
        order = (other, whole) if side == "left" else (whole, other)
        joined = jax.tree.map(lambda *x: jnp.concatenate(x, 1), *order)
        valid = [jnp.zeros((3, 5), bool), jnp.ones((3, 5), bool)]
        valid = valid if side == "left" else valid[::-1]
        return eqx.tree_at(lambda t: t.valid, joined, jnp.concatenate(valid, 1))

    expected = apply()(whole)
    np.testing.assert_allclose(apply()(padded("left"))[:, 5:], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(apply()(padded("right"))[:, :5], expected, rtol=1e-4, atol=1e-6)


def test_causal_mask_by_hand():
    mask = np.asarray(causal_mask(jnp.array([[False, True]])))[0]
    expected = [[0] * 6] * 3 + [[0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]]
    np.testing.assert_array_equal(mask, np.array(expected, bool))


def test_attention_against_numpy():
    attention = transformer().blocks[0].attention
    x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype(np.float32)
    allowed = np.tril(np.ones((3, 3), bool))
    q = x[0] @ np.asarray(attention.query.weight)
    k, v = np.split(x[0] @ np.asarray(attention.key_value.weight), 2, axis=1)
    out = np.zeros((3, 8))
    for head in (slice(0, 4), slice(4, 8)):
        for t in range(3):
            weight = np.exp(k[: t + 1, head] @ q[t, head] / 2)
            out[t, head] = (weight / weight.sum()) @ v[: t + 1, head]
    expected = out @ np.asarray(attention.out.weight)
    result = attention(jnp.asarray(x), jnp.asarray(x), jnp.asarray(allowed)[None])
    np.testing.assert_allclose(result[0], expected, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_mean_and_needs_a_key():
    model = transformer(dropout=0.25)
    x = trajectory(0, rows=1)
    run = eqx.filter_jit(lambda x, key: model(x, key=key))
    np.testing.assert_allclose(run(x, None), apply()(x), rtol=1e-5)
    assert not np.allclose(run(x, jax.random.key(0)), run(x, jax.random.key(1)))
    from icql.nn.transformer import _drop

    dropped = np.asarray(_drop(jnp.ones((99, 101)), 0.25, jax.random.key(0), 0))
    assert np.mean(dropped == 0) == pytest.approx(0.25, abs=0.02)
    assert dropped.mean() == pytest.approx(1.0, abs=0.03)


def test_the_loss_counts_valid_steps_only():
    t = trajectory(0)
    t = eqx.tree_at(lambda t: t.valid, t, t.valid.at[0, 3:].set(False))
    wrong = t.a.at[0, 3:].add(7.0).at[1, 0].add(2.0)
    assert float(action_loss(wrong, t)) == pytest.approx(4.0 / 13)


# --- acting ---------------------------------------------------------------------------------------


def test_history_counts_down_the_return_and_forgets_a_finished_episode():
    history = History.empty(2, 3, OBS, ACT)
    goal = Goal(10.0, 2.0, False)
    seen = jnp.arange(5.0).reshape(5, 1, 1) * jnp.ones((5, 2, OBS))
    rewards = jnp.array([[0, 0], [1, 2], [3, 4], [5, 0], [1, 1.0]])
    fresh = np.zeros((5, 2), bool)
    fresh[0] = fresh[3, 1] = True
    for t in range(5):
        history = history.saw(seen[t], rewards[t], jnp.asarray(fresh[t]), goal)
        history = history.did(jnp.full((2, ACT), float(t)))
    steps = history.steps
    np.testing.assert_allclose(steps.to_go[0], [3.0, 0.5, 0.0])
    np.testing.assert_allclose(steps.to_go[1, 1:], [5.0, 4.5])
    np.testing.assert_array_equal(steps.timestep[0], [2, 3, 4])
    np.testing.assert_array_equal(steps.timestep[1, 1:], [0, 1])
    np.testing.assert_array_equal(steps.valid, [[1, 1, 1], [0, 1, 1]])
    np.testing.assert_array_equal(steps.a[..., 0], [[2, 3, 4], [2, 3, 4]])


def test_running_rewards_count_what_was_earned_so_far_every_step():
    """Paid 1 once, the log says 1 from then on: returns-to-go fall by 1 each step."""
    history = History.empty(1, 4, OBS, ACT)
    for t, reward in enumerate([0.0, 1.0, 0.0, 1.0]):
        history = history.saw(
            jnp.zeros((1, OBS)), jnp.array([reward]), jnp.array([t == 0]), Goal(9.0, 1.0, True)
        )
    np.testing.assert_allclose(history.steps.to_go[0], [9, 8, 7, 5])


TINY = DTSettings(width=8, layers=1, length=4, timesteps=20, target_return=5.0, return_scale=1.0)


@cache
def dt_policies() -> Standardised:
    """Policies of two seeds, stacked."""
    algo = DT(TINY, Spec(OBS, ACT, 100))
    policies = eqx.filter_jit(eqx.filter_vmap(lambda key: algo.policy(algo.init(key))))(
        jax.random.split(jax.random.key(0), 2)
    )
    return Standardised(policies, jnp.zeros((2, OBS)), jnp.ones((2, OBS)))


def test_dt_acts_as_it_was_trained():
    """Stepping through an episode gives the actions of the whole window, read off at once."""
    policies = dt_policies()
    model = jax.tree.map(lambda x: x[1] if eqx.is_array(x) else x, policies.policy.model)
    s = jax.random.normal(jax.random.key(1), (4, 2, 3, OBS))  # step, seed, row
    rewards = jnp.arange(4.0)[:, None, None] * jnp.ones((4, 2, 3))
    carry, played = start_all(policies, 3), []
    for t in range(4):
        fresh = jnp.full((2, 3), t == 0)
        a, carry = step_all(policies, carry, s[t], rewards[t], fresh)
        played.append(a)
    window = Trajectory(
        to_go=jnp.tile(5 - jnp.cumsum(jnp.arange(4.0)), (3, 1)),
        s=jnp.moveaxis(s[:, 1], 0, 1),
        a=jnp.stack(played, 2)[1],
        timestep=jnp.tile(jnp.arange(4), (3, 1)),
        valid=jnp.ones((3, 4), bool),
    )
    expected = eqx.filter_jit(model)(window)
    for t in range(4):
        np.testing.assert_allclose(played[t][1], expected[:, t], rtol=1e-4, atol=1e-6)


def test_without_history_a_policy_acts_as_at_the_beginning():
    policies, s = dt_policies(), jax.random.normal(jax.random.key(2), (2, 3, OBS))
    carry = start_all(policies, 3)
    first, _ = step_all(policies, carry, s, jnp.zeros((2, 3)), jnp.ones((2, 3), bool))
    np.testing.assert_allclose(act_all(policies, s), first, rtol=1e-5)


def test_a_policy_with_memory_is_compiled_once():
    policies, traces = dt_policies(), 0
    rows, carry = 5, None
    original = type(policies.policy).step

    def counted(self: Any, *seen: Any) -> Any:
        nonlocal traces
        traces += 1
        return original(self, *seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(policies.policy), "step", counted)
        carry = start_all(policies, rows)
        for t in range(4):
            s, r = np.full((2, rows, OBS), t, np.float32), np.zeros((2, rows), np.float32)
            fresh = np.full((2, rows), t == 0)
            _, carry = step_all(policies, carry, *(jnp.asarray(x) for x in (s, r, fresh)))
    assert traces == 1


def test_dt_learns_what_return_leads_to_which_action():
    """Episodes with a = +0.5 earn 1 a step, those with a = -0.5 nothing; the state says nothing."""
    rows, length = 200, 10
    good = np.repeat(np.arange(rows // length) % 2 == 0, length)
    last = np.tile(np.arange(length) == length - 1, rows // length)
    data = Transitions.from_steps(
        Steps(
            observations=np.zeros((rows, OBS), np.float32),
            actions=np.where(good, 0.5, -0.5)[:, None].astype(np.float32),
            rewards=good.astype(np.float32),
            terminals=last,
            timeouts=np.zeros(rows, bool),
            next_observations=np.zeros((rows, OBS), np.float32),
        )
    )
    device = on_device(data, 4)
    s = DTSettings(
        width=16,
        layers=1,
        length=4,
        timesteps=20,
        return_scale=10.0,
        learning_rate=1e-2,
        warmup=10,
        gradient_clip=1.0,
        batch_size=32,
    )
    algo = DT(s, Spec(OBS, ACT, 100))

    @eqx.filter_jit
    def train(key: Any) -> Any:
        arrays, static = eqx.partition(algo.init(key), eqx.is_array)

        def body(i: Any, arrays: Any) -> Any:
            batch = device.sample(jax.random.fold_in(key, i), 32)
            state = eqx.combine(arrays, static)
            return eqx.filter(algo.update(state, batch, key)[0], eqx.is_array)

        return eqx.combine(jax.lax.fori_loop(0, 150, body, arrays), static)

    state, chosen = train(jax.random.key(0)), []
    for target in (10.0, 0.0):
        asked = DT(dataclasses.replace(s, target_return=target), algo.spec).policy(state)
        chosen.append(float(eqx.filter_jit(asked)(jnp.zeros((1, OBS)))[0, 0]))
    assert chosen == pytest.approx([0.5, -0.5], abs=0.2)


# --- retrieval ------------------------------------------------------------------------------------


def memory_of(episodes: list[int], returns: list[float]) -> Archive:
    """Four places; embeddings are the unit vectors e_0, e_0, e_1, … of a plane."""
    s = RADTSettings(memory_size=4, refresh=1, candidates=2, width=2, length=3)
    memory = Archive.empty(s, Spec(OBS, ACT, 10))
    directions = jnp.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])
    for i, (episode, value) in enumerate(zip(episodes, returns, strict=True)):
        t = trajectory(i, rows=1, length=3)
        t = eqx.tree_at(lambda t: t.to_go, t, jnp.full((1, 3), value))
        memory = memory.write(t, directions[i : i + 1], jnp.array([episode], jnp.int32))
    return memory


def test_memory_retrieves_the_most_useful_of_the_most_similar():
    memory = memory_of([0, 1, 2, 3], [1.0, 5.0, 9.0, 99.0])
    query = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    episode = jnp.array([ACTING, 1, ACTING], jnp.int32)
    found = memory.retrieve(query, episode, 2)
    # rows 0 and 1 are alike, 1 earns more; from episode 1 itself, 0 and 2 remain; then 2 and 1
    np.testing.assert_allclose(found.to_go[:, 0], [5.0, 9.0, 9.0])
    assert found.valid.all()


def test_memory_without_another_episode_gives_nothing():
    memory = memory_of([7], [1.0])
    assert memory.episode.tolist() == [7, *[NO_EPISODE] * 3]
    found = memory.retrieve(jnp.array([[1.0, 0.0]] * 2), jnp.array([7, 8], jnp.int32), 2)
    np.testing.assert_array_equal(found.valid.any(-1), [False, True])


def test_memory_replaces_the_oldest():
    memory = memory_of([0, 1, 2, 3], [1.0] * 4)
    t = trajectory(9, rows=2, length=3)
    for episode in (4, 6):
        pair = jnp.array([episode, episode + 1], jnp.int32)
        memory = memory.write(t, jnp.ones((2, 2)), pair)
        assert set(memory.episode.tolist()) >= {episode, episode + 1}
    assert sorted(memory.episode.tolist()) == [4, 5, 6, 7]


def test_what_is_retrieved_changes_the_action_and_nothing_retrieved_adds_nothing():
    now, one, other = (trajectory(i) for i in range(3))
    run = eqx.filter_jit(transformer(cross=True))
    assert not np.allclose(run(now, one), run(now, other))
    nothing = eqx.tree_at(lambda t: t.valid, one, jnp.zeros_like(one.valid))
    # the bias of the output projection is zero at the start, so nothing seen adds exactly nothing
    np.testing.assert_allclose(run(now, nothing), run(now), rtol=1e-5, atol=1e-7)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: DTSettings(length=0), "length"),
        (lambda: DTSettings(width=10, heads=4), "width"),
        (lambda: DTSettings(return_scale=0.0), "return_scale"),
        (lambda: DTSettings(data=DataSettings(reward_scale=0.1)), "return_scale"),
        (lambda: DTSettings(data=DataSettings(reward_shift=-1.0)), "return_scale"),
        (lambda: RADTSettings(memory_size=10, candidates=20), "candidates"),
        (lambda: RADTSettings(batch_size=4, refresh=8), "refresh"),
        (lambda: RADTSettings(pretrain=0.0), "pretrain"),
    ],
)
def test_settings_out_of_range(make, setting):
    with pytest.raises(UserError, match=setting):
        make()


def test_the_network_sees_scaled_returns():
    device = on_device(log([4], [True]), 4)
    window = device.window(jnp.array([0]))
    np.testing.assert_allclose(trajectory_of(window, 2.0).to_go, window.to_go / 2)


# --- playing --------------------------------------------------------------------------------------


class Chain(gymnasium.Env[Any, Any]):
    """Episodes of a length drawn at reset; the n-th step pays n."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.end = 0, int(self.np_random.integers(1, 6))
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.full(1, self.count), float(self.count), self.count == self.end, False, {}


class Witness:
    """A player that carries the number of steps and checks all that it is told."""

    def start(self, rows: int) -> Any:
        return np.full(rows, -1.0)

    def step(self, carry: Any, s: Any, rewards: Any, fresh: Any) -> tuple[Any, Any]:
        carry = np.where(fresh, 0, carry + 1)
        playing = s[:, 0] == carry  # a row without further episodes keeps its last observation
        np.testing.assert_array_equal(fresh[playing], s[playing, 0] == 0)
        np.testing.assert_array_equal(rewards[playing], s[playing, 0])
        return np.zeros((len(s), 1)), carry


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_player_is_told_rewards_and_beginnings(parallel):
    player = Player(Witness().start, Witness().step)
    played = rollout(player, Chain, episodes=7, seed=0, parallel=parallel)
    np.testing.assert_array_equal(played.returns, played.lengths * (played.lengths + 1) / 2)
    assert len(set(played.lengths.tolist())) > 1
