"""What the numbers of a log are called and measured in: it travels with the data.

A policy acts in [-1, 1] on rows of plain numbers. Who runs it in a plant needs to know which sensor
each of them is, in which unit, and what -1 and 1 stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.errors import UserError

Names = tuple[str, ...]


@dataclass(frozen=True)
class Signals:
    """Names, units and bounds; empty where the data does not say."""

    observation: Names = ()  # of each number of a state; a category has one per level, `mode=auto`
    action: Names = ()  # of each number of an action
    reward: str = ""
    units: Mapping[str, str] = field(default_factory=dict)  # name → unit
    action_low: tuple[float, ...] = ()  # in the log's units, what an action of -1 stands for
    action_high: tuple[float, ...] = ()  # … and of 1; () where actions were not mapped
    categories: Mapping[str, Names] = field(default_factory=dict)  # column → its levels, in order

    def __bool__(self) -> bool:
        return self != Signals()

    @property
    def bounded(self) -> bool:
        """Whether actions were mapped: -1 and 1 stand for `action_low` and `action_high`."""
        return bool(self.action_low)

    def in_units(self, actions: ArrayLike) -> NDArray[np.float32]:
        """Actions (…, act) of a policy in the log's units: low + (a + 1) / 2 · (high − low).

        As they are, where they were not mapped.
        """
        given = np.asarray(actions, np.float32)
        if not self.bounded:
            return given
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        return (low + (given.astype(np.float64) + 1) / 2 * (high - low)).astype(np.float32)

    def told(self, names: Names) -> str:
        """Names with their units, for messages."""
        return ", ".join(f"{n} ({self.units[n]})" if n in self.units else n for n in names)

    @property
    def choices(self) -> Names:
        """What each number of a discrete action stands for, exactly one being 1; else ()."""
        for name, levels in self.categories.items():
            if self.action == tuple(f"{name}={level}" for level in levels):
                return levels
        return ()

    def fits(self, observations: int, actions: int) -> bool:
        """Whether these are the names of rows of that many numbers."""
        widths = {len(self.action_low), len(self.action_high)}
        return (
            len(self.observation) in (0, observations)
            and len(self.action) in (0, actions)
            and widths in ({0}, {actions})
        )

    def as_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "observation": list(self.observation),
            "action": list(self.action),
            "reward": self.reward,
            "units": dict(self.units),
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
            "categories": {name: list(levels) for name, levels in self.categories.items()},
        }

    @classmethod
    def from_json(cls, content: Any, where: str) -> Signals:
        """Read what `as_json` wrote; None or {} is nothing known.

        Raises:
            UserError: if it is anything else.
        """
        if not content:
            return cls()
        try:
            low, high = (
                tuple(float(x) for x in content[key]) for key in ("action_low", "action_high")
            )
            return cls(
                _names(content["observation"]),
                _names(content["action"]),
                _names([content["reward"]])[0],
                dict(zip(_names(content["units"]), _names(content["units"].values()), strict=True)),
                low,
                high,
                {name: _names(levels) for name, levels in content["categories"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"`signals` does not hold names, units and bounds ({error}).", where=where
            ) from error


def _names(values: Any) -> Names:
    names = tuple(values)
    if isinstance(values, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{values!r} are no names")
    return names
