"""Reports as a notebook shows them: dictionaries as ever, with a picture of themselves."""

from __future__ import annotations

from typing import Any

from icql.pages import note
from icql.settings.grid import say_settings

METHODS = {
    "fqe": "fitted Q evaluation",
    "corrected": "corrected by its errors on logged steps",
    "importance": "importance sampling",
    "doubly_robust": "doubly robust",
    "local_critic": "local critic",
}


class Judged(dict[str, Any]):
    """What `icql.judge` says of one run."""

    def _repr_html_(self) -> str:
        rows: list[tuple[Any, ...]] = [("logged", self["behaviour"], "", "")]
        for name, label in METHODS.items():
            found = self["methods"].get(name)
            if found is not None:
                rows.append((label, _number(found["estimate"]), *_around(found["interval"])))
        title = f"{self['verdict']} (beside {self['reference']})"
        head = (f"discounted return, γ = {self['discount']:g}", "estimate", "from", "to")
        return note(title, [*self["reasons"], *self["notes"]], head, rows)


class Choice(dict[str, Any]):
    """What `icql.select` says of several."""

    def _repr_html_(self) -> str:
        rows = [
            (_label(one), one["verdict"], _number(one["estimate"]), *_around(one["interval"]))
            for one in self["candidates"]
        ]
        winner = self["winner"]
        chosen = "none" if winner is None else _label(winner)
        shown = "" if self["shown"] else " (not shown to be better than every other)"
        head = ("run", "beside the log", "estimate", "from", "to")
        return note(f"winner: {chosen}{shown}", self["reasons"], head, rows)


def _label(one: dict[str, Any]) -> str:
    return f"{one['run']} {say_settings(one['settings'])}".rstrip()


def _number(value: float | None) -> Any:
    return "not finite" if value is None else value


def _around(interval: list[float] | None) -> tuple[Any, Any]:
    return ("no interval", "") if interval is None else (interval[0], interval[1])
