"""One pass over all rows finds the same rows of other episodes as brute force, ties included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from icql.retrieval import Retriever
from icql.retrieval import retriever as retriever_module
from icql.retrieval import scan as scan_module
from icql.settings.contexts import ContextSettings
from retrieval.cases import assert_same, brute_force, gaits, one_thread

__all__ = ["one_thread"]


def alike(rows: int) -> np.ndarray:
    """Far from 0 and close to one another: float32 alone cannot tell them apart."""
    rng = np.random.default_rng(1)
    return 1000.0 + 1e-4 * rng.integers(0, 6, (rows, 4)).astype(np.float64)


def left_out(episode: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The rows of each query's episode as (Q, N): a row or -1."""
    inside = (episode == episode[own][:, None]) & (own >= 0)[:, None]
    return np.where(inside, np.arange(len(episode)), -1)


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where neighbours are asked for in any other way."""

    def never(*_: Any) -> None:
        raise AssertionError("an index was asked")

    monkeypatch.setattr(retriever_module.Nearest, "begin", never)


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize("make", [gaits, alike])
@pytest.mark.parametrize(("keep", "queries"), [(1, 300), (7, 40), (7, 3)])
@pytest.mark.parametrize("engine", ["exact", "approximate"])
def test_the_nearest_of_other_episodes(
    make: Any, keep: int, queries: int, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "GROUP", 8)
    monkeypatch.setattr(scan_module, "TILE", 64)
    scan_module._least_of_all.clear_cache()  # the numbers are part of the programs
    scan_module._least_of_others.clear_cache()
    states, rng = make(1003), np.random.default_rng(0)  # the last tile is not full
    episode = rng.choice([3, 5, 8, 13], 1003, p=[0.7, 0.1, 0.1, 0.1]).astype(np.int32)
    own = rng.integers(-1, 1003, queries)
    asked = np.where(own[:, None] >= 0, states[own], states[0] + 0.01)
    settings = ContextSettings(k=keep, exclude="episode", engine=engine)
    retriever = Retriever(states, None, settings, episode=episode)
    expected = brute_force(states, asked, keep, left_out(episode, own))
    assert_same(retriever(asked, rows=own), expected)
    more = replace(settings, exclude="none")  # what is left out may be said when asked
    retriever = Retriever(states, None, more, episode=episode)
    others = retriever.left_out(asked, own, exclude=expected[0][:, 0], rule="episode")
    ids, away = retriever.nearest(asked, others)
    both = np.column_stack([left_out(episode, own), expected[0][:, 0]])
    assert_same((ids, away), brute_force(states, asked, keep, both))
    scan_module._least_of_all.clear_cache()
    scan_module._least_of_others.clear_cache()


def test_where_too_few_are_left_the_rest_is_empty() -> None:
    states = gaits(40)
    episode = np.r_[np.zeros(37), np.ones(3)].astype(np.int32)
    retriever = Retriever(states, None, ContextSettings(k=5), episode=episode)
    asked = states[:2]
    ids, away = retriever.nearest(asked, retriever.left_out(asked, [0, 39], rule="episode"))
    assert sorted(ids[0][:3]) == [37, 38, 39]
    assert ids[0][3:].tolist() == [-1, -1]
    assert np.isinf(away[0][3:]).all()
    assert (ids[1] >= 0).all()


def test_many_neighbours_of_many_are_asked_of_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(scan_module, "Scan", lambda *how: made.append(how))
    monkeypatch.setattr(retriever_module, "SCANNED_FOR", 99)
    states = gaits(200)
    episode = (np.arange(200) // 20).astype(np.int32)
    settings = ContextSettings(k=5, exclude="episode")
    retriever = Retriever(states, None, settings, episode=episode)
    retriever(states[:20], rows=np.arange(20))
    assert not made
