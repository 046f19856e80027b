"""D4RL-faithful environments, batched rollouts, and statistics of scores."""

from icql.evaluation.environments import make_env
from icql.evaluation.rollout import EnvPool, Rollouts, evaluate_policies, rollout
from icql.evaluation.scores import Summary, summary

__all__ = [
    "EnvPool",
    "Rollouts",
    "Summary",
    "evaluate_policies",
    "make_env",
    "rollout",
    "summary",
]
