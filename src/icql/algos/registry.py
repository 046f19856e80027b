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
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from icql.errors import UserError, nearest
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
    presets: Mapping[str, Any] = field(default_factory=dict)  # as a section of presets.toml


_ALGORITHMS = {
    entry.name: entry
    for entry in (
        Entry(
            name="icql",
            summary="IQL with a local in-context critic",
            make="icql.algos.iql:IQL",
            settings=own.IQLSettings,
            paper="Xu et al. 2026",
        ),
        Entry(
            name="iql",
            summary="implicit Q-learning",
            make="icql.algos.iql:IQL",
            settings=own.IQLSettings,
            paper="Kostrikov et al. 2022",
        ),
        Entry(
            name="bc",
            summary="behaviour cloning",
            make="icql.algos.bc:BC",
            settings=own.BCSettings,
            paper="CORL",
        ),
        Entry(
            name="icql-td3bc",
            summary="TD3+BC with a local in-context critic",
            make="icql.algos.td3bc:TD3BC",
            settings=own.TD3BCSettings,
            paper="Xu et al. 2026",
        ),
        Entry(
            name="td3bc",
            summary="TD3 with cloning",
            make="icql.algos.td3bc:TD3BC",
            settings=own.TD3BCSettings,
            paper="Fujimoto & Gu 2021",
        ),
        Entry(
            name="cql",
            summary="conservative Q-learning",
            make="icql.algos.cql:CQL",
            settings=own.CQLSettings,
            paper="Kumar et al. 2020",
        ),
        Entry(
            name="rebrac",
            summary="TD3+BC, cloning in actor and critic",
            make="icql.algos.rebrac:ReBRAC",
            settings=own.ReBRACSettings,
            paper="Tarasov et al. 2023",
        ),
        Entry(
            name="dmg",
            summary="doubly mild generalisation",
            make="icql.algos.dmg:DMG",
            settings=own.DMGSettings,
            paper="Mao et al. 2024",
        ),
        Entry(
            name="dt",
            summary="Decision Transformer",
            make="icql.algos.dt:DT",
            settings=own.DTSettings,
            paper="Chen et al. 2021",
        ),
        Entry(
            name="radt",
            summary="retrieval-augmented DT, a port",
            make="icql.algos.radt:RADT",
            settings=own.RADTSettings,
            paper="Schmied et al. 2024",
        ),
        Entry(
            name="fql",
            summary="flow policy, distilled to one step",
            make="icql.algos.fql:FQL",
            settings=own.FQLSettings,
            paper="Park et al. 2025",
        ),
        Entry(
            name="qc",
            summary="action chunks, best of n",
            make="icql.algos.qc:QC",
            settings=own.QCSettings,
            paper="Li et al. 2025",
        ),
        Entry(
            name="sac",
            summary="soft actor-critic, the online oracle",
            make="icql.algos.sac:SAC",
            settings=own.SACSettings,
            paper="Haarnoja et al. 2018",
            online=True,
        ),
    )
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
    make = get_algorithm(name).make
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        make = getattr(import_module(module), attribute)
    algorithm: Algorithm[Any] = make(settings, spec)
    return algorithm


@cache
def _load_entry_points() -> None:
    for point in entry_points(group=GROUP):
        register_algorithm(point.load())
