"""Recipes: how the data of a task is collected, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from icql.data.tasks import Task, get_task
from icql.errors import UserError, nearest
from icql.online.training import OnlineSettings


@dataclass(frozen=True)
class Recipe:
    """One task's collection: environment, training, and the size of the sampled datasets."""

    name: str
    task: Task
    settings: OnlineSettings = field(default_factory=OnlineSettings)
    transitions: int = 300_000  # of each sampled policy; D4RL has 1,000,000


# Environment steps after which SAC is an expert; the returns reached are in docs/collected_data.md.
RECIPES: dict[str, Recipe] = {
    name: Recipe(name, get_task(name), OnlineSettings(steps=steps))
    for name, steps in (("hopper", 300_000), ("walker2d", 600_000), ("halfcheetah", 400_000))
}


def get_recipe(name: str) -> Recipe:
    """The recipe called `name`; a `UserError` with the nearest known name otherwise."""
    if name not in RECIPES:
        raise UserError(
            f"there is no recipe {name!r}.", where="recipe", fix=nearest(name, list(RECIPES))
        )
    return RECIPES[name]
