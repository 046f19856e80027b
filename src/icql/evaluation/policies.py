"""Several trained policies play in the same environment, all in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from icql.evaluation.rollout import EnvPool, Progress, Rollouts, rollout


@eqx.filter_jit
def act(
    policies: Any, observations: Float[Array, "seeds rows obs"]
) -> Float[Array, "seeds rows act"]:
    """Actions of each stacked policy for its own rows of observations, without any history."""
    actions: Array = eqx.filter_vmap(lambda p, s: p(s), in_axes=(eqx.if_array(0), 0))(
        policies, observations
    )
    return actions


@eqx.filter_jit
def start(policies: Any, rows: int) -> Any:
    """What each stacked policy carries into the first step of `rows` episodes."""
    return eqx.filter_vmap(lambda p: p.start(rows), in_axes=eqx.if_array(0))(policies)


@eqx.filter_jit
def step(
    policies: Any,
    carry: Any,
    observations: Float[Array, "seeds rows obs"],
    rewards: Float[Array, "seeds rows"],
    fresh: Bool[Array, "seeds rows"],
) -> tuple[Float[Array, "seeds rows act"], Any]:
    """Actions of each stacked policy for its own rows, and what it carries on."""
    return eqx.filter_vmap(lambda p, *seen: p.step(*seen), in_axes=(eqx.if_array(0), 0, 0, 0, 0))(
        policies, carry, observations, rewards, fresh
    )


def evaluate_policies(
    policies: Any,
    environments: EnvPool,
    *,
    episodes: int,
    seeds: Sequence[int],
    progress: Progress | None = None,
) -> tuple[Rollouts, ...]:
    """Play `episodes` episodes with each of several stacked policies; one seed for each."""
    player = _Stacked(policies, len(seeds))
    played = rollout(player, environments, episodes=episodes, seed=list(seeds), progress=progress)
    return played.split(len(seeds))


class _Stacked:
    """Stacked policies as one player whose rows are policy after policy."""

    def __init__(self, policies: Any, count: int) -> None:
        self.policies, self.count = policies, count

    def start(self, rows: int) -> Any:
        """What all policies carry into the first step."""
        return start(self.policies, rows // self.count)

    def step(
        self,
        carry: Any,
        observations: NDArray[np.float32],
        rewards: NDArray[np.float32],
        fresh: NDArray[np.bool_],
    ) -> tuple[NDArray[np.float32], Any]:
        """Each policy acts on its own rows."""
        seen = (
            jnp.asarray(x.reshape(self.count, -1, *x.shape[1:]))
            for x in (observations, rewards, fresh)
        )
        actions, carry = step(self.policies, carry, *seen)
        return np.asarray(actions).reshape(len(observations), -1), carry
