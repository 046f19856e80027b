"""A grid of settings: every combination with every seed is a member of one compiled program.

Inside the program a varied setting is no longer a number but an entry of an array. That works where
the algorithm only reckons with it; a setting that decides shapes, branches or the data does not
vary within a program, and is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icql.algos.base import Algorithm, Batch
from icql.algos.registry import override
from icql.errors import UserError, nearest

Grid = Mapping[str, Sequence[float]]  # values by the dotted name of a setting
S = TypeVar("S")


@dataclass(frozen=True)
class Member:
    """One of the runs that are trained side by side."""

    seed: int
    settings: Mapping[str, float]  # its place in the grid; empty where nothing is varied

    @property
    def label(self) -> str:
        """For people: `beta=3, seed 0`."""
        return f"{say_settings(self.settings)}, seed {self.seed}".removeprefix(", ")


def say_settings(settings: Mapping[str, float]) -> str:
    """For people: `beta=3, expectile=0.7`."""
    return ", ".join(f"{name}={value:g}" for name, value in settings.items())


def combinations(grid: Grid) -> list[dict[str, float]]:
    """Every combination of the grid's values; a single empty one where there is no grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def members_of(seeds: Sequence[int], grid: Grid) -> tuple[Member, ...]:
    """Every combination with every seed, the seeds of a combination side by side."""
    return tuple(Member(seed, settings) for settings in combinations(grid) for seed in seeds)


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
                where=f"grid, {name}",
                fix='Write it as --grid beta=1,3,10 or grid={"beta": [1, 3, 10]}.',
            ) from None
    return plain


def vary(algorithm: Algorithm[Any], values: Mapping[str, Any]) -> Algorithm[Any]:
    """Return the algorithm with these settings, which may be traced."""
    if not values:
        return algorithm
    changed: Any = algorithm
    return dataclasses.replace(changed, settings=_with(algorithm.settings, values))


def check_grid(algorithm: Algorithm[Any], grid: Grid, batch: Batch) -> None:
    """Refuse values that a setting may not have, and settings that cannot vary in one program.

    `batch` is what an update gets; shapes are enough.
    """
    leaves = dict(_leaves(algorithm.settings))
    numbers = [name for name, value in leaves.items() if isinstance(value, float)]
    for name, values in grid.items():
        if name not in leaves:
            raise UserError(
                f"there is no setting {name!r}.", where="grid", fix=nearest(name, list(leaves))
            )
        if not values or len(set(values)) < len(values):
            raise UserError("must list each value once.", where=f"grid, {name}")
        if name not in numbers or not _varies(algorithm, name, batch):
            able = [other for other in numbers if _varies(algorithm, other, batch)]
            raise UserError(
                "does not vary within one program: it decides shapes, branches, data or nothing.",
                where=f"grid, {name}",
                fix=f"Train a run for each value, or vary some of: {', '.join(able)}.",
            )
    for settings in combinations(grid):
        override(algorithm.settings, settings)  # every combination is checked as a run's would be


def _varies(algorithm: Algorithm[Any], name: str, batch: Batch) -> bool:
    """Whether updates reckon with this setting, and no shape, branch or constant depends on it."""

    def trained(batch: Batch, values: dict[str, Array]) -> Any:
        varied, key = vary(algorithm, values), jax.random.key(0)
        state, metrics = varied.update(varied.init(key), batch, key)
        return state, metrics, varied.policy(state)

    def arrays(tree: Any) -> Any:
        return eqx.filter(tree, lambda x: hasattr(x, "dtype"))

    fixed: Any = jax.tree.structure(arrays(eqx.filter_eval_shape(trained, batch, {})))

    def reckoned(batch: Batch, value: Array) -> Any:
        found = arrays(trained(batch, {name: value}))
        structure: Any = jax.tree.structure(found)
        if structure != fixed:
            raise TypeError(name)
        return found

    try:
        with warnings.catch_warnings():
            # what a network keeps beside its arrays is a constant of the program
            warnings.filterwarnings("error", message=".*being set as static")
            program = jax.make_jaxpr(reckoned)(batch, jax.ShapeDtypeStruct((), jnp.float32)).jaxpr
    except (TypeError, UserWarning):  # the former where JAX needs a plain value
        return False
    value = program.invars[-1]
    return any(value is x for equation in program.eqns for x in equation.invars)


def _leaves(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted name."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _with(settings: S, values: Mapping[str, Any]) -> S:
    """Copy frozen settings with other values, unchecked: a traced one has no size to check."""
    changed = copy.copy(settings)
    for dotted, value in values.items():
        name, _, rest = dotted.partition(".")
        inner = _with(getattr(changed, name), {rest: value}) if rest else value
        object.__setattr__(changed, name, inner)
    return changed


def columns(members: Sequence[Member]) -> dict[str, Array]:
    """The varied settings of every member: one array (members,) by name."""
    names = members[0].settings
    return {n: jnp.asarray(np.array([m.settings[n] for m in members], np.float32)) for n in names}
