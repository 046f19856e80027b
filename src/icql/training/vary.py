"""A grid of settings: every combination with every seed is a member of one compiled program.

Inside the program a varied setting is no longer a number but an entry of an array. That works where
the algorithm only reckons with it; a setting that decides shapes, branches or the data does not
vary within a program, and is refused.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icql.algos.base import Algorithm, Batch
from icql.errors import UserError
from icql.settings.change import leaves, unchecked
from icql.settings.grid import Grid, Member


def vary(algorithm: Algorithm[Any], values: Mapping[str, Any]) -> Algorithm[Any]:
    """Return the algorithm with these settings, which may be traced."""
    if not values:
        return algorithm
    changed: Any = algorithm
    return dataclasses.replace(changed, settings=unchecked(algorithm.settings, values))


def check_grid(algorithm: Algorithm[Any], grid: Grid, batch: Batch) -> None:
    """Refuse settings that cannot vary in one program; names and values were checked before.

    `batch` is what an update gets; shapes are enough.
    """
    if not grid:
        return
    fixed = jax.tree.structure(_arrays(eqx.filter_eval_shape(_trained, algorithm, batch)))
    for name in grid:
        if not _varies(algorithm, name, batch, fixed):
            # the algorithm's own numbers: to trace those of every section would take a minute
            own = [
                n for n, x in leaves(algorithm.settings) if isinstance(x, float) and "." not in n
            ]
            able = [other for other in own if _varies(algorithm, other, batch, fixed)]
            raise UserError(
                "does not vary within one program: it decides shapes, branches, data or nothing.",
                where=f"--grid {name}",
                fix=f"Train a run for each value, or vary some of: {', '.join(able)}.",
            )


def _varies(algorithm: Algorithm[Any], name: str, batch: Batch, fixed: Any) -> bool:
    """Whether updates reckon with this setting, and no shape, branch or constant depends on it."""

    def reckoned(batch: Batch, value: Array) -> Any:
        found = _arrays(_trained(vary(algorithm, {name: value}), batch))
        if jax.tree.structure(found) != fixed:
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


def _trained(algorithm: Algorithm[Any], batch: Batch) -> Any:
    """All that one update makes of a fresh state."""
    key = jax.random.key(0)
    state, metrics = algorithm.update(algorithm.init(key), batch, key)
    return state, metrics, algorithm.policy(state)


def _arrays(tree: Any) -> Any:
    return eqx.filter(tree, lambda x: isinstance(x, jax.Array | jax.ShapeDtypeStruct))


def columns(members: Sequence[Member]) -> dict[str, Array]:
    """The varied settings of every member: one array (members,) by name."""
    names = members[0].settings
    return {n: jnp.asarray(np.array([m.settings[n] for m in members], np.float32)) for n in names}
