"""Algorithms of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from icql import plugins
from icql.algos import radt, registry
from icql.errors import UserError
from icql.settings.algorithms import BCSettings

MINE = registry.Entry(name="mine", summary="", make="mine:M", settings=BCSettings, paper="")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module whose `what` an entry point names; nothing of it stays."""
    module = ModuleType("offers_algorithms")
    point = EntryPoint("any", "offers_algorithms:what", registry.GROUP)
    monkeypatch.setitem(sys.modules, "offers_algorithms", module)
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point] if group == point.group else []
    )
    registry._load_entry_points.cache_clear()
    yield module
    registry._load_entry_points.cache_clear()


@pytest.mark.parametrize("what", [MINE, [MINE]], ids=["one", "list"])
def test_algorithms_of_packages_are_known(package: ModuleType, what: Any) -> None:
    package.what = what
    assert registry.get_algorithm("mine") is MINE


def test_a_port_is_called_one() -> None:
    """RA-DT has no D4RL recipe: what is listed says that, and what differs."""
    assert "a port: " in registry.get_algorithm("radt").summary
    assert (radt.__doc__ or "").startswith("RA-DT, a port: ")


def test_a_package_may_register_its_algorithm_itself(package: ModuleType) -> None:
    package.what = MINE
    registry.register_algorithm(MINE)
    assert registry.algorithms()["mine"] is MINE


@pytest.mark.parametrize("what", [None, "mine"], ids=["missing", "text"])
def test_a_broken_package_is_named(package: ModuleType, what: Any) -> None:
    if what is not None:
        package.what = what
    with pytest.raises(UserError, match=r"icql.algorithms: the entry point 'offers_alg.*Mend"):
        registry.get_algorithm("mine")
