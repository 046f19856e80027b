"""Fitted Q evaluation (Le et al. 2019): the value of a policy by regression on its own targets.

    Q(s, a) ← r + γ m [Q̄(s', π(s'))]         Q̄ follows Q slowly, [·] holds it in the log's range
    estimate = mean over episodes of Q(s_0, π(s_0))

Where π does what was hardly tried, Q̄ is a guess, and a guess that is learned from again can run
away, to values that no policy has. So a value counts as no less than the least, and no more than
the largest, that ever followed a row of the log; how often it is held there is measured on held-out
rows (`outside`).

The behaviour is evaluated beside every policy, by the same networks on the same rows, with the
logged next action in place of π(s'). What that value should be is in the log: how far it is off
says how far the others may be.

Networks see s and a in units of their spread, and give Q in units of the logged returns,
Q = μ + σ f: f starts at the mean of the log, its target is (r − μ + γ m μ) / σ + γ m f̄(s', π(s')).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from icql.algos.optimise import Trained, adam, descend, follow, start
from icql.judging.fitting import Drawn, Told, fit, standardise
from icql.judging.log import Doubles, Log
from icql.nn.initialisation import orthogonal_net
from icql.nn.mlp import MLP
from icql.settings.judge import JudgeSettings

BLOCK = 2**15  # rows whose values are asked for at once


class Evaluator(eqx.Module):
    """A network, its optimiser and the target that follows it."""

    online: Trained[MLP]
    target: MLP


class _Shared(eqx.Module):
    """What all networks learn from, normalised."""

    pairs: Float[Array, "n inputs"]  # s and a
    rewards: Float[Array, " n"]
    ahead: Float[Array, " n"]  # γ m
    next_states: Float[Array, "n obs"]
    next_actions: Float[Array, "policies n act"]
    limits: Float[Array, "2"]  # the least and the largest logged outcome


@dataclass(frozen=True)
class FQEUpdate:
    """One step of one network towards r + γ m [Q̄(s', π(s'))]."""

    learning_rate: float
    target_rate: float
    updates: int

    @property
    def optimiser(self) -> Any:
        """Adam with a cosine."""
        return adam(self.learning_rate, cosine_steps=self.updates)

    def __call__(self, state: Evaluator, given: Any, rows: Int[Array, " batch"]) -> Evaluator:
        """Regress on the target, which then follows."""
        policy, log = given
        there = jnp.concatenate([log.next_states[rows], log.next_actions[policy, rows]], -1)
        beyond = jnp.clip(state.target(there)[..., 0], *log.limits)
        y = log.rewards[rows] + log.ahead[rows] * beyond

        def loss(net: MLP) -> tuple[Array, None]:
            return jnp.square(net(log.pairs[rows])[..., 0] - y).mean(), None

        online, _, _ = descend(state.online, self.optimiser, loss)
        return Evaluator(online, follow(state.target, online.model, self.target_rate))


@dataclass(frozen=True)
class QFunctions:
    """Fitted networks: S of every policy, those of the behaviour last."""

    nets: Any  # stacked along an axis of policies × S
    seeds: int
    inputs: tuple[Any, Any]  # mean and spread of s and a
    outputs: tuple[float, float]  # μ and σ
    limits: tuple[float, float]  # values are held between them in targets

    def __call__(self, policy: int, states: Any, actions: Any) -> Doubles:
        """Q(s, a) of every network (S, B) of a policy; -1 is the behaviour."""
        own = slice(policy * self.seeds, (policy * self.seeds + self.seeds) or None)
        nets = jax.tree.map(lambda x: x[own] if eqx.is_array(x) else x, self.nets)
        mean, std = self.inputs
        pairs = (np.concatenate([states, actions], -1) - mean) / std
        rows = len(pairs)
        # few sizes, so that few programs are compiled
        block = min(BLOCK, 1 << (rows - 1).bit_length())
        padded = np.pad(pairs, ((0, -rows % block), (0, 0)))
        found = [
            np.asarray(_values(nets, jnp.asarray(padded[i : i + block])), np.float64)
            for i in range(0, rows, block)
        ]
        return self.outputs[0] + self.outputs[1] * np.concatenate(found, -1)[:, :rows]

    def held(self, values: Doubles) -> Doubles:
        """Values as targets see them."""
        return np.clip(values, *self.limits)


@eqx.filter_jit
def _values(nets: Any, pairs: Any) -> Any:
    return eqx.filter_vmap(lambda net: net(pairs)[..., 0], in_axes=eqx.if_array(0))(nets)


@eqx.filter_jit
def _begin(update: FQEUpdate, inputs: int, hidden: tuple[int, ...], keys: Any) -> Any:
    def one(key: Any) -> Evaluator:
        net = MLP(inputs, hidden, 1, layer_norm=True, init=orthogonal_net(0.01), key=key)
        return Evaluator(start(net, update.optimiser), net)

    return eqx.filter_vmap(one)(keys)


def fit_q(
    log: Log,
    next_actions: NDArray[np.float32],
    drawn: Drawn,
    settings: JudgeSettings,
    told: Any,
) -> QFunctions:
    """Evaluate policies and the behaviour.

    Args:
        log: all rows; those of `drawn` are fitted on.
        next_actions: (P, N, act) of every policy at s'; the logged ones are added here.
        drawn: rows of the S networks of a policy, the same for all.
        settings: how long, how wide.
        told: hears of updates done and the `QFunctions` so far; returns whether to go on.
    """
    s, data = settings, log.data
    policies, nets = len(next_actions) + 1, s.seeds * (len(next_actions) + 1)
    mean, std = standardise(np.concatenate([data.states, data.actions], -1))
    wide = data.observation_dim
    logged = log.returns_to_go(s.discount, float(data.rewards.mean()) / (1 - s.discount))
    mu, sigma = float(logged.mean()), float(logged.std()) or 1.0
    limits = float(logged.min()), float(logged.max())
    ahead = s.discount * np.asarray(data.mask, np.float64)
    actions = np.concatenate([next_actions, np.asarray(data.next_actions)[None]])
    shared = _Shared(
        jnp.asarray((np.concatenate([data.states, data.actions], -1) - mean) / std),
        jnp.asarray((data.rewards - mu + ahead * mu) / sigma, jnp.float32),
        jnp.asarray(ahead, jnp.float32),
        jnp.asarray((data.next_states - mean[:wide]) / std[:wide]),
        jnp.asarray((actions - mean[wide:]) / std[wide:]),
        jnp.asarray((np.asarray(limits) - mu) / sigma, jnp.float32),
    )
    update = FQEUpdate(s.learning_rate, s.target_rate, s.updates)
    # networks of one stream start alike: differences between policies are not those of a start
    keys = jnp.tile(jax.random.split(jax.random.key(s.seed), s.seeds), policies)
    states = _begin(update, len(mean), s.hidden, keys)

    def functions(states: Evaluator) -> QFunctions:
        return QFunctions(states.online.model, s.seeds, (mean, std), (mu, sigma), limits)

    tell: Told = lambda done, states: told(done, functions(states))  # noqa: E731
    own = jnp.repeat(jnp.arange(policies), s.seeds)
    assert len(own) == nets
    states = fit(
        update,
        states,
        (own, shared),
        drawn.repeated(policies),
        batch=s.batch_size,
        updates=s.updates,
        seed=s.seed,
        told=tell,
    )
    return functions(states)
