"""What a policy that acts by its recent steps carries from step to step."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from icql.nn.transformer import Trajectory


class Goal(eqx.Module):
    """The return that is asked for, and how rewards become returns-to-go."""

    target: float = eqx.field(static=True)  # in the environment's rewards
    scale: float = eqx.field(static=True)  # returns-to-go are divided by this
    running_rewards: bool = eqx.field(static=True)  # the data pays what was earned so far, again


class History(eqx.Module):
    """The last K steps of each row, the newest at the end, and what the episode has paid."""

    steps: Trajectory
    earned: Float[Array, " rows"]

    @classmethod
    def empty(cls, rows: int, length: int, observation_dim: int, action_dim: int) -> History:
        """No step yet."""
        steps = Trajectory(
            to_go=jnp.zeros((rows, length)),
            s=jnp.zeros((rows, length, observation_dim)),
            a=jnp.zeros((rows, length, action_dim)),
            timestep=jnp.zeros((rows, length), jnp.int32),
            valid=jnp.zeros((rows, length), bool),
        )
        return cls(steps, jnp.zeros(rows))

    def saw(
        self,
        s: Float[Array, "rows obs"],
        rewards: Float[Array, " rows"],
        fresh: Bool[Array, " rows"],
        goal: Goal,
    ) -> History:
        """The history with the step that now begins; its action is not known yet.

        The return-to-go is `goal.target` at first and falls by what the previous step paid.
        """
        past = self.steps
        earned = jnp.where(fresh, 0, self.earned + rewards)
        paid = earned if goal.running_rewards else rewards
        to_go = jnp.where(fresh, goal.target / goal.scale, past.to_go[:, -1] - paid / goal.scale)
        steps = Trajectory(
            to_go=_append(past.to_go, to_go),
            s=_append(past.s, s),
            a=_append(past.a, jnp.zeros_like(past.a[:, 0])),
            timestep=_append(past.timestep, jnp.where(fresh, 0, past.timestep[:, -1] + 1)),
            valid=_append(past.valid & ~fresh[:, None], jnp.ones_like(fresh)),
        )
        return History(steps, earned)

    def did(self, a: Float[Array, "rows act"]) -> History:
        """The history with the action of its newest step."""
        return eqx.tree_at(lambda h: h.steps.a, self, self.steps.a.at[:, -1].set(a))


def _append(past: Array, new: Array) -> Array:
    """Forget the oldest step, add the newest."""
    return jnp.concatenate([past[:, 1:], new[:, None]], axis=1)
