"""Policies: observations in, actions in [-1, 1] out. None needs retrieval at run time."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from icql.nn.initialisation import network_init
from icql.nn.mlp import MLP
from icql.settings.shared import PolicySettings

Noise = tuple[float, ...]  # half the width of the noise on each observation in training; none: ()
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
CQL_LOG_STD_MIN = -20.0
_LOG_2PI = 1.8378770664093453


@runtime_checkable
class Policy(Protocol):
    """What evaluation needs: a batch of observations to a batch of actions, no randomness."""

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """The action of each observation."""


@runtime_checkable
class MemoryPolicy(Protocol):
    """A policy that remembers its episode: what it carries goes from step to step.

    One row per environment. `rewards` are those of the previous step, as the environment paid
    them; `fresh` is True where an episode begins, and nothing from before may then be used. Called
    as a plain policy, it acts as in the first step of an episode (:func:`first_action`).
    """

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """The action of the first step of an episode."""

    def start(self, rows: int) -> Any:
        """Return what to carry into the first step: arrays with a leading axis of `rows`."""

    def step(
        self,
        carry: Any,
        s: Float[Array, "rows obs"],
        rewards: Float[Array, " rows"],
        fresh: Bool[Array, " rows"],
    ) -> tuple[Float[Array, "rows act"], Any]:
        """Return the actions and what to carry on, in the same shapes and types."""


def first_action(policy: MemoryPolicy, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
    """The actions of a policy with memory where every row is the beginning of an episode."""
    rows = s.reshape(-1, s.shape[-1])
    count = len(rows)
    action, _ = policy.step(policy.start(count), rows, jnp.zeros(count), jnp.ones(count, bool))
    return action.reshape(*s.shape[:-1], action.shape[-1])


def policy_net(
    inputs: int,
    outputs: int,
    settings: PolicySettings,
    noise: Noise,
    *,
    key: PRNGKeyArray,
    gain: float = 2**0.5,
    **rest: Any,
) -> MLP | Mean:
    """The network that the settings describe; inputs beyond `noise`'s get none.

    `gain` is of its last layer, where `settings.init` leaves that to the kind of policy.
    """

    def one(key: PRNGKeyArray) -> MLP:
        return MLP(
            inputs,
            settings.hidden,
            outputs,
            layer_norm=settings.layer_norm,
            dropout=settings.dropout,
            init=network_init(settings.init, "policy", gain),
            noise=(*noise, *[0.0] * (inputs - len(noise))) if any(noise) else (),
            key=key,
            **rest,
        )

    if settings.networks == 1:
        return one(key)
    return Mean(eqx.filter_vmap(one)(jax.random.split(key, settings.networks)), settings.networks)


class Mean(eqx.Module):
    """The mean of several networks, each of which learned from rows of its own."""

    nets: MLP  # stacked
    count: int = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "... inputs"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "... outputs"]:
        """The mean; with a `key`, in training, every row is answered by one network alone.

        Rows are drawn at random, so that network i may take each that is i modulo their number.
        """
        if key is None:
            return eqx.filter_vmap(lambda net: net(x))(self.nets).mean(0)
        rows = x.reshape(-1, self.count, x.shape[-1])
        keys = jax.random.split(key, self.count)
        each = eqx.filter_vmap(lambda net, own, key: net(own, key=key), in_axes=(0, 1, 0))
        said: Array = each(self.nets, rows, keys)
        return jnp.moveaxis(said, 0, 1).reshape(*x.shape[:-1], -1)

    def split(self) -> list[MLP]:
        """The networks one by one."""
        arrays, rest = eqx.partition(self.nets, eqx.is_array)

        def one(i: int) -> MLP:
            return eqx.combine(jax.tree.map(lambda x: x[i], arrays), rest)

        return [one(i) for i in range(self.count)]


class DeterministicPolicy(eqx.Module):
    """π(s) = tanh(MLP(s))."""

    net: MLP | Mean

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        settings: PolicySettings,
        noise: Noise = (),
        *,
        key: PRNGKeyArray,
    ) -> None:
        sizes = observation_dim, action_dim
        self.net = policy_net(*sizes, settings, noise, final_activation="tanh", key=key)

    def __call__(
        self, s: Float[Array, "... obs"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "... act"]:
        """tanh(MLP(s)); `key` turns noise and dropout on."""
        return self.net(s, key=key)


class GaussianPolicy(DeterministicPolicy):
    """N(tanh(MLP(s)), diag(exp(log_std))²): IQL's policy, its spread independent of the state.

    Called, it returns the mean.
    """

    log_std: Float[Array, " act"]

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        settings: PolicySettings,
        noise: Noise = (),
        *,
        key: PRNGKeyArray,
    ) -> None:
        super().__init__(observation_dim, action_dim, settings, noise, key=key)
        self.log_std = jnp.zeros(action_dim)

    def log_prob(
        self,
        s: Float[Array, "... obs"],
        a: Float[Array, "... act"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "..."]:
        """log π(a|s)."""
        log_std = jnp.clip(self.log_std, LOG_STD_MIN, LOG_STD_MAX)
        z = (a - self(s, key=key)) * jnp.exp(-log_std)
        return (-0.5 * (z**2 + _LOG_2PI) - log_std).sum(-1)

    def sample(self, s: Float[Array, "... obs"], *, key: PRNGKeyArray) -> Float[Array, "... act"]:
        """a ~ π(·|s), clipped to the action box."""
        mean = self(s)
        std = jnp.exp(jnp.clip(self.log_std, LOG_STD_MIN, LOG_STD_MAX))
        return jnp.clip(mean + std * jax.random.normal(key, mean.shape), -1, 1)


class CategoricalPolicy(eqx.Module):
    """A choice among actions, each one-hot: softmax(MLP(s)). Called, it returns the likeliest."""

    net: MLP | Mean

    def __init__(
        self,
        observation_dim: int,
        choices: int,
        settings: PolicySettings,
        noise: Noise = (),
        *,
        key: PRNGKeyArray,
    ) -> None:
        sizes = observation_dim, choices
        self.net = policy_net(*sizes, settings, noise, gain=0.01, key=key)

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """The likeliest action, one-hot."""
        logits = self.net(s)
        return jax.nn.one_hot(logits.argmax(-1), logits.shape[-1])

    def log_probs(
        self, s: Float[Array, "... obs"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "... act"]:
        """log π(·|s) of every action; `key` turns noise and dropout on."""
        return jax.nn.log_softmax(self.net(s, key=key))

    def log_prob(
        self,
        s: Float[Array, "... obs"],
        a: Float[Array, "... act"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "..."]:
        """log π(a|s) of a one-hot action."""
        return (a * self.log_probs(s, key=key)).sum(-1)

    def sample(self, s: Float[Array, "... obs"], *, key: PRNGKeyArray) -> Float[Array, "... act"]:
        """a ~ π(·|s), one-hot."""
        logits = self.net(s)
        return jax.nn.one_hot(jax.random.categorical(key, logits), logits.shape[-1])


class TanhGaussianPolicy(eqx.Module):
    """a = tanh(u), u ~ N(mean(s), std(s)²): the squashed policy of SAC and CQL.

    With `log_std` = (m, o), log std(s) is m times the network's second output plus o, and both are
    learned: CQL's, in the form of JaxCQL and CORL.
    """

    net: MLP | Mean
    log_std: Float[Array, "2"] | None
    action_dim: int = eqx.field(static=True)

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        settings: PolicySettings,
        noise: Noise = (),
        *,
        log_std: tuple[float | Array, float | Array] | None = None,
        key: PRNGKeyArray,
    ) -> None:
        sizes = observation_dim, 2 * action_dim
        self.net = policy_net(*sizes, settings, noise, gain=0.01, key=key)
        self.log_std = None if log_std is None else jnp.stack([jnp.asarray(x) for x in log_std])
        self.action_dim = action_dim

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """Return tanh of the mean."""
        return jnp.tanh(self.net(s)[..., : self.action_dim])

    def sample(
        self, s: Float[Array, "... obs"], *, key: PRNGKeyArray, training: bool = False
    ) -> tuple[Float[Array, "... act"], Float[Array, "..."]]:
        """Draw a ~ π(·|s) by reparameterisation and return it with log π(a|s).

        `training` turns noise on the state and dropout on.
        """
        mean, log_std = self._moments(s, jax.random.fold_in(key, 1) if training else None)
        noise = jax.random.normal(key, mean.shape)
        u = mean + jnp.exp(log_std) * noise
        return jnp.tanh(u), _squashed_log_prob(u, noise, log_std)

    def log_prob(
        self,
        s: Float[Array, "... obs"],
        a: Float[Array, "... act"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "..."]:
        """log π(a|s) of a given action, held 10⁻⁶ inside the box: at ±1 there is no u."""
        mean, log_std = self._moments(s, key)
        u = jnp.arctanh(jnp.clip(a, -1 + 1e-6, 1 - 1e-6))
        return _squashed_log_prob(u, (u - mean) * jnp.exp(-log_std), log_std)

    def _moments(self, s: Array, key: PRNGKeyArray | None) -> tuple[Array, Array]:
        """The mean and log std of u."""
        mean, log_std = jnp.split(self.net(s, key=key), 2, axis=-1)
        if self.log_std is None:
            return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)
        multiplier, offset = self.log_std
        return mean, jnp.clip(multiplier * log_std + offset, CQL_LOG_STD_MIN, LOG_STD_MAX)


def _squashed_log_prob(u: Array, z: Array, log_std: Array) -> Float[Array, "..."]:
    """log π(tanh u) for u = mean + std · z."""
    # log(1 - tanh(u)^2) in a form that does not underflow
    squash = 2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u))
    return (-0.5 * (z**2 + _LOG_2PI) - log_std - squash).sum(-1)


class Standardised(eqx.Module):
    """A policy together with the state normaliser it was trained behind.

    It can always be stepped as a :class:`MemoryPolicy`; one without memory carries nothing.
    """

    policy: eqx.Module
    mean: Float[Array, "*members obs"]  # several policies may be stacked
    std: Float[Array, "*members obs"]
    limit: float | None = eqx.field(default=None, static=True)  # of a normalised state, either way

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """Actions without history."""
        action: Array = self.policy(self.seen(s))  # type: ignore[operator]
        return action

    def start(self, rows: int) -> Any:
        """What the policy carries into the first step."""
        return self.policy.start(rows) if isinstance(self.policy, MemoryPolicy) else None

    def step(self, carry: Any, s: Array, rewards: Array, fresh: Array) -> tuple[Array, Any]:
        """Actions of one step, and what the policy carries on."""
        if isinstance(self.policy, MemoryPolicy):
            return self.policy.step(carry, self.seen(s), rewards, fresh)
        return self(s), None

    def seen(self, s: Array) -> Array:
        """States as the policy was trained on them."""
        seen = (s - self.mean) / self.std
        return seen if self.limit is None else jnp.clip(seen, -self.limit, self.limit)
