"""Every algorithm by name; its code is imported when it is made, so that listing needs no JAX.

An algorithm of one's own is registered with :func:`register_algorithm`, or by its package through
an entry point of the group `icql.algorithms` that names an :class:`Entry`; the command line then
knows it like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from icql.errors import UserError, nearest
from icql.plugins import offered
from icql.settings import algorithms as own

if TYPE_CHECKING:
    from icql.algos.base import Algorithm, Spec

GROUP = "icql.algorithms"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An algorithm's name, code, settings type and origin."""

    name: str
    summary: str
    make: Any  # (settings, spec) → Algorithm, or where that is: "package.module:Name"
    settings: type[Any]
    paper: str
    online: bool = False  # learns in an environment, not from logged data
    discrete: bool = False  # can choose among discrete actions, one-hot (`Spec.discrete`)
    presets: Mapping[str, Any] = field(default_factory=dict)  # as a section of presets.toml


CHOOSE = ("icql", "icql-graph", "iql", "bc", "cql")  # those with a policy over choices
# name, where its code is, settings, what it is, and where it comes from
_OWN: tuple[tuple[str, str, type[Any], str, str], ...] = (
    ("auto", "", own.AutoSettings, "icql-graph or icql-rank, by the data", "this package"),
    ("icql", "iql:IQL", own.IQLSettings, "IQL with a local in-context critic", "Xu et al. 2026"),
    ("icql-graph", "icql_graph:ICQLGraph", own.GraphSettings,
     "cloning what fared well among similar states", "this package"),
    ("icql-rank", "td3bc:ReBRAC", own.RankSettings,
     "ReBRAC, its policy from what fared well among similar states", "this package"),
    ("iql", "iql:IQL", own.IQLSettings, "implicit Q-learning", "Kostrikov et al. 2022"),
    ("bc", "bc:BC", own.BCSettings, "behaviour cloning", "CORL"),
    ("icql-td3bc", "td3bc:TD3BC", own.TD3BCSettings, "TD3+BC with a local in-context critic",
     "Xu et al. 2026"),
    ("td3bc", "td3bc:TD3BC", own.TD3BCSettings, "TD3 with cloning", "Fujimoto & Gu 2021"),
    ("cql", "cql:CQL", own.CQLSettings, "conservative Q-learning", "Kumar et al. 2020"),
    ("rebrac", "td3bc:ReBRAC", own.ReBRACSettings, "TD3+BC, cloning in actor and critic",
     "Tarasov et al. 2023"),
    ("dmg", "dmg:DMG", own.DMGSettings, "doubly mild generalisation", "Mao et al. 2024"),
    ("dt", "dt:DT", own.DTSettings, "Decision Transformer", "Chen et al. 2021"),
    ("radt", "radt:RADT", own.RADTSettings, "retrieval-augmented DT, a port: DT's sizes, "
     "memory and embedding made in the run",
     "Schmied et al. 2024"),
    ("fql", "fql:FQL", own.FQLSettings, "flow policy, distilled to one step", "Park et al. 2025"),
    ("qc", "qc:QC", own.QCSettings, "action chunks, best of n", "Li et al. 2025"),
    ("sac", "sac:SAC", own.SACSettings, "soft actor-critic, the online oracle",
     "Haarnoja et al. 2018"),
)  # fmt: skip
_ALGORITHMS = {
    name: Entry(
        name=name,
        summary=summary,
        make=f"icql.algos.{code}" if code else "",
        settings=settings,
        paper=paper,
        online=name == "sac",
        discrete=name in CHOOSE,
    )
    for name, code, settings, summary, paper in _OWN
}


def algorithms() -> dict[str, Entry]:
    """Every algorithm by name, those of installed packages among them."""
    _load_entry_points()
    return dict(_ALGORITHMS)


def get_algorithm(name: str) -> Entry:
    """Return the entry of an algorithm, or say which names exist."""
    known = _ALGORITHMS if name in _ALGORITHMS else algorithms()
    if name not in known:
        raise UserError(
            f"there is no algorithm {name!r}.", where="--algo", fix=nearest(name, list(known))
        )
    return known[name]


def register_algorithm(entry: Entry) -> None:
    """Add an algorithm of your own; a name that is taken is refused."""
    if entry.name in _ALGORITHMS:
        raise UserError(
            f"an algorithm {entry.name!r} is registered already.", fix="Choose another name."
        )
    _ALGORITHMS[entry.name] = entry


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
    entry = get_algorithm(name)
    make = entry.make
    if not make:
        raise UserError(
            "is chosen once there is data.",
            where=f"--algo {name}",
            fix="Name the algorithm itself.",
        )
    if spec.discrete and not entry.discrete:
        able = (other for other, entry in algorithms().items() if entry.discrete)
        raise UserError(
            f"learns real numbers, and the actions of this data are {spec.action_dim} choices.",
            where=f"--algo {name}",
            fix=f"Take one that can choose: {', '.join(able)}.",
        )
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        make = getattr(import_module(module), attribute)
    algorithm: Algorithm[Any] = make(settings, spec)
    return algorithm


@cache
def _load_entry_points() -> None:
    for entry in offered(GROUP, Entry):
        if _ALGORITHMS.get(entry.name) != entry:  # the package may have registered it itself
            register_algorithm(entry)
