"""`icql evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro

from icql.cli.options import Options, Result
from icql.progress import Display
from icql.settings.grid import say_settings
from icql.training.run_folder import RunFolder

if TYPE_CHECKING:
    from icql.data import Task
    from icql.evaluation import Rollouts


@dataclass(frozen=True, kw_only=True)
class Evaluate(Options):
    """Score the final policies of a run in the environment of its task.

    Scores are D4RL's normalised scores of the final policies, one per training seed; the returns of
    every episode are part of the JSON. The same --seed gives the same episodes.
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    episodes: int = 10
    """Episodes per training seed."""
    seed: int = 0
    """Seed of the episodes."""

    def execute(self) -> Result:
        """Play and show."""
        from icql.training.trained import load_policy
        from icql.training.versions import versions

        policy = load_policy(self.run)
        total = self.episodes * len(policy.members)
        with Display().work("episodes", total) as work:
            rollouts = policy.evaluate(
                episodes=self.episodes,
                seed=self.seed,
                progress=lambda steps, finished: work.update(finished, f"step {steps}"),
            )
        assert policy.task is not None
        members = zip(policy.members, rollouts, strict=True)
        found = [  # a single combination where no settings were varied
            (dict(settings), _scores([r for _, r in group], policy.task))
            for settings, group in groupby(members, key=lambda pair: pair[0].settings)
        ]
        for member, r in zip(policy.members, rollouts, strict=True):
            score = r.normalized(policy.task).mean()
            spread = f"{np.mean(r.returns):.1f} ± {np.std(r.returns):.1f}"
            played = f"over {self.episodes} episodes"
            self.say(f"{member.label}: score {score:.1f}, return {spread} {played}")
        for settings, scores in found:
            if scores["ci95"] is not None:
                low, high = scores["ci95"]
                mean = f"{scores['normalized_score']:.1f}, 95 % interval {low:.1f} to {high:.1f}"
                self.say(f"mean   score {mean}  {say_settings(settings)}".rstrip())
        several = {"combinations": [{"settings": settings, **scores} for settings, scores in found]}
        return {
            "run": str(self.run),
            "algo": RunFolder.open(self.run).manifest["algo"],
            "task": policy.task.name,
            "episodes": self.episodes,
            "seed": self.seed,
            **(several if found[0][0] else found[0][1]),
            "versions": versions(),
        }


def _scores(rollouts: list[Rollouts], task: Task) -> Result:
    """Scores, returns and lengths of every seed, and what they say together."""
    from icql.evaluation.scores import summary

    per_seed = [float(r.normalized(task).mean()) for r in rollouts]
    statistics = summary(per_seed)
    return {
        "normalized_score": statistics["mean"],
        "ci95": statistics["ci95"],
        "per_seed": per_seed,
        "returns": [r.returns.tolist() for r in rollouts],
        "lengths": [r.lengths.tolist() for r in rollouts],
    }
