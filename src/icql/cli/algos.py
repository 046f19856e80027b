"""`icql algos`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import tyro

from icql.algos.presets import PRESETS, resolve_preset
from icql.algos.registry import algorithms


@dataclass(frozen=True)
class Algos:
    """The options of `icql algos`."""

    task: str | None = None
    """Show the settings for this task."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse and list."""
    options = tyro.cli(
        Algos,
        prog="icql algos",
        description="List every algorithm with its presets and where their values come from.",
        args=argv,
    )
    listed = {
        name: {
            "summary": entry.summary,
            "paper": entry.paper,
            "presets": {
                preset: {
                    "settings": dataclasses.asdict(chosen.settings),
                    "run": dataclasses.asdict(chosen.run),
                    "sources": chosen.sources,
                }
                for preset in PRESETS
                for chosen in [resolve_preset(name, preset, options.task)]
            },
        }
        for name, entry in algorithms().items()
    }
    if options.json:
        return {"task": options.task, "algorithms": listed}
    for name, entry in algorithms().items():
        print(f"{name:<12} {entry.summary} ({entry.paper})")
        for source in resolve_preset(name, "paper", options.task).sources:
            print(f"{'':<12} · {source}")
    return None
