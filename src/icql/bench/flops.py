"""Floating-point operations of a function, counted in its program before it is compiled.

XLA's own analysis counts the body of every inner loop once and a hand-written kernel not at all, so
that flows, layers and delayed policies would look cheaper than they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx


def count_flops(function: Callable[..., Any], *args: Any) -> int:
    """Operations of all matrix products in `function(*args)`: 2 m n k each, loops unrolled.

    Arguments may be shapes (`jax.ShapeDtypeStruct`). Of a conditional the dearest branch counts;
    of a loop whose length is an argument, one round.
    """
    closed, _, _ = eqx.filter_make_jaxpr(function)(*args)
    return _count(closed.jaxpr)


def _count(jaxpr: Any) -> int:
    return sum(_cost(equation) for equation in jaxpr.eqns)


def _cost(equation: Any) -> int:
    params, name = equation.params, equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        return 2 * depth * math.prod(equation.outvars[0].aval.shape)
    inner = [_count(jaxpr) for jaxpr in _programs(params)]
    if name == "cond":
        return max(inner)
    times = params["length"] if name == "scan" else 1
    if name == "pallas_call":
        times = math.prod(params["grid_mapping"].grid)
    return times * sum(inner)


def _programs(params: dict[str, Any]) -> Iterator[Any]:
    """The programs within an equation."""
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            program = getattr(item, "jaxpr", item)  # closed or not
            if hasattr(program, "eqns"):
                yield program
