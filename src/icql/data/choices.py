"""Discrete actions: whole numbers become one-hot rows, named as the levels of one category.

Everything after the reader then sees rows of numbers, as ever; `Signals.choices` says what each of
them stands for, and that exactly one is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import Floats, Room, blocks
from icql.data.signals import Signals
from icql.errors import UserError

MOST = 1_000  # choices; more are no choices, or damage
COLUMN = "action"  # what a log without names calls it


def are_choices(actions: NDArray[Any]) -> bool:
    """Whether an array of actions, as it was stored, holds the numbers of choices."""
    single = actions.ndim == 1 or (actions.ndim == 2 and actions.shape[1] == 1)
    return single and actions.dtype.kind in "iu" and bool(actions.min(initial=0) >= 0)


def as_choices(
    codes: NDArray[Any], room: Room, where: str, count: int | None = None
) -> tuple[Floats, Signals]:
    """One-hot rows (T, n) of the choices 0 … n - 1 in `codes`, and their names.

    `count` is n where it is known; else the largest code decides.
    """
    codes = codes.reshape(-1)
    least, largest = int(codes.min(initial=0)), int(codes.max(initial=0))
    n = largest + 1 if count is None else count
    if n > MOST or least < 0 or largest >= n:
        raise UserError(
            f"its actions are whole numbers from {least} to {largest}, not choices among "
            f"{min(n, MOST):,} at most.",
            where=where,
            fix="Store real-valued actions as floating-point numbers.",
        )
    n = max(n, 2)  # a single choice is none, but one column could not be told from a number
    hot = room.empty("choices", (len(codes), n), np.float32)
    for rows in blocks(len(codes), n):
        hot[rows] = codes[rows, None] == np.arange(n)
    levels = tuple(str(i) for i in range(n))
    names = tuple(f"{COLUMN}={level}" for level in levels)
    return hot, Signals(action=names, categories={COLUMN: levels})
