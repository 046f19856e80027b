"""What a setting may hold: limits stand in its annotation and are checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from icql.errors import UserError, nearest

MOST = 2**31 - 1  # whole numbers are counted with 32 bits on the device
MOST_FLOAT = 3e38  # … and others are float32


@dataclass(frozen=True)
class Limits:
    """An interval; an open end does not belong to it."""

    low: float = -inf
    high: float = inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below  # NaN is neither

    def __str__(self) -> str:
        if self.high == inf:
            if self.low == 0:
                return "must be positive" if self.open_low else "must not be negative"
            return f"must be {'more than' if self.open_low else 'at least'} {self.low:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"must be in {left}{self.low:g}, {self.high:g}{right}"


Count = Annotated[int, Limits(1)]
Whole = Annotated[int, Limits(0)]
Widths = Annotated[tuple[int, ...], Limits(1)]  # every one of them
Positive = Annotated[float, Limits(0, open_low=True)]
NonNegative = Annotated[float, Limits(0)]
AtLeastOne = Annotated[float, Limits(1)]
Share = Annotated[float, Limits(0, 1)]
BelowOne = Annotated[float, Limits(0, 1, open_high=True)]
AboveZero = Annotated[float, Limits(0, 1, open_low=True)]
Between = Annotated[float, Limits(0, 1, open_low=True, open_high=True)]


@dataclass(frozen=True)
class Settings:
    """Base of all settings: a frozen dataclass that refuses what its annotations do not allow."""

    section: ClassVar[str] = ""
    """What stands before the names of its settings, such as `context.`."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, limits, choices in _rules(kind):
            value = getattr(self, name)
            if choices and value not in choices:
                raise UserError(
                    f"must be one of {', '.join(map(str, choices))}, not {value!r}.",
                    where=self.section + name,
                    fix=nearest(str(value), [str(choice) for choice in choices]),
                )
            if limits is not None:
                for number in value if isinstance(value, tuple) else (value,):
                    if number > (MOST if isinstance(number, int) else MOST_FLOAT):
                        raise UserError("is too large.", where=self.section + name)
                    if number not in limits:
                        raise UserError(f"{limits}, not {number}.", where=self.section + name)


@cache
def _rules(kind: type[Any]) -> list[tuple[str, Limits | None, tuple[Any, ...]]]:
    """The name of each field that has them, with its limits or its choices."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if get_origin(hint) is Annotated:
            limits = next((m for m in get_args(hint) if isinstance(m, Limits)), None)
            found.append((name, limits, ()))
        elif get_origin(hint) is Literal:
            found.append((name, None, get_args(hint)))
    return found
