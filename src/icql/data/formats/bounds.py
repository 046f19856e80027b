"""Bounds of actions where no table names its columns: HDF5, NPZ and Minari.

A file of arrays says nothing of units. Its bounds lie in a small mapping beside it
(`log.npz.toml`), or in one given with `--columns`, of which `action_bounds` is all that counts;
those of a Minari dataset are in its action space.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from icql.data.arrays import IN_MEMORY, Bools, Floats, Room, blocks, tally
from icql.data.formats.mapping import Columns, read_columns
from icql.data.transitions import Source
from icql.errors import UserError

SLACK = 1e-5  # of the range: rounding may put an action a little outside its bounds


def with_bounds(source: Source, given: Columns | str | Path, room: Room = IN_MEMORY) -> Source:
    """A log of arrays with actions mapped from the bounds that a mapping gives.

    Raises:
        UserError: the mapping says more than bounds, or actions lie outside of them.
    """
    columns = given if isinstance(given, Columns) else read_columns(given, needed=())
    default = Columns()
    for field in fields(Columns):
        if field.name in ("action_bounds", "origin") or not columns.origin:
            continue
        if getattr(columns, field.name) not in (None, getattr(default, field.name)):
            raise UserError(
                f"`{field.name}` is of CSV and Parquet logs; of arrays, only `action_bounds` is.",
                where=columns.origin,
            )
    numbered = tuple(f"actions[{i}]" for i in range(source.steps.actions.shape[1]))
    named = replace(columns, action=source.info.signals.action or numbered)
    bounds = named.bounds()
    return source if bounds is None else mapped(source, *bounds, room=room)


def mapped(source: Source, low: Floats, high: Floats, *, room: Room = IN_MEMORY) -> Source:
    """A log with actions in [-1, 1], which stand for `low` and `high` (act,); its bounds are kept.

    Raises:
        UserError: an action lies outside, or actions were mapped before.
    """
    where, actions = source.info.source or source.info.name, source.steps.actions
    if source.info.signals.bounded:
        raise UserError("it has the bounds of its actions already.", where=where)
    least, most = low.astype(np.float64), high.astype(np.float64)
    slack = SLACK * (most - least)
    valid = source.steps.valid

    def outside(part: slice) -> Bools:
        wide = (actions[part] < least - slack) | (actions[part] > most + slack)
        found: Bools = np.asarray(wide.any(axis=1))
        return found if valid is None else found & valid[part]

    row, count = tally(len(actions), outside, width=actions.shape[1])
    if row is not None:
        raise UserError(
            f"the action of row {row} and {count - 1:,} others lie outside the bounds.",
            where=where,
            fix="Give the limits of the plant in `action_bounds`.",
        )
    out = room.empty("unit_actions", actions.shape, np.float32)
    for part in blocks(*actions.shape):
        exact = actions[part].astype(np.float64)
        out[part] = np.clip(2 * (exact - least) / (most - least) - 1, -1, 1)
    told = ", ".join(f"{a:g} … {b:g}" for a, b in zip(least, most, strict=True))
    said = (
        f"{where}: its actions were mapped linearly to [-1, 1] from {told}; a run keeps these "
        "bounds, and `load_policy(run).act` gives actions in them."
    )
    signals = replace(
        source.info.signals, action_low=tuple(least.tolist()), action_high=tuple(most.tolist())
    )
    info = replace(source.info, signals=signals, warnings=(*source.info.warnings, said))
    return replace(source, steps=replace(source.steps, actions=out), info=info)
