"""SAC's losses and one whole update against independent NumPy arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Batch, Spec, Transition
from icql.algos.sac import SAC, SACState
from icql.errors import UserError
from icql.losses import (
    bellman_target,
    soft_actor_loss,
    soft_critic_loss,
    soft_value,
    temperature_loss,
)
from icql.settings.algorithms import SACSettings

OBS, ACT, B = 3, 2, 5


def test_critic_target_has_entropy_minimum_and_mask() -> None:
    v_next = soft_value(jnp.array([[4.0, 9.0], [3.0, 9.0]]), jnp.array([-2.0, 5.0]), jnp.array(0.5))
    y = bellman_target(jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0]), v_next, 0.9)
    # 1 + 0.9 (min(4, 3) + 0.5 * 2); the second is terminal: its reward alone
    np.testing.assert_allclose(y, [4.6, 2.0], rtol=1e-6)


def test_losses_by_hand() -> None:
    q = jnp.array([[1.0, 2.0], [0.0, 5.0]])
    assert soft_critic_loss(q, jnp.array([0.0, 3.0])) == pytest.approx(
        0.5 * (1 + 1) / 2 + 0.5 * (0 + 4) / 2
    )
    # min over critics: 0 and 2
    assert soft_actor_loss(q, jnp.array([-1.0, 3.0]), jnp.array(0.5)) == pytest.approx(
        ((-0.5 - 0) + (1.5 - 2)) / 2
    )
    log_alpha = jnp.log(0.2)
    assert temperature_loss(log_alpha, jnp.array([-1.0, 3.0]), -2.0) == pytest.approx(
        -0.2 * (-3 + 1) / 2
    )


@pytest.mark.parametrize(("log_prob", "sign"), [(3.0, 1), (-3.0, -1)])
def test_temperature_moves_the_entropy_to_its_target(log_prob: float, sign: int) -> None:
    # entropy is -log_prob; the target is -2, and gradient descent goes against the gradient
    slope = jax.grad(temperature_loss)(jnp.array(0.0), jnp.array([log_prob]), -2.0)
    assert np.sign(-slope) == sign


def linear(layer: object) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)  # type: ignore[attr-defined]


class ByHand:
    """SAC's update for networks without hidden layers, in float64, gradients by differences."""

    def __init__(self, settings: SACSettings, state: SACState, t: Transition, key: jax.Array):
        self.s, self.t = settings, {k: np.asarray(v, np.float64) for k, v in vars(t).items()}
        self.critics = linear(state.q.model.members.net.layers[0])  # (2, obs + act, 1), (2, 1)
        self.targets = linear(state.q_target.members.net.layers[0])
        self.policy = linear(state.pi.model.net.layers[0])
        self.log_alpha = float(state.log_temperature.model)
        noise = [jax.random.normal(k, (B, ACT)) for k in jax.random.split(key)]
        self.next_noise, self.actor_noise = (np.asarray(n, np.float64) for n in noise)

    @staticmethod
    def q(critics: tuple[np.ndarray, np.ndarray], s: np.ndarray, a: np.ndarray) -> np.ndarray:
        x = np.concatenate([s, a], 1)
        return np.stack([(x @ w + b)[:, 0] for w, b in zip(*critics, strict=True)])

    @staticmethod
    def draw(
        policy: tuple[np.ndarray, np.ndarray], s: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        mean, log_std = np.split(s @ policy[0] + policy[1], 2, axis=1)
        a = np.tanh(mean + np.exp(log_std) * noise)
        normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        return a, (normal - np.log(1 - a**2)).sum(1)

    def target(self) -> np.ndarray:
        a, log_prob = self.draw(self.policy, self.t["s_next"], self.next_noise)
        value = self.q(self.targets, self.t["s_next"], a).min(0) - np.exp(self.log_alpha) * log_prob
        return self.t["r"] + self.s.discount * self.t["mask"] * value

    def critic_loss(self, critics: tuple[np.ndarray, np.ndarray]) -> float:
        errors = self.q(critics, self.t["s"], self.t["a"]) - self.target()
        return float(0.5 * (errors**2).mean(1).sum())

    def actor_loss(self, policy: tuple[np.ndarray, np.ndarray]) -> float:
        a, log_prob = self.draw(policy, self.t["s"], self.actor_noise)
        return float(
            (np.exp(self.log_alpha) * log_prob - self.q(self.critics, self.t["s"], a).min(0)).mean()
        )

    def first_adam_step(
        self, loss: Callable[[tuple[np.ndarray, ...]], float], params: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, ...]:
        """Adam's first step is lr * g / (|g| + 1e-8)."""
        moved = []
        for i, p in enumerate(params):
            g = np.zeros_like(p)
            for at in np.ndindex(*p.shape):
                ends = []
                for h in (1e-5, -1e-5):
                    q = [x.copy() for x in params]
                    q[i][at] += h
                    ends.append(loss(tuple(q)))
                g[at] = (ends[0] - ends[1]) / 2e-5
            moved.append(p - self.s.learning_rate * g / (np.abs(g) + 1e-8))
        return tuple(moved)


def test_one_update_equals_numpy() -> None:
    settings = SACSettings(hidden=(), learning_rate=0.1, initial_temperature=0.3, discount=0.9)
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    t = Transition(
        normal(B, OBS),
        jnp.tanh(normal(B, ACT)),
        normal(B),
        normal(B, OBS),
        jnp.zeros((B, ACT)),
        jnp.array([1.0, 0.0, 1.0, 1.0, 0.0]),
    )
    sac, key = SAC(settings, Spec(OBS, ACT, 0)), jax.random.key(7)
    state = sac.init(jax.random.key(0))
    hand = ByHand(settings, state, t, key)
    new, metrics = jax.jit(sac.update)(state, Batch(t), key)

    assert metrics["critic_loss"] == pytest.approx(hand.critic_loss(hand.critics), rel=1e-5)
    before = hand.critics
    hand.critics = hand.first_adam_step(hand.critic_loss, hand.critics)
    for ours, theirs in zip(linear(new.q.model.members.net.layers[0]), hand.critics, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    # the actor sees the critics after their step
    assert metrics["policy_loss"] == pytest.approx(hand.actor_loss(hand.policy), rel=1e-4)
    policy = hand.first_adam_step(hand.actor_loss, hand.policy)
    for ours, theirs in zip(linear(new.pi.model.net.layers[0]), policy, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for ours, old, now in zip(
        linear(new.q_target.members.net.layers[0]), before, hand.critics, strict=True
    ):
        np.testing.assert_allclose(ours, 0.995 * old + 0.005 * now, atol=1e-5)
    _, log_prob = hand.draw(hand.policy, np.asarray(t.s, np.float64), hand.actor_noise)
    step = 0.1 * np.sign((log_prob - ACT).mean())
    assert float(new.log_temperature.model) == pytest.approx(np.log(0.3) + step, abs=1e-4)
    assert metrics["entropy"] == pytest.approx(-log_prob.mean(), rel=1e-4)


def test_it_learns_the_best_action_and_keeps_its_entropy() -> None:
    """One-step episodes with reward −20 (a − ½)²: the mean goes to ½, the entropy to −1."""
    sac = SAC(SACSettings(hidden=(16,), learning_rate=1e-2, batch_size=64), Spec(1, 1, 0))
    state = sac.init(jax.random.key(0))

    def update(state: SACState, key: jax.Array) -> tuple[SACState, jax.Array]:
        data_key, key = jax.random.split(key)
        s, a = jax.random.uniform(data_key, (2, 64, 1), minval=-1)
        zero = jnp.zeros(64)
        batch = Batch(Transition(s, a, -20 * (a[:, 0] - 0.5) ** 2, s, jnp.zeros_like(a), zero))
        state, metrics = sac.update(state, batch, key)
        return state, metrics["entropy"]

    keys = jax.random.split(jax.random.key(1), 4000)  # the temperature settles by 3000
    state, entropy = jax.jit(lambda state: jax.lax.scan(update, state, keys))(state)
    a = sac.policy(state)(jnp.linspace(-1, 1, 9)[:, None])
    np.testing.assert_allclose(a, 0.5, atol=0.1)
    assert float(entropy[-200:].mean()) == pytest.approx(-1, abs=0.15)


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.0), ("batch_size", 0), ("discount", 1.1)]
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        SACSettings(**{name: value})
