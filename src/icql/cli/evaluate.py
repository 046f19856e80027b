"""`icql evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from icql.evaluation import summary
from icql.loading import load_policy
from icql.progress import Display
from icql.training.run_folder import RunFolder
from icql.training.versions import versions

DESCRIPTION = """Score the final policies of a run in the environment of its task.

Scores are D4RL's normalised scores of the final policies, one per training seed; the returns of
every episode are part of the JSON. The same --seed gives the same episodes."""


@dataclass(frozen=True)
class Evaluate:
    """The options of `icql evaluate`."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    episodes: int = 10
    """Episodes per training seed."""
    seed: int = 0
    """Seed of the episodes."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, play, print."""
    options = tyro.cli(Evaluate, prog="icql evaluate", description=DESCRIPTION, args=argv)
    policy = load_policy(options.run)
    total = options.episodes * len(policy.seeds)
    with Display().work("episodes", total) as work:
        rollouts = policy.evaluate(
            episodes=options.episodes,
            seed=options.seed,
            progress=lambda steps, finished: work.update(finished, f"step {steps}"),
        )
    assert policy.task is not None
    per_seed = [float(r.normalized(policy.task).mean()) for r in rollouts]
    statistics = summary(per_seed)
    if options.json:
        return {
            "run": str(options.run),
            "algo": RunFolder.open(options.run).manifest["algo"],
            "task": policy.task.name,
            "episodes": options.episodes,
            "seed": options.seed,
            "normalized_score": statistics["mean"],
            "ci95": statistics["ci95"],
            "per_seed": per_seed,
            "returns": [r.returns.tolist() for r in rollouts],
            "lengths": [r.lengths.tolist() for r in rollouts],
            "versions": versions(),
        }
    for seed, score, r in zip(policy.seeds, per_seed, rollouts, strict=True):
        spread = f"{np.mean(r.returns):.1f} ± {np.std(r.returns):.1f}"
        print(f"seed {seed}: score {score:.1f}, return {spread} over {options.episodes} episodes")
    if statistics["ci95"] is not None:
        low, high = statistics["ci95"]
        print(f"mean   score {statistics['mean']:.1f}, 95 % interval {low:.1f} to {high:.1f}")
    return None
