"""Presets: the settings of an algorithm for a task, as data, with where each value comes from."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from icql.algos.registry import get_algorithm
from icql.errors import UserError, nearest
from icql.settings.change import override
from icql.settings.run import RunSettings
from icql.settings.shared import ActorSettings

PresetName = Literal["quick", "paper", "robust"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)


@dataclass(frozen=True)
class Preset:
    """Resolved settings of one algorithm for one task, and where they come from."""

    settings: Any
    run: RunSettings
    sources: tuple[str, ...]


def resolve_preset(algo: str, preset: str, task: str | None) -> Preset:
    """Settings of `algo`: its base, then the task's, then the preset's own, each overriding."""
    if preset not in PRESETS:
        raise UserError(
            f"there is no preset {preset!r}.", where="--preset", fix=nearest(preset, list(PRESETS))
        )
    entry = get_algorithm(algo)
    own = _presets().get(algo, entry.presets)
    shared = _presets()[own["like"]]["tasks"] if "like" in own else []
    layers = [own.get("base", {}), *_fitting([*shared, *own.get("tasks", [])], task)]
    if preset == "quick":
        layers.append(own.get("quick", {}))
    elif preset == "robust":
        if preset not in presets_of(algo):
            raise UserError(
                f"gives methods the same policy network, and {algo} has one of its own kind.",
                where="--preset robust",
                fix="Take --preset paper.",
            )
        layers += [_presets()["robust"]["base"], *_fitting(_presets()["robust"]["tasks"], task)]
    settings, run, sources = entry.settings(), RunSettings(), []
    for layer in layers:
        settings = override(settings, layer.get("settings", {}))
        run = override(run, layer.get("run", {}))
        sources += [layer["source"]] if "source" in layer else []
    return Preset(settings, run, tuple(sources))


def presets_of(algo: str) -> tuple[PresetName, ...]:
    """The presets that an algorithm has: `robust` needs a policy that it can set."""
    robust = issubclass(get_algorithm(algo).settings, ActorSettings)
    return PRESETS if robust else tuple(preset for preset in PRESETS if preset != "robust")


def _fitting(layers: list[dict[str, Any]], task: str | None) -> list[dict[str, Any]]:
    """Those that are for the task: one of their names begins its name."""
    return [
        layer
        for layer in layers
        if task is not None and any(task.startswith(name) for name in layer["names"])
    ]


@cache
def _presets() -> dict[str, Any]:
    text = resources.files("icql.algos").joinpath("presets.toml").read_text()
    return tomllib.loads(text)
