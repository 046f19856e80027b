"""Online SAC and the collection of datasets by D4RL's protocol."""

from icql.online.learning import Evaluation, OnlineRun, OnlineSettings, train_online
from icql.online.protocol import LEVELS, RECIPES, Recipe, collect, get_recipe
from icql.online.snapshot import Snapshot, sac_oracle
from icql.settings.contexts import Level

__all__ = [
    "LEVELS",
    "RECIPES",
    "Evaluation",
    "Level",
    "OnlineRun",
    "OnlineSettings",
    "Recipe",
    "Snapshot",
    "collect",
    "get_recipe",
    "sac_oracle",
    "train_online",
]
