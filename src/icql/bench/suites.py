"""Suites as data: which rows on which tasks make a table (suites.toml); known without JAX."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from icql.algos.registry import algorithms, check_offline
from icql.errors import UserError, nearest


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method of a table: an algorithm, and what is changed of its preset's settings."""

    id: str
    name: str
    algo: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One table: rows × tasks under a preset, or the command that makes it."""

    id: str
    title: str
    paper: str = ""  # labels of the paper's tables and figures; empty: one of our own
    preset: str = "paper"
    tasks: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    vary: str = ""  # the setting that the rows differ in, where it is a number
    command: str = ""  # what makes it, where it is no table of scores

    def runnable(self) -> Suite:
        """Return the suite itself, or say which command makes it."""
        if self.command:
            raise UserError(f"suite {self.id!r} is no table of scores.", fix=f"Run: {self.command}")
        return self

    def chosen(self, algos: Sequence[str]) -> tuple[Row, ...]:
        """The rows that `algos` name, by id or algorithm; all where none is named.

        An algorithm that has no row here gets one, as its preset has it.
        """
        rows: dict[str, Row] = {}
        for name in algos:
            own = [row for row in self.rows if row.id == name]
            found = own or [row for row in self.rows if row.algo == name]
            for row in found or [self._added(name)]:
                rows.setdefault(row.id, row)
        return tuple(rows.values()) or self.rows

    def _added(self, algo: str) -> Row:
        """The row of an algorithm that is not here, called as in suites that have it."""
        known = [row.id for row in self.rows]
        if algo not in algorithms():
            raise UserError(
                f"there is no row or algorithm {algo!r}.",
                where="--algos",
                fix=nearest(algo, list(dict.fromkeys([*known, *algorithms()]))),
            )
        check_offline(algo)
        named = (row.name for suite in suites().values() for row in suite.rows if row.id == algo)
        return Row(id=algo, name=next(named, algo), algo=algo)

    def described(self) -> dict[str, Any]:
        """What `icql bench list --json` says."""
        said: dict[str, Any] = {"suite": self.id, "title": self.title, "paper": self.paper}
        if self.command:
            return said | {"command": self.command}
        rows = [vars(row) | {"settings": dict(row.settings)} for row in self.rows]
        return said | {"preset": self.preset, "tasks": list(self.tasks), "rows": rows}


@cache
def suites() -> dict[str, Suite]:
    """Every suite by name."""
    text = resources.files("icql.bench").joinpath("suites.toml").read_text()
    content = tomllib.loads(text)
    return {
        name: _suite(name, entry, content["tasks"]) for name, entry in content["suites"].items()
    }


def get_suite(name: str) -> Suite:
    """Return the suite called `name`, or say which names exist."""
    known = suites()
    if name not in known:
        raise UserError(
            f"there is no suite {name!r}.",
            where="icql bench run",
            fix=f"{nearest(name, list(known))} 'icql bench list' describes them.",
        )
    return known[name]


def _suite(name: str, entry: dict[str, Any], lists: dict[str, list[str]]) -> Suite:
    rows = [Row(**({"algo": row["id"]} | row)) for row in entry.get("rows", ())]
    tasks = [task for group in entry.get("tasks", ()) for task in lists[group]]
    return Suite(**(entry | {"id": name, "rows": tuple(rows), "tasks": tuple(tasks)}))
