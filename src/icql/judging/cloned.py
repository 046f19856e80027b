"""The behaviour as a model: b(a|s) = N(μ(s), σ(s)²), fitted by likelihood on the log.

Only importance sampling needs it. Actions are in units of their spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.optimise import Trained, adam, descend, start
from icql.judging.fitting import Drawn, Told, fit, standardise
from icql.judging.log import Doubles, Log, Rows
from icql.nn.initialisation import orthogonal_net
from icql.nn.mlp import MLP
from icql.nn.policies import LOG_STD_MAX, LOG_STD_MIN
from icql.settings.judge import JudgeSettings

BLOCK = 2**15  # rows at once


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


@dataclass(frozen=True)
class LikelihoodUpdate:
    """One step on −log b(a|s)."""

    learning_rate: float
    updates: int

    @property
    def optimiser(self) -> Any:
        """Adam with a cosine."""
        return adam(self.learning_rate, cosine_steps=self.updates)

    def __call__(
        self, state: Trained[GaussianNet], given: Any, rows: Int[Array, " batch"]
    ) -> Trained[GaussianNet]:
        """Descend."""
        _, (s, a) = given

        def loss(model: GaussianNet) -> tuple[Array, None]:
            mean, log_std = model(s[rows])
            z = (a[rows] - mean) * jnp.exp(-log_std)
            return (0.5 * z**2 + log_std).sum(-1).mean(), None

        return descend(state, self.optimiser, loss)[0]


@dataclass(frozen=True)
class BehaviourModel:
    """b(a|s) of every row of the log, in units of the actions' spread."""

    mean: Doubles  # (N, act)
    log_std: Doubles  # (N, act)
    scale: tuple[Any, Any]  # mean and spread of the logged actions

    def unit(self, actions: Any) -> Doubles:
        """Actions in these units."""
        return np.asarray((actions - self.scale[0]) / self.scale[1], np.float64)


def fit_behaviour(log: Log, episodes: Rows, settings: JudgeSettings, told: Told) -> BehaviourModel:
    """Fit b on the rows of these episodes; half the updates of fitted Q evaluation are plenty."""
    data, s = log.data, settings
    (mean, std), scale = standardise(data.states), standardise(data.actions)
    states = jnp.asarray((data.states - mean) / std)
    actions = jnp.asarray((data.actions - scale[0]) / scale[1])
    update = LikelihoodUpdate(s.learning_rate, max(1, s.updates // 2))
    sizes = data.observation_dim, data.action_dim
    fitted = fit(
        update,
        _begin(update, *sizes, s.hidden, jax.random.key(s.seed)[None]),
        (None, (states, actions)),
        Drawn.from_rows([log.rows_of(episodes)]),
        batch=s.batch_size,
        updates=update.updates,
        seed=s.seed,
        told=told,
    )
    model = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, fitted.model)
    pieces = [_ask(model, states[i : i + BLOCK]) for i in range(0, len(states), BLOCK)]
    mu, log_std = (np.concatenate(part).astype(np.float64) for part in zip(*pieces, strict=True))
    return BehaviourModel(mu, log_std, scale)


@eqx.filter_jit
def _begin(
    update: LikelihoodUpdate, inputs: int, actions: int, hidden: tuple[int, ...], keys: Any
) -> Any:
    def one(key: Any) -> Trained[GaussianNet]:
        return start(GaussianNet(inputs, actions, hidden, key=key), update.optimiser)

    return eqx.filter_vmap(one)(keys)


@eqx.filter_jit
def _ask(model: GaussianNet, states: Any) -> Any:
    return model(states)
