"""The behaviour as a model b(a|s), fitted by likelihood on the log; for importance sampling alone.

Of real-valued actions it is N(μ(s), σ(s)²), in units of their spread; of choices the probability of
each, softmax(f(s)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.optimise import Trained, adam, descend, start
from icql.judging.fitting import Drawn, Told, fit, standardise
from icql.judging.importance import choice_log_ratios, log_ratios
from icql.judging.log import Doubles, Log, Rows
from icql.nn.initialisation import orthogonal_net
from icql.nn.mlp import MLP
from icql.nn.policies import LOG_STD_MAX, LOG_STD_MIN, CategoricalPolicy
from icql.settings.judge import JudgeSettings
from icql.settings.shared import PolicySettings

BLOCK = 2**15  # rows at once


class Density(Protocol):
    """A network that says how likely an action is."""

    def log_prob(self, s: Array, a: Array) -> Array:
        """log b(a|s), up to what no parameter changes."""


class GaussianNet(eqx.Module):
    """s ↦ μ(s), log σ(s)."""

    net: MLP

    def __init__(
        self, inputs: int, actions: int, hidden: tuple[int, ...], *, key: PRNGKeyArray
    ) -> None:
        self.net = MLP(
            inputs, hidden, 2 * actions, layer_norm=True, init=orthogonal_net(0.01), key=key
        )

    def __call__(self, s: Float[Array, "... obs"]) -> tuple[Array, Array]:
        """The mean and the logarithm of the spread."""
        mean, log_std = jnp.split(self.net(s), 2, axis=-1)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)

    def log_prob(
        self, s: Float[Array, "... obs"], a: Float[Array, "... act"]
    ) -> Float[Array, "..."]:
        """log N(a; μ(s), σ(s)²) without its constant."""
        mean, log_std = self(s)
        return -(0.5 * jnp.square((a - mean) * jnp.exp(-log_std)) + log_std).sum(-1)


@dataclass(frozen=True)
class LikelihoodUpdate:
    """One step on −log b(a|s)."""

    learning_rate: float
    updates: int

    @property
    def optimiser(self) -> Any:
        """Adam with a cosine."""
        return adam(self.learning_rate, cosine_steps=self.updates)

    def __call__(self, state: Trained[Any], given: Any, rows: Int[Array, " batch"]) -> Trained[Any]:
        """Descend."""
        _, (s, a) = given

        def loss(model: Density) -> tuple[Array, None]:
            return -model.log_prob(s[rows], a[rows]).mean(), None

        return descend(state, self.optimiser, loss)[0]


class BehaviourModel(Protocol):
    """b(a|s) of every row of the log."""

    def log_ratios(self, policy: Any) -> Doubles:
        """log π̃(a|s) − log b(a|s) of the logged actions (N,), π's own being (N, act)."""


@dataclass(frozen=True)
class GaussianBehaviour:
    """Of real-valued actions, in units of their spread; π̃ is the policy with b's σ around it."""

    actions: Doubles  # (N, act) logged
    mean: Doubles  # (N, act)
    log_std: Doubles  # (N, act)
    scale: tuple[Any, Any]  # mean and spread of the logged actions

    def log_ratios(self, policy: Any) -> Doubles:
        """Of normal densities."""
        theirs = np.asarray((policy - self.scale[0]) / self.scale[1], np.float64)
        return log_ratios(self.actions, theirs, self.mean, self.log_std)


@dataclass(frozen=True)
class CategoricalBehaviour:
    """Of choices; a policy that always takes one is judged as it is."""

    actions: Doubles  # (N, choices) logged, one-hot
    log_probs: Doubles  # (N, choices)

    def log_ratios(self, policy: Any) -> Doubles:
        """Of probabilities."""
        return choice_log_ratios(self.actions, np.asarray(policy, np.float64), self.log_probs)


def fit_behaviour(log: Log, episodes: Rows, settings: JudgeSettings, told: Told) -> BehaviourModel:
    """Fit b on the rows of these episodes; half the updates of fitted Q evaluation are plenty."""
    data, s = log.data, settings
    sizes = data.observation_dim, data.action_dim
    if data.info.signals.choices:
        shape = PolicySettings(hidden=s.hidden, layer_norm=True)
        chosen = np.asarray(data.actions, np.float64)
        model, states = _fit(
            log, episodes, s, told, chosen, lambda key: CategoricalPolicy(*sizes, shape, key=key)
        )
        (log_probs,) = _ask(lambda x: (model.log_probs(x),), states)
        return CategoricalBehaviour(chosen, log_probs)
    scale = standardise(data.actions)
    actions = np.asarray((data.actions - scale[0]) / scale[1], np.float64)
    model, states = _fit(
        log, episodes, s, told, actions, lambda key: GaussianNet(*sizes, s.hidden, key=key)
    )
    mu, log_std = _ask(model, states)
    return GaussianBehaviour(actions, mu, log_std, scale)


def _fit(
    log: Log,
    episodes: Rows,
    s: JudgeSettings,
    told: Told,
    actions: Doubles,
    build: Callable[[PRNGKeyArray], Any],
) -> tuple[Any, Any]:
    """The fitted network, and the states of all rows as it sees them."""
    mean, std = standardise(log.data.states)
    states = jnp.asarray((log.data.states - mean) / std)
    update = LikelihoodUpdate(s.learning_rate, max(1, s.updates // 2))
    begun = start(eqx.filter_jit(build)(jax.random.key(s.seed)), update.optimiser)
    fitted = fit(
        update,
        jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, begun),
        (None, (states, jnp.asarray(actions, jnp.float32))),
        Drawn.from_rows([log.rows_of(episodes)]),
        batch=s.batch_size,
        updates=update.updates,
        seed=s.seed,
        told=told,
    )
    return jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, fitted.model), states


def _ask(say: Callable[[Any], tuple[Array, ...]], states: Any) -> tuple[Doubles, ...]:
    """What it says of all rows, block by block."""
    ask = eqx.filter_jit(say)
    pieces = [ask(states[i : i + BLOCK]) for i in range(0, len(states), BLOCK)]
    return tuple(np.concatenate(part).astype(np.float64) for part in zip(*pieces, strict=True))
