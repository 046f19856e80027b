"""Several trained policies play in the same environment, all in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icql.evaluation.rollout import EnvPool, Progress, Rollouts, rollout


@eqx.filter_jit
def act(
    policies: Any, observations: Float[Array, "seeds rows obs"]
) -> Float[Array, "seeds rows act"]:
    """Actions of each stacked policy for its own rows of observations."""
    actions: Array = eqx.filter_vmap(lambda p, s: p(s), in_axes=(eqx.if_array(0), 0))(
        policies, observations
    )
    return actions


def evaluate_policies(
    policies: Any,
    environments: EnvPool,
    *,
    episodes: int,
    seeds: Sequence[int],
    progress: Progress | None = None,
) -> tuple[Rollouts, ...]:
    """Play `episodes` episodes with each of several stacked policies; one seed for each."""

    def batched(observations: np.ndarray) -> np.ndarray:
        rows = observations.reshape(len(seeds), -1, observations.shape[-1])
        return np.asarray(act(policies, jnp.asarray(rows))).reshape(len(observations), -1)

    played = rollout(batched, environments, episodes=episodes, seed=list(seeds), progress=progress)
    return played.split(len(seeds))
