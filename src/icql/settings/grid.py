"""A grid of settings: every combination with every seed is a member, trained side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icql.errors import UserError, nearest
from icql.settings.change import leaves, override

Grid = Mapping[str, Sequence[float]]  # values by the dotted name of a setting


@dataclass(frozen=True)
class Member:
    """One of the runs that are trained side by side."""

    seed: int
    settings: Mapping[str, float]  # its place in the grid; empty where nothing is varied

    @property
    def label(self) -> str:
        """For people: `beta=3, seed 0`."""
        return f"{say_settings(self.settings)}, seed {self.seed}".removeprefix(", ")


def say_members(members: Sequence[Member]) -> str:
    """For people: `seed 0`, or `5 members, seed 0 … seed 4`."""
    first, last = members[0].label, members[-1].label
    return first if len(members) == 1 else f"{len(members)} members, {first} … {last}"


def say_settings(settings: Mapping[str, float]) -> str:
    """For people: `beta=3, expectile=0.7`."""
    return ", ".join(f"{name}={value:g}" for name, value in settings.items())


def combinations(grid: Grid) -> list[dict[str, float]]:
    """Every combination of the grid's values; a single empty one where there is no grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def members_of(seeds: Sequence[int], grid: Grid) -> tuple[Member, ...]:
    """Every combination with every seed, the seeds of a combination side by side."""
    return tuple(Member(seed, settings) for settings in combinations(grid) for seed in seeds)


def check_names(grid: Grid, settings: Any) -> None:
    """Refuse a grid over a setting that there is not, and values that it may not have."""
    known = dict(leaves(settings))
    for name in grid:
        if name not in known:
            raise UserError(
                f"there is no setting {name!r}.", where="--grid", fix=nearest(name, list(known))
            )
        if not isinstance(known[name], float):
            raise UserError(
                "is no real number, and only those vary within one program.",
                where=f"--grid {name}",
                fix="Train a run for each value.",
            )
    for combination in combinations(grid):
        override(settings, combination)


def read_grid(options: Sequence[str]) -> dict[str, list[str]]:
    """Read `["beta=1,3", "critic-learning-rate=1e-3"]` as a grid, its values still as text."""
    pairs = (option.partition("=") for option in options)
    return {name.strip().replace("-", "_"): values.split(",") for name, _, values in pairs}


def plain_grid(grid: Mapping[str, Sequence[Any]]) -> dict[str, tuple[float, ...]]:
    """Return a grid as it is recorded, or say which value is not a number."""
    plain = dict[str, tuple[float, ...]]()
    for name, values in grid.items():
        try:
            plain[name] = tuple(float(value) for value in values)
        except (TypeError, ValueError):
            raise UserError(
                f"must be a list of numbers, not {values!r}.",
                where=f"--grid {name}",
                fix='Write it as --grid beta=1,3,10 or grid={"beta": [1, 3, 10]}.',
            ) from None
        if not plain[name] or len(set(plain[name])) < len(plain[name]):
            raise UserError("must list each value once.", where=f"--grid {name}")
    return plain
