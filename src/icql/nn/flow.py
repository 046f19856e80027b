"""Flow policies: noise is carried to an action along a learned velocity field, or in one step.

FQL (Park et al. 2025): x_0 = z ~ N(0, I), dx/dt = v(s, x, t), the action is x_1; ten Euler steps.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.nn.mlp import MLP
from icql.nn.policies import Mean, Noise, policy_net
from icql.settings.shared import PolicySettings


class Flow(eqx.Module):
    """v(s, x, t), and the actions it leads to."""

    net: MLP | Mean
    steps: int = eqx.field(static=True)

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        settings: PolicySettings,
        noise: Noise = (),
        *,
        steps: int,
        key: PRNGKeyArray,
    ) -> None:
        sizes = observation_dim + action_dim + 1, action_dim
        self.net = policy_net(*sizes, settings, noise, activation="gelu", gain=0.1, key=key)
        self.steps = steps

    def velocity(
        self,
        s: Float[Array, "... obs"],
        x: Float[Array, "... act"],
        t: Float[Array, "... 1"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "... act"]:
        """v(s, x, t) at time t in [0, 1]; `key` turns noise on s and dropout on."""
        return self.net(jnp.concatenate([s, x, t], -1), key=key)

    def act(
        self, s: Float[Array, "... obs"], noise: Float[Array, "... act"]
    ) -> Float[Array, "... act"]:
        """Where Euler's method takes `noise` in `steps` steps, clipped to the action box."""

        def euler(i: Array, x: Array) -> Array:
            t = jnp.full((*x.shape[:-1], 1), i / self.steps, x.dtype)
            return x + self.velocity(s, x, t) / self.steps

        return jnp.clip(jax.lax.fori_loop(0, self.steps, euler, noise), -1, 1)


class OneStepPolicy(eqx.Module):
    """μ(s, z): one pass from noise to action."""

    net: MLP | Mean
    action_dim: int = eqx.field(static=True)

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        settings: PolicySettings,
        noise: Noise = (),
        *,
        key: PRNGKeyArray,
    ) -> None:
        sizes = observation_dim + action_dim, action_dim
        self.net = policy_net(*sizes, settings, noise, activation="gelu", gain=0.1, key=key)
        self.action_dim = action_dim

    def raw(
        self,
        s: Float[Array, "... obs"],
        noise: Float[Array, "... act"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "... act"]:
        """μ(s, z) before it is clipped: what distillation compares. `key` is of training."""
        return self.net(jnp.concatenate([s, noise], -1), key=key)

    def sample(self, s: Float[Array, "... obs"], *, key: PRNGKeyArray) -> Float[Array, "... act"]:
        """μ(s, z) for fresh noise, clipped to the action box."""
        noise = jax.random.normal(key, (*s.shape[:-1], self.action_dim))
        return jnp.clip(self.raw(s, noise), -1, 1)

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """μ(s, z(s)), the noise seeded by the state."""
        rows = s.reshape(-1, s.shape[-1])
        action = jnp.clip(self.raw(rows, noise_of_state(rows, (self.action_dim,))), -1, 1)
        return action.reshape(*s.shape[:-1], self.action_dim)


def noise_of_state(
    s: Float[Array, "rows obs"], shape: tuple[int, ...]
) -> Float[Array, "rows *shape"]:
    """Standard normal noise of each row, drawn from a generator that is seeded by the state.

    A flow policy is a random policy, and official code draws its noise anew at every call. Seeding
    it by the bits of the state makes evaluation repeat exactly, whatever the batches, without a key
    to pass around. Equal in distribution: the noise of any state, and jointly that of any number of
    different states, so also an episode in which no state comes back bit by bit (simulators with
    continuous states). Not equal: where one does come back, so does its action; a policy that
    stands still where nothing moves stays there for ever, the official one tries again.
    """
    bits = jax.lax.bitcast_convert_type(s.astype(jnp.float32), jnp.uint32)
    factors = jax.random.bits(jax.random.key(0), (s.shape[-1],), jnp.uint32) | 1
    seeds = (bits * factors).sum(-1, dtype=jnp.uint32)  # multiplicative hashing, modulo 2³²
    keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(1), seed))(seeds)
    return jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
