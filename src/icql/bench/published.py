"""Published scores with their source and kind (published.toml), and the paper's costs."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

KINDS = {  # other than `run`, the source's own runs over several seeds
    "quoted": "equal to an older publication's number, taken over and not run",
    "single seed": "a multiple of what one seed of 10 episodes gives",
    "longer episodes": "played for up to 1,000 steps, where D4RL's episodes end after 280",
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """One number of a publication."""

    source: str  # its title
    label: str  # of the table there
    kind: str  # run, or one of KINDS
    mean: float
    std: float | None = None
    seeds: int | None = None
    episodes: int | None = None

    @property
    def caveat(self) -> str:
        """The kind, where it is another than a run; to be put after the number."""
        return "" if self.kind == "run" else f", {self.kind}"


def published(suite: str, row: str, task: str) -> tuple[Published, ...]:
    """What is published for a cell of a suite, the paper's first."""
    return _numbers().get((suite, row, task), ())


def citations() -> dict[str, str]:
    """How each source is cited, by its title."""
    return {source["title"]: source["cite"] for source in _content()["sources"].values()}


def remarks(suite: str, sources: Collection[str]) -> tuple[str, ...]:
    """What is to be said about the numbers that these sources have for a suite."""
    tables = [table for table in _content()["tables"] if suite in table["suites"]]
    said = [
        f"{_title(table)}: {table['note']}."
        for table in tables
        if "note" in table and _title(table) in sources
    ]
    return tuple(dict.fromkeys(said))


@cache
def paper_costs() -> dict[str, Any]:
    """The paper's cost tables, each with the label of its source."""
    text = resources.files("icql.bench").joinpath("paper_costs.toml").read_text()
    return tomllib.loads(text)


def _title(table: Mapping[str, Any]) -> str:
    return str(_content()["sources"][table["source"]]["title"])


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(resources.files("icql.bench").joinpath("published.toml").read_text())


@cache
def _numbers() -> dict[tuple[str, str, str], tuple[Published, ...]]:
    found: dict[tuple[str, str, str], tuple[Published, ...]] = {}
    for table in _content()["tables"]:
        source = _content()["sources"][table["source"]]
        for task, scores in table["scores"].items():
            for row, score in zip(table["columns"], scores, strict=True):
                mean, std = score if isinstance(score, list) else (score, None)
                if math.isnan(mean):
                    continue
                number = Published(
                    source=source["title"],
                    label=table["label"],
                    kind=_kind(table, row, task),
                    mean=float(mean),
                    std=None if std is None else float(std),
                    seeds=source.get("seeds"),
                    episodes=source.get("episodes"),
                )
                for suite in table["suites"]:
                    place = (suite, row, task)
                    found[place] = (*found.get(place, ()), number)
    return found


def _kind(table: Mapping[str, Any], row: str, task: str) -> str:
    for kind, columns in table.get("kinds", {}).items():
        if any(task.startswith(name) for name in columns.get(row, ())):
            return str(kind)
    return str(table["kind"])
