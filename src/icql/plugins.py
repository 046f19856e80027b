"""What installed packages add: the objects that their entry points name."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TypeVar

from icql.errors import UserError

T = TypeVar("T")


def offered(group: str, kind: type[T]) -> list[T]:
    """Every `kind` that an entry point of the group names, alone or in a list.

    Raises:
        UserError: an entry point cannot be loaded, or names something else.
    """
    found: list[T] = []
    for point in entry_points(group=group):
        try:
            named = point.load()
        except Exception as error:
            raise _unusable(group, point.value, f"cannot be loaded ({error})") from error
        items = [named] if isinstance(named, kind) else named
        if not isinstance(items, list | tuple) or not all(isinstance(i, kind) for i in items):
            what = f"names no {kind.__name__} and no list of them"
            raise _unusable(group, point.value, what)
        found += items
    return found


def _unusable(group: str, place: str, what: str) -> UserError:
    fix = "Mend or uninstall the package that has it."
    return UserError(f"the entry point {place!r} {what}.", where=group, fix=fix)
