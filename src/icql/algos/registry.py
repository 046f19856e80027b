"""Every algorithm by name, and its settings for a preset and a task."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeVar, get_args

from icql.algos.actor_critic import at_least
from icql.algos.base import Algorithm, Spec
from icql.algos.bc import BC, BCSettings
from icql.algos.cql import CQL, CQLSettings
from icql.algos.dmg import DMG, DMGSettings
from icql.algos.dt import DT, DTSettings
from icql.algos.fql import FQL, FQLSettings
from icql.algos.iql import IQL, IQLSettings
from icql.algos.qc import QC, QCSettings
from icql.algos.radt import RADT, RADTSettings
from icql.algos.rebrac import ReBRAC, ReBRACSettings
from icql.algos.sac import SAC, SACSettings
from icql.algos.td3bc import TD3BC, TD3BCSettings
from icql.errors import UserError, nearest
from icql.nn.products import Precision

PresetName = Literal["quick", "paper"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)
S = TypeVar("S")


@dataclass(frozen=True)
class Entry:
    """An algorithm's name, code, settings type and origin."""

    name: str
    summary: str
    make: Any  # (settings, spec) → Algorithm
    settings: type[Any]
    paper: str
    online: bool = False  # learns in an environment, not from logged data


ALGORITHMS = {
    entry.name: entry
    for entry in (
        Entry("icql", "IQL with a local in-context critic", IQL, IQLSettings, "Xu et al. 2026"),
        Entry("iql", "implicit Q-learning", IQL, IQLSettings, "Kostrikov et al. 2022"),
        Entry("bc", "behaviour cloning", BC, BCSettings, "CORL"),
        Entry(
            "icql-td3bc",
            "TD3+BC with a local in-context critic",
            TD3BC,
            TD3BCSettings,
            "Xu et al. 2026",
        ),
        Entry("td3bc", "TD3 with cloning", TD3BC, TD3BCSettings, "Fujimoto & Gu 2021"),
        Entry("cql", "conservative Q-learning", CQL, CQLSettings, "Kumar et al. 2020"),
        Entry(
            "rebrac",
            "TD3+BC, cloning in actor and critic",
            ReBRAC,
            ReBRACSettings,
            "Tarasov et al. 2023",
        ),
        Entry("dmg", "doubly mild generalisation", DMG, DMGSettings, "Mao et al. 2024"),
        Entry("dt", "Decision Transformer", DT, DTSettings, "Chen et al. 2021"),
        Entry("radt", "retrieval-augmented DT, a port", RADT, RADTSettings, "Schmied et al. 2024"),
        Entry("fql", "flow policy, distilled to one step", FQL, FQLSettings, "Park et al. 2025"),
        Entry("qc", "action chunks, best of n", QC, QCSettings, "Li et al. 2025"),
        Entry(
            "sac",
            "soft actor-critic, the online oracle",
            SAC,
            SACSettings,
            "Haarnoja et al. 2018",
            online=True,
        ),
    )
}


@dataclass(frozen=True)
class RunSettings:
    """How long to train and how often to look."""

    steps: int = 1_000_000
    """Updates."""
    evaluate_every: int = 50_000
    """Updates between evaluations (the last is always evaluated)."""
    episodes: int = 10
    """Episodes per evaluation and seed (0: train without an environment, evaluate later)."""
    log_every: int = 1_000
    """Updates between rows of metrics."""
    checkpoint_every: int = 25_000
    """Updates between checkpoints: the most that a killed run can lose."""
    precision: Precision = "float32"
    """Of the matrix products of training. bfloat16 rounds their factors (on a GPU also the
    activations between them); sums, TD, losses and parameters stay float32. Faster where the chip
    multiplies it: GPUs, and CPUs with AVX512-BF16 or AMX."""

    def __post_init__(self) -> None:
        for name in ("steps", "evaluate_every", "episodes", "log_every", "checkpoint_every"):
            at_least(self, name, 0 if name == "episodes" else 1)
        if self.precision not in get_args(Precision):
            raise UserError(f"must be one of {', '.join(get_args(Precision))}.", where="precision")


@dataclass(frozen=True)
class Preset:
    """Resolved settings of one algorithm for one task, and where they come from."""

    settings: Any
    run: RunSettings
    sources: tuple[str, ...]


def get_algorithm(name: str) -> Entry:
    """Return the entry of an algorithm, or say which names exist."""
    if name not in ALGORITHMS:
        raise UserError(
            f"there is no algorithm {name!r}.", where="--algo", fix=nearest(name, list(ALGORITHMS))
        )
    return ALGORITHMS[name]


def check_offline(name: str) -> None:
    """Refuse an algorithm that does not learn from logged data."""
    if get_algorithm(name).online:
        raise UserError(
            f"{name} learns online, by acting in an environment, not from logged data.",
            where="--algo",
            fix="Use `icql data collect`, which trains it and keeps its data and its critics.",
        )


def make_algorithm(name: str, settings: Any, spec: Spec) -> Algorithm[Any]:
    """Make the algorithm called `name`."""
    algorithm: Algorithm[Any] = get_algorithm(name).make(settings, spec)
    return algorithm


def resolve_preset(algo: str, preset: PresetName, task: str | None) -> Preset:
    """Settings of `algo`: its base, then the task's, then the preset's own, each overriding."""
    if preset not in PRESETS:
        raise UserError(
            f"there is no preset {preset!r}.", where="--preset", fix=nearest(preset, list(PRESETS))
        )
    entry, table = get_algorithm(algo), _presets()
    tasks = table[algo].get("tasks", [])
    layers = [table[algo].get("base", {})]
    layers += [
        layer
        for layer in (table[tasks]["tasks"] if isinstance(tasks, str) else tasks)
        if task is not None and any(task.startswith(name) for name in layer["names"])
    ]
    if preset == "quick":
        layers.append(table[algo]["quick"])
    settings, run, sources = entry.settings(), RunSettings(), []
    for layer in layers:
        settings = override(settings, layer.get("settings", {}))
        run = override(run, layer.get("run", {}))
        sources += [layer["source"]] if "source" in layer else []
    return Preset(settings, run, tuple(sources))


def override(settings: S, changes: dict[str, Any], prefix: str = "") -> S:
    """Return settings with `changes` applied: nested tables or dotted names (`local.layers`)."""
    known = {f.name: f for f in dataclasses.fields(settings)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for dotted, value in changes.items():
        name, _, rest = dotted.partition(".")
        if name not in known:
            raise UserError(
                f"there is no setting {prefix + name!r}.",
                where=prefix + dotted,
                fix=nearest(name, list(known)),
            )
        current = values.get(name, getattr(settings, name))
        if dataclasses.is_dataclass(current):
            inner = {rest: value} if rest else value
            values[name] = override(current, inner, f"{prefix}{name}.")
        else:
            values[name] = _typed(current, value, prefix + name)
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


def _typed(current: Any, value: Any, name: str) -> Any:
    """Return `value` as the type of the setting it replaces, or say that it is not one."""
    if isinstance(current, tuple) and isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(current):
        raise UserError(f"must be a {type(current).__name__}, not {value!r}.", where=name)
    return value


@cache
def _presets() -> dict[str, Any]:
    text = resources.files("icql.algos").joinpath("presets.toml").read_text()
    return tomllib.loads(text)
