"""One retriever for all: prepared once, and what it leaves out is left out everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import icql
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.nn.critics import Critics
from icql.retrieval import Retriever, build_neighbours, distances_of
from icql.retrieval import retriever as retriever_module
from icql.settings.contexts import ContextSettings
from icql.training.device import Normaliser
from icql.training.trained_critic import TrainedCritic
from retrieval.cases import assert_same, brute_force, gaits, one_thread, transitions

__all__ = ["one_thread"]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[retriever_module.Nearest]:
    """Every index that is made."""
    made: list[retriever_module.Nearest] = []
    real = retriever_module.Nearest.__init__

    def counted(self: Any, *how: Any, **more: Any) -> None:
        made.append(self)
        real(self, *how, **more)

    monkeypatch.setattr(retriever_module.Nearest, "__init__", counted)
    return made


def mixed_episodes(rows: int = 600, seed: int = 0) -> Transitions:
    """Ties, equal rows, and episodes of all lengths whose rows do not lie together."""
    rng = np.random.default_rng(seed)
    data = transitions(rng.integers(0, 4, size=(rows, 3)))
    episode = rng.choice([3, 5, 8, 13, 40], rows, p=[0.6, 0.2, 0.1, 0.05, 0.05])
    return replace(data, episode=episode.astype(np.int32))


def left_out_by(data: Transitions, rows: np.ndarray, rule: str) -> np.ndarray:
    """What `rule` leaves out of the contexts of these rows, as (Q, N): a row or -1."""
    every = np.arange(len(data))
    out = every == rows[:, None]
    if rule == "episode":
        out = data.episode == data.episode[rows][:, None]
    return np.where(out & (rows >= 0)[:, None], every, -1)


# ---------------------------------------------------------------- prepared once


@pytest.mark.parametrize("engine", ["exact", "accelerator", "approximate"])
def test_states_are_indexed_once(engine: Any, prepared: list[Any]) -> None:
    states = gaits(500)
    retriever = Retriever(states, None, ContextSettings(k=4, engine=engine))
    assert not prepared
    for queries in (states[:7], states[100:300] + 0.01, 3 * states[:50]):
        ids, away = retriever(queries)
        expected = brute_force(states, queries, 4)
        if engine != "approximate":
            assert_same((ids, away), expected)
        assert (away <= expected[1][:, -1:]).mean() > 0.98
    assert len(prepared) == 1


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_queries_far_beyond_those_before_are_found_too(metric: Any, prepared: list[Any]) -> None:
    states = gaits(500)
    states[:, 2] = 1.0  # a column that does not vary
    retriever = Retriever(states, None, ContextSettings(k=4, metric=metric))
    for queries in (states[:7], states[:7] + 1e6, states[:7] + np.eye(8)[2], 1e100 * states[:7]):
        got = retriever(queries)
        assert_same(got, icql.retrieve(states, queries, 4, metric=metric))
    assert len(prepared) < 9


# ---------------------------------------------------------------- what is left out


@pytest.mark.parametrize("engine", ["exact", "accelerator", "approximate"])
@pytest.mark.parametrize("rule", ["none", "self", "episode"])
@pytest.mark.parametrize("long", [10, 1024], ids=["one by one", "wider"])
def test_what_is_left_out_equals_brute_force(
    rule: Any, engine: Any, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retriever_module, "LONG", long)
    data = mixed_episodes()
    rows = np.random.default_rng(1).integers(-1, 600, 90)
    queries = np.where(rows[:, None] >= 0, data.states[rows], data.next_states[:90])
    settings = ContextSettings(k=5, exclude=rule, engine=engine, recall_floor=1.0)
    retriever = Retriever(data.states, None, settings, episode=data.episode)
    more = np.random.default_rng(2).integers(-1, 600, (90, 2))
    own = left_out_by(data, rows, rule) if rule != "none" else np.empty((90, 0), int)
    assert_same(retriever(queries, rows=rows), brute_force(data.states, queries, 5, own))
    assert_same(
        retriever(queries, rows=rows, exclude=more),
        brute_force(data.states, queries, 5, np.column_stack((own, more))),
    )


def test_only_what_is_short_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    real = retriever_module.Nearest.__call__

    def counted(self: Any, queries: Any, k: int, progress: Any) -> Any:
        asked.append((len(queries), k))
        return real(self, queries, k, progress)

    monkeypatch.setattr(retriever_module.Nearest, "__call__", counted)
    monkeypatch.setattr(retriever_module, "SCANNED", 0)  # not by one pass (test_scan.py)
    data = transitions(gaits(3000))  # episodes of 30 rows
    settings = ContextSettings(k=4, exclude="episode")
    Retriever(data.states, None, settings, episode=data.episode)(data.states, rows=np.arange(3000))
    assert asked[0] == (3000, 8)
    assert 3000 > asked[1][0] > asked[2][0]
    assert max(k for _, k in asked) <= 64  # 4 + 30 suffice for every state


def test_a_query_is_the_first_row_with_the_same_bits() -> None:
    states = np.array([[0.0], [3.0], [1.0], [1.0], [5.0]], np.float32)
    settings = ContextSettings(k=3, exclude="self")
    retriever = Retriever(states, None, settings)
    for kind in (np.float32, np.float64):
        ids, _ = retriever(np.array([[1.0], [-0.0], [1.5]], kind))
        assert ids.tolist() == [[3, 0, 1], [0, 2, 3], [2, 3, 0]]
    assert retriever([[1e100]])[0].tolist() == [[0, 1, 2]]  # beyond float32
    assert retriever([[1.0]], rows=[-1])[0].tolist() == [[2, 3, 0]]
    assert retriever([[1.0]], rows=[3])[0].tolist() == [[2, 0, 1]]


@pytest.mark.parametrize("strategy", ["similar", "high_reward", "random"])
@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("exclude", ["none", "self", "episode"])
def test_tables_are_what_a_retriever_gives(strategy: Any, metric: Any, exclude: Any) -> None:
    data = mixed_episodes()
    settings = ContextSettings(
        k=4, candidates=9, strategy=strategy, metric=metric, exclude=exclude, seed=3
    )
    tables = build_neighbours(data, settings)
    retriever = Retriever(data.states, data.rewards, settings, episode=data.episode)
    rows = np.arange(600)
    ids, away = retriever(data.states, rows=rows)
    np.testing.assert_array_equal(tables.state, ids)
    of_next = rows if exclude == "episode" else np.full(600, -1)
    next_ids, next_away = retriever(data.next_states, rows=of_next)
    np.testing.assert_array_equal(tables.next_state, next_ids)
    for got, expected in zip(distances_of(data, tables, settings), (away, next_away), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    if exclude == "episode":
        for table in (tables.state, tables.next_state):
            assert (data.episode[table] != data.episode[:, None]).all()


@pytest.mark.parametrize("strategy", ["similar", "high_reward", "random"])
def test_tables_without_the_own_episode_can_be_extended_and_cached(
    strategy: Any, tmp_path: Path
) -> None:
    data = mixed_episodes()
    settings = ContextSettings(k=4, candidates=9, strategy=strategy, exclude="episode")
    old = build_neighbours(data.subset(slice(0, 400)), settings)
    grown, whole = build_neighbours(data, settings, old=old), build_neighbours(data, settings)
    assert_same((grown.state, grown.next_state), (whole.state, whole.next_state))
    assert not build_neighbours(data, settings, cache_dir=tmp_path).report.cached
    assert build_neighbours(data, settings, cache_dir=tmp_path).report.cached
    other = replace(data, episode=np.roll(data.episode, 1))
    assert not build_neighbours(other, settings, cache_dir=tmp_path).report.cached


@pytest.mark.parametrize(
    ("rule", "k", "message"),
    [
        (
            "self",
            80,
            r"^context\.exclude: 'self' leaves some states only 79 of 80 rows.* at most 79",
        ),
        (
            "episode",
            51,
            r"^context\.exclude: 'episode' leaves some states only 50 of 80 rows.* at most 50",
        ),
        ("none", 81, r"^context\.k: 81 is more than the 80 rows available"),
    ],
)
def test_a_context_that_cannot_be_filled_is_named(rule: Any, k: int, message: str) -> None:
    data = transitions(gaits(80))  # episodes of 30, 30 and 20 rows
    for strategy in ("similar", "random"):
        settings = ContextSettings(k=k, exclude=rule, strategy=strategy)
        with pytest.raises(UserError, match=message):
            build_neighbours(data, settings)


def test_a_single_episode_is_named(tmp_path: Path) -> None:
    data = transitions(gaits(30))
    with pytest.raises(
        UserError,
        match=r"^context\.exclude: 'episode' leaves .* only 0 of 30 rows.*self or none.*single",
    ):
        build_neighbours(data, ContextSettings(k=1, exclude="episode"), cache_dir=tmp_path)
    with pytest.raises(UserError, match=r"^episode: "):
        Retriever(data.states, None, ContextSettings(k=1, exclude="episode"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 1], r"^rows: must have shape \(3,\)"),
        ([[0], [1], [2]], r"^rows: must have shape \(3,\)"),
        ([0.0, 1, 2], r"^rows: must be row ids"),
        ([0, 1, 600], r"^rows, query 2: row ids lie between 0 and 599"),
    ],
)
def test_rows_that_cannot_be_are_named(rows: Any, message: str) -> None:
    data = mixed_episodes()
    settings = ContextSettings(k=2, exclude="episode")
    retriever = Retriever(data.states, None, settings, episode=data.episode)
    with pytest.raises(UserError, match=message):
        retriever(data.states[:3], rows=rows)


# ---------------------------------------------------------------- at random


def test_a_random_context_depends_on_seed_and_state_alone() -> None:
    states = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    settings = ContextSettings(k=6, strategy="random", seed=4)
    whole = Retriever(states, None, settings)(states)
    turned = Retriever(states, None, settings)(states[::-1].astype(np.float64))
    assert_same((turned[0][::-1], turned[1][::-1]), whole)
    assert_same(
        Retriever(states, None, settings)(states[20:30]), (whole[0][20:30], whole[1][20:30])
    )
    data = transitions(states)
    tables = build_neighbours(data, settings)
    np.testing.assert_array_equal(tables.state[1:], tables.next_state[:-1])
    other = Retriever(states, None, replace(settings, seed=5))(states)[0]
    assert (other != whole[0]).any(axis=1).mean() > 0.9


def test_random_rows_are_uniform_outside_the_own_episode() -> None:
    episode = np.array([7, 2, 7, 2, 2, 9, 7, 9])
    states = np.zeros((8, 1))
    settings = ContextSettings(k=2, strategy="random", exclude="episode")
    retriever = Retriever(states, None, settings, episode=episode)
    queries = np.random.default_rng(0).normal(size=(40_000, 1))
    ids, _ = retriever(queries, rows=np.full(40_000, 1), exclude=np.tile([5, 4], (40_000, 1)))
    pairs, counts = np.unique(np.sort(ids, axis=1), axis=0, return_counts=True)
    assert pairs.tolist() == [[a, b] for a in (0, 2, 6) for b in (2, 6, 7) if a < b]
    assert (((counts - 40_000 / 6) ** 2).sum() / (40_000 / 6)) < 20.5  # χ²(5), p = 0.001
    everything, _ = retriever(queries, rows=np.full(40_000, -1))
    share = np.bincount(everything.ravel(), minlength=8) / 80_000
    np.testing.assert_allclose(share, 1 / 8, atol=0.006)


# ---------------------------------------------------------------- a trained critic


def critic_of(data: Transitions, settings: ContextSettings) -> TrainedCritic:
    same: Any = Normaliser(np.zeros(1, np.float32), np.ones(1, np.float32), 1.0)
    critics: Any = Mock(spec=Critics)  # none is asked for a value here
    return TrainedCritic(critics, (), data, same, settings)


def test_a_critic_searches_as_in_training(
    monkeypatch: pytest.MonkeyPatch, prepared: list[Any]
) -> None:
    data = transitions(gaits(3000))
    settings = ContextSettings(k=5, engine="approximate", recall_floor=0.9)
    critic = critic_of(data, settings)
    critic.neighbours(data.states[:3])
    [search] = prepared
    [found] = search.calibrations.values()
    assert found.recall >= 0.9
    assert found.sample == 1000  # not only the three that were asked for
    table = build_neighbours(data, settings).state
    assert (critic.neighbours(data.states)[0] == table).mean() > 0.95
    exact = build_neighbours(data, replace(settings, engine="exact")).state
    assert (critic.neighbours(data.states)[0] != exact).any()  # or this test says nothing
    critic = critic_of(transitions(gaits(50)), replace(settings, engine="accelerator"))
    critic.neighbours(critic.data.states[:3])
    assert critic.retriever.engine == "accelerator"


@pytest.mark.parametrize("strategy", ["similar", "high_reward", "random"])
@pytest.mark.parametrize("exclude", ["none", "self", "episode"])
def test_a_critic_has_the_contexts_of_training(strategy: Any, exclude: Any) -> None:
    data = transitions(gaits(200))  # no two states are equal
    settings = ContextSettings(k=5, strategy=strategy, exclude=exclude)
    critic, table = critic_of(data, settings), build_neighbours(data, settings).state
    np.testing.assert_array_equal(critic.neighbours(data.states)[0], table)
    np.testing.assert_array_equal(critic.neighbours(data.states, np.arange(200))[0], table)
    own = table == np.arange(200)[:, None]
    assert exclude == "none" or not own.any()
