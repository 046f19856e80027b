"""How fast are policies evaluated in a heavy simulator, here and by processes?

    python benchmarks/evaluation.py                    # 100 policies × 20 kitchen episodes
    python benchmarks/evaluation.py --policies 4 --episodes 2 --compare

Untrained policies play, so that every kitchen episode lasts to its limit. The figure to reach: 100
policies × 20 episodes in 3 minutes on 16 cores. A kitchen takes 150 MB, one for each policy.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro

from icql.data.tasks import get_task
from icql.evaluation.env_processes import cores
from icql.evaluation.rollout import EnvPool, Rollouts, evaluate_policies
from icql.nn.policies import DeterministicPolicy, Standardised
from icql.progress import Display
from icql.settings.shared import PolicySettings


@dataclass(frozen=True)
class Options:
    """What plays, where, and by how many processes."""

    task: str = "kitchen-complete-v0"
    """Whose environment."""
    policies: int = 100
    """Policies that play together."""
    episodes: int = 20
    """Episodes of each."""
    processes: int | None = None
    """Processes that step environments, 0: threads of this one (none given: what pays)."""
    compare: bool = False
    """Play with threads alone as well, and compare every return."""


def stacked(count: int, observation_dim: int, action_dim: int) -> Standardised:
    def one(key: jax.Array) -> DeterministicPolicy:
        return DeterministicPolicy(observation_dim, action_dim, PolicySettings(), key=key)

    policies = eqx.filter_vmap(one)(jax.random.split(jax.random.key(0), count))
    shape = (count, observation_dim)
    return Standardised(policies, jnp.zeros(shape), jnp.ones(shape))


def play(options: Options, processes: int | None) -> tuple[tuple[Rollouts, ...], int, float]:
    """What was played, by how many workers, and in how many seconds from the very beginning."""
    begin, total = time.perf_counter(), options.policies * options.episodes
    with EnvPool(get_task(options.task), processes=processes) as pool:
        (first,) = pool.take(1)
        sizes = [int(np.prod(s.shape or ())) for s in (first.observation_space, first.action_space)]
        with Display().work("episodes", total) as work:
            played = evaluate_policies(
                stacked(options.policies, *sizes),
                pool,
                episodes=options.episodes,
                seeds=list(range(options.policies)),
                progress=lambda steps, finished: work.update(finished, f"step {steps}"),
            )
        return played, pool.processes or pool.default_workers, time.perf_counter() - begin


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    played, workers, seconds = play(options, options.processes)
    total, steps = options.policies * options.episodes, sum(int(r.lengths.sum()) for r in played)
    result = {
        "task": options.task,
        "policies": options.policies,
        "episodes": options.episodes,
        "cores": cores(),
        "workers": workers,
        "seconds": round(seconds, 1),
        "episodes_per_minute": round(60 * total / seconds, 1),
        "steps_per_second": round(steps / seconds, 1),
    }
    if options.compare:
        again, threads, alone = play(options, 0)
        pairs = zip(played, again, strict=True)
        result |= {"threads": threads, "seconds_with_threads": round(alone, 1)}
        result["same_returns"] = all(np.array_equal(a.returns, b.returns) for a, b in pairs)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
