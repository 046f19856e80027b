"""What a cell of text means: numbers, yes and no, points in time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

YES = frozenset(("yes", "true", "ja", "wahr", "on", "y", "t", "j", "1", "1.0"))
NO = frozenset(("no", "false", "nein", "falsch", "off", "n", "f", "0", "0.0"))
EMPTY = frozenset(("", "nan", "na", "n/a", "#n/a", "#na", "null", "-nan"))
MOST_LEVELS = 64  # of a category: more are no category

# times that are not ISO 8601, as `time_format` names them
TIME_FORMATS = tuple(
    f"{day}{clock}"
    for day in ("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y")
    for clock in (" %H:%M:%S", " %H:%M", "")
)

Moment = Literal["naive", "zoned"]


def flag(cell: str, words: tuple[str, ...] = ()) -> bool | None:
    """Whether a cell says yes, by its own words for yes and no or the usual ones; None: neither."""
    if words:
        return {words[0]: True, words[1]: False}.get(cell.strip())
    word = cell.strip().casefold()
    return True if word in YES else False if word in NO else None


def are_flags(cells: Iterable[str]) -> bool:
    """Whether all of these say yes or no, and some do."""
    said = [flag(cell) for cell in cells if not empty(cell)]
    return bool(said) and None not in said


def empty(cell: str, missing: Iterable[str] = ()) -> bool:
    """Whether a cell is a gap."""
    return cell.strip().casefold() in EMPTY or cell in missing


def number(cell: str, decimal: str = ".") -> float | None:
    """A cell as a number; None: it is none."""
    if decimal == ",":
        cell = "" if "." in cell else cell.replace(",", ".")
    try:
        return float(cell)
    except ValueError:
        return None


def moment(cell: str) -> Moment | None:
    """Whether a point in time by ISO 8601 says its zone; None: it is none."""
    try:
        return "naive" if datetime.fromisoformat(cell.strip()).tzinfo is None else "zoned"
    except ValueError:
        return None


def formats(cells: Iterable[str]) -> list[str]:
    """The known formats that fit all of these times."""

    def fits(cell: str, form: str) -> bool:
        try:
            datetime.strptime(cell.strip(), form)
        except ValueError:
            return False
        return True

    some = list(cells)
    return [form for form in TIME_FORMATS if some and all(fits(cell, form) for cell in some)]
