"""Networks with their optimisers: start, descend, follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import optax
from jaxtyping import Array

from icql.losses import Number

Model = TypeVar("Model")


class Trained(eqx.Module, Generic[Model]):
    """A model and the state of its optimiser."""

    model: Model
    optimiser: Any


def start(model: Model, optimiser: optax.GradientTransformation) -> Trained[Model]:
    """Give a fresh model a fresh optimiser state."""
    return Trained(model, optimiser.init(eqx.filter(model, eqx.is_inexact_array)))


def descend(
    trained: Trained[Model],
    optimiser: optax.GradientTransformation,
    loss: Callable[[Model], tuple[Array, Any]],
) -> tuple[Trained[Model], Array, Any]:
    """One step down the gradient of `loss(model) → (value, extras)`."""
    (value, extras), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(trained.model)
    parameters = eqx.filter(trained.model, eqx.is_inexact_array)
    with jax.numpy_dtype_promotion("standard"):  # optax reckons with counts of steps
        updates, state = optimiser.update(gradient, trained.optimiser, parameters)
    return Trained(eqx.apply_updates(trained.model, updates), state), value, extras


def follow(target: Model, online: Model, rate: Number) -> Model:
    """Exponential moving average: target ← (1 − rate) target + rate online."""
    return jax.tree.map(
        lambda t, o: (1 - rate) * t + rate * o if eqx.is_inexact_array(t) else t, target, online
    )


def adam(
    learning_rate: Number,
    *,
    clip: Number | None = None,
    cosine_steps: int | None = None,
    preconditioner_rate: Number = 1.0,
    weight_decay: Number | None = None,
) -> optax.GradientTransformation:
    """Adam, optionally with clipped gradients, cosine and weight decay, its own rate for C."""
    rate: Any = learning_rate
    if cosine_steps:
        rate = optax.cosine_decay_schedule(learning_rate, cosine_steps)
    # one vector of all parameters: a few large operations instead of many small ones
    if weight_decay is not None:
        return optax.chain(
            optax.flatten(optax.scale_by_adam()),
            optax.add_decayed_weights(weight_decay, _matrices),
            optax.scale_by_learning_rate(rate),
        )
    parts = [] if clip is None else [optax.clip_by_global_norm(clip)]
    parts.append(optax.adam(rate))
    step = optax.flatten(optax.chain(*parts))
    if preconditioner_rate == 1.0:
        return step
    return optax.chain(step, _scale_preconditioners(preconditioner_rate))


def adamw(
    learning_rate: Number,
    *,
    weight_decay: Number,
    clip: Number,
    warmup: int,
    cosine_steps: int | None = None,
) -> optax.GradientTransformation:
    """AdamW as Transformers are trained: clipped, with a linear warm-up, then flat or a cosine."""
    rise = optax.linear_schedule(learning_rate / warmup, learning_rate, warmup - 1)
    if cosine_steps is None:
        rate = rise
    else:
        fall = optax.cosine_decay_schedule(learning_rate, max(cosine_steps - warmup, 1))
        rate = optax.join_schedules([rise, fall], [warmup])
    return optax.chain(
        optax.clip_by_global_norm(clip), optax.adamw(rate, weight_decay=weight_decay)
    )


def _matrices(parameters: Any) -> Any:
    """Which leaves decay: neither offsets nor the scales of LayerNorm, stacked or not."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "name", "") == "weight", parameters
    )


def _scale_preconditioners(factor: Number) -> optax.GradientTransformation:
    """Multiply the updates of every leaf called C: it learns at a pace of its own."""

    def scale(updates: Any, params: Any = None) -> Any:
        def one(path: tuple[Any, ...], leaf: Any) -> Any:
            is_c = getattr(path[-1], "name", None) == "C" if path else False
            return leaf * factor if is_c and leaf is not None else leaf

        return jax.tree_util.tree_map_with_path(one, updates)

    return optax.stateless(scale)
