"""Online SAC and the collection of datasets by D4RL's protocol."""

from icql.online.progress import Evaluation, Progress
from icql.online.protocol import LEVELS, Level, collect
from icql.online.recipes import RECIPES, Recipe, get_recipe
from icql.online.snapshot import Snapshot, sac_oracle
from icql.online.training import OnlineRun, OnlineSettings, train_online

__all__ = [
    "LEVELS",
    "RECIPES",
    "Evaluation",
    "Level",
    "OnlineRun",
    "OnlineSettings",
    "Progress",
    "Recipe",
    "Snapshot",
    "collect",
    "get_recipe",
    "sac_oracle",
    "train_online",
]
