"""Settings by their dotted names: read, changed, recorded, read back, compared."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from icql.errors import UserError, nearest

S = TypeVar("S")


def leaves(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted name, such as `local.layers`."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def override(settings: S, changes: Mapping[str, Any], prefix: str = "") -> S:
    """Return settings with `changes` applied: nested tables or dotted names (`local.layers`)."""
    known = {f.name for f in dataclasses.fields(settings)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}  # of a section at once: some settings need each other
    for dotted, value in changes.items():
        name, _, rest = dotted.partition(".")
        if name not in known:
            raise UserError(
                f"there is no setting {prefix + name!r}.",
                where=prefix + dotted,
                fix=nearest(name, list(known)),
            )
        current = getattr(settings, name)
        if dataclasses.is_dataclass(current):
            inner.setdefault(name, {}).update({rest: value} if rest else value)
        else:
            values[name] = _typed(current, value, prefix + name)
    for name, section in inner.items():
        values[name] = override(getattr(settings, name), section, f"{prefix}{name}.")
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


def names_of(changes: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted name of everything that `override` would change, tables within tables too."""
    for name, value in changes.items():
        if isinstance(value, Mapping):
            yield from names_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def unchecked(settings: S, values: Mapping[str, Any]) -> S:
    """Copy settings with other values by dotted name, unchecked: a traced one has no size."""
    changed = copy.copy(settings)
    for dotted, value in values.items():
        name, _, rest = dotted.partition(".")
        inner = unchecked(getattr(changed, name), {rest: value}) if rest else value
        object.__setattr__(changed, name, inner)
    return changed


def read_back(defaults: S, recorded: Mapping[str, Any], *, where: str) -> S:
    """Return settings as a file at `where` records them, or say that it is another version's."""
    try:
        return override(defaults, recorded)
    except (UserError, AttributeError, TypeError) as wrong:
        what = wrong.what if isinstance(wrong, UserError) else str(wrong)
        raise UserError(
            f"does not fit this version of icql: {what}",
            where=where,
            fix="Its 'versions' say which one wrote it.",
        ) from None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between two records, by name: the value of before and that of now."""
    return {name: (old, now.get(name)) for name, old in before.items() if old != now.get(name)}


def _typed(current: Any, value: Any, name: str) -> Any:
    """Return `value` as the type of the setting it replaces, or say that it is not one."""
    if isinstance(current, tuple) and isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(current):
        raise UserError(f"must be a {type(current).__name__}, not {value!r}.", where=name)
    return value
