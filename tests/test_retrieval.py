"""Retrieval: exact search against brute force, strategies, recall, tables and their cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.retrieval import ContextSettings, build_neighbours, default_cache_dir, retrieve
from icql.retrieval import exact as exact_module
from icql.retrieval import nearest as nearest_module
from icql.retrieval import tables as tables_module

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


# ---------------------------------------------------------------- the oracle, in plain float64


def distance_matrix(states: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    x, y = np.asarray(states, np.float64), np.asarray(queries, np.float64)
    if metric == "l2":
        return np.sqrt(((x[None] - y[:, None]) ** 2).sum(axis=-1))
    norms = np.linalg.norm(y, axis=1)[:, None] * np.linalg.norm(x, axis=1)[None]
    cosine = np.divide(y @ x.T, norms, out=np.zeros((len(y), len(x))), where=norms > 0)
    return 1 - cosine


def brute_force(
    states: np.ndarray, queries: np.ndarray, k: int, exclude: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    away = distance_matrix(states, queries, "l2")
    if exclude is not None:
        for query, rows in enumerate(np.reshape(exclude, (len(queries), -1))):
            away[query, rows[rows >= 0]] = np.inf
    ids = np.argsort(away, axis=1, kind="stable")[:, :k]  # stable: ties by row id
    return ids, np.take_along_axis(away, ids, 1)


def assert_same(got: tuple[Any, Any], expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


def rows(elements: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    """States and queries of the same width; some queries are states."""

    @st.composite
    def draw(draw: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
        n, q, d = draw(st.integers(1, 60)), draw(st.integers(1, 12)), draw(st.integers(1, 9))
        states = draw(hnp.arrays(np.float64, (n, d), elements=elements))
        queries = draw(hnp.arrays(np.float64, (q, d), elements=elements))
        own = draw(hnp.arrays(np.int64, q, elements=st.integers(-1, n - 1)))
        return states, np.where(own[:, None] >= 0, states[own], queries)

    return draw()


grid = st.integers(-2, 2).map(float)
anything = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1e-300, 1e140, -1e140, 5e-324])
offset = st.integers(-8, 8).map(lambda i: 1000.0 + i * 2.0**-14)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads only wait for each other on data as small as here."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture
def cells_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small data take the way of large data: cells only, and almost no margin."""
    monkeypatch.setattr(nearest_module, "CELLS_FROM", 0)
    monkeypatch.setattr(exact_module, "FLAT_FROM", 2.0)
    monkeypatch.setattr(exact_module, "MARGINS", (1, 3))


# ---------------------------------------------------------------- exact = brute force


@pytest.mark.parametrize("elements", [grid, offset, anything], ids=["grid", "offset", "anything"])
@pytest.mark.parametrize("cells", [False, True], ids=["flat", "cells"])
def test_exact_equals_brute_force(
    elements: st.SearchStrategy[float], cells: bool, request: pytest.FixtureRequest
) -> None:
    if cells:
        request.getfixturevalue("cells_everywhere")

    @quick
    @given(rows(elements), st.data())
    def check(data: tuple[np.ndarray, np.ndarray], draw: st.DataObject) -> None:
        states, queries = data
        k = draw.draw(st.integers(1, len(states)))
        assert_same(retrieve(states, queries, k), brute_force(states, queries, k))

    check()


@pytest.mark.parametrize("cells", [False, True], ids=["flat", "cells"])
@pytest.mark.parametrize("kind", ["gauss", "duplicates", "near ties", "outlier", "grid"])
def test_exact_equals_brute_force_on_larger_data(
    kind: str, cells: bool, request: pytest.FixtureRequest
) -> None:
    if cells:
        request.getfixturevalue("cells_everywhere")
    rng = np.random.default_rng(7)
    states = rng.normal(size=(1500, 6))
    if kind == "duplicates":  # hundreds of equal rows, in two places
        states[rng.permutation(1500)[:900]] = states[0]
        states[rng.permutation(1500)[:300]] = states[1]
    elif kind == "near ties":  # differences far below what float32 tells apart
        states = 1000 + np.repeat(states[:150], 10, axis=0) * 1e-3
        states += rng.normal(size=states.shape) * 1e-11
    elif kind == "outlier":
        states[3] = 1e9
    elif kind == "grid":
        states = rng.integers(0, 3, size=states.shape).astype(float)
    queries = np.concatenate((states[:100], states[:100] + 0.01))
    for k in (1, 20, 400):
        assert_same(retrieve(states, queries, k), brute_force(states, queries, k))


def test_a_tie_is_a_tie_of_distances_not_of_their_squares() -> None:
    states = np.array([[9e7, 1.0], [9e7, 0.0]])  # 81e14 + 1 and 81e14 have the same root
    assert_same(retrieve(states, [[0.0, 0.0]], 2), (np.array([[0, 1]]), np.array([[9e7, 9e7]])))


def test_float32_input_is_compared_in_float64() -> None:
    rng = np.random.default_rng(0)
    states = (1000 + rng.normal(size=(800, 5)) * 1e-3).astype(np.float32)
    assert_same(retrieve(states, states, 9), brute_force(states, states, 9))


@quick
@given(rows(grid | st.integers(-999, 999).map(lambda i: i / 64)), st.data())
def test_cosine_is_one_minus_cosine_with_exact_ties(
    data: tuple[np.ndarray, np.ndarray], draw: st.DataObject
) -> None:
    states, queries = data
    k = draw.draw(st.integers(1, len(states)))
    ids, away = retrieve(states, queries, k, metric="cosine")
    truth = distance_matrix(states, queries, "cosine")
    np.testing.assert_allclose(away, np.take_along_axis(truth, ids.astype(int), 1), atol=1e-12)
    np.testing.assert_allclose(away, np.sort(truth, axis=1)[:, :k], atol=1e-12)
    assert all(len(set(row)) == k for row in ids.tolist())
    tied = away[:, 1:] == away[:, :-1]
    assert (ids[:, 1:] > ids[:, :-1])[tied].all()


def test_cosine_ignores_length_and_gives_zero_vectors_distance_one() -> None:
    base = np.array([[3.0, 1.0, 2.0], [1.0, 7.0, 0.1]])
    states = np.concatenate([base[:1] * s for s in (3, 1, 1 / 3, 1e-200, 7e60)] + [base[1:]])
    states = np.concatenate((states, np.zeros((2, 3))))
    ids, away = retrieve(states, np.stack((base[0], np.zeros(3))), 8, metric="cosine")
    assert ids[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (away[0, :5] < 1e-15).all()
    assert away[0, 6:].tolist() == [1.0, 1.0]
    assert ids[1].tolist() == list(range(8))
    assert away[1].tolist() == [1.0] * 8
    scaled = base[0] * np.array([[1.0], [2.0], [4.0]])
    assert retrieve(scaled, base[:1], 3, metric="cosine")[1].tolist() == [[0.0, 0.0, 0.0]]


def test_cosine_equals_brute_force_where_nothing_ties() -> None:
    rng = np.random.default_rng(5)
    states, queries = rng.normal(size=(6000, 8)), rng.normal(size=(1100, 8))
    expected = np.argsort(distance_matrix(states, queries, "cosine"), axis=1)[:, :15]
    np.testing.assert_array_equal(
        retrieve(states, queries, 15, metric="cosine")[0], expected
    )  # large enough for cells


def test_real_states_equal_brute_force(d4rl: Path) -> None:
    import h5py

    with h5py.File(d4rl / "kitchen-complete-v0.hdf5") as file:
        states = file["observations"][:]
    assert_same(retrieve(states, states[:500], 20), brute_force(states, states[:500], 20))


@pytest.fixture
def d4rl() -> Path:
    folder = os.environ.get("ICQL_D4RL_DIR")
    if not folder:
        pytest.skip("ICQL_D4RL_DIR is not set: no real D4RL data")
    return Path(folder)


# ---------------------------------------------------------------- strategies and exclusion


@quick
@given(rows(grid), st.data())
def test_excluded_rows_are_left_out(
    data: tuple[np.ndarray, np.ndarray], draw: st.DataObject
) -> None:
    states, queries = data
    n, wide = len(states), draw.draw(st.integers(0, 3))
    exclude = draw.draw(hnp.arrays(np.int64, (len(queries), wide), elements=st.integers(-1, n - 1)))
    available = n - max((len(set(row) - {-1}) for row in exclude.tolist()), default=0)
    if available == 0:
        return
    k = draw.draw(st.integers(1, available))
    expected = brute_force(states, queries, k, exclude)
    assert_same(retrieve(states, queries, k, exclude=exclude), expected)
    if wide == 1:
        assert_same(retrieve(states, queries, k, exclude=exclude[:, 0]), expected)
    rewards = draw.draw(hnp.arrays(np.float64, n, elements=grid))
    for strategy in ("random", "high_reward"):
        ids, _ = retrieve(
            states, queries, k, strategy=strategy, rewards=rewards, exclude=exclude
        )  # fmt: skip
        for row, left_out in zip(ids.tolist(), exclude.tolist(), strict=True):
            assert len(set(row)) == k
            assert not set(row) & set(left_out)


@quick
@given(rows(grid), st.data())
def test_high_reward_keeps_the_best_of_the_nearest(
    data: tuple[np.ndarray, np.ndarray], draw: st.DataObject
) -> None:
    states, queries = data
    n = len(states)
    rewards = draw.draw(hnp.arrays(np.float64, n, elements=grid))
    k = draw.draw(st.integers(1, n))
    candidates = draw.draw(st.integers(k, n + 5))
    ids, away = retrieve(
        states, queries, k, strategy="high_reward", rewards=rewards, candidates=candidates
    )
    near, far = brute_force(states, queries, min(candidates, n))
    for i in range(len(queries)):
        order = sorted(range(near.shape[1]), key=lambda j: (-rewards[near[i, j]], j))[:k]
        assert ids[i].tolist() == near[i, sorted(order)].tolist()
        assert away[i].tolist() == far[i, sorted(order)].tolist()


def test_high_reward_default_is_twenty_of_sixty() -> None:
    states = np.arange(200.0)[:, None]
    rewards = np.arange(200.0)
    ids, _ = retrieve(states, [[0.0]], 20, strategy="high_reward", rewards=rewards)
    assert ids[0].tolist() == list(range(40, 60))


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_random_rows_are_distinct_seeded_and_nearest_first(metric: Any) -> None:
    states = np.random.default_rng(3).normal(size=(30, 4))
    ids, away = retrieve(states, states, 7, metric=metric, strategy="random", seed=5)
    assert all(len(set(row)) == 7 for row in ids.tolist())
    truth = np.take_along_axis(distance_matrix(states, states, metric), ids.astype(int), 1)
    np.testing.assert_allclose(away, truth, atol=1e-12)
    assert (np.diff(away, axis=1) >= 0).all()
    again = retrieve(states, states, 7, metric=metric, strategy="random", seed=5)
    assert_same(again, (ids, away))
    other, _ = retrieve(states, states, 7, metric=metric, strategy="random", seed=6)
    assert (other != ids).any()
    assert len({tuple(sorted(row)) for row in ids.tolist()}) > 1  # drawn per query


def test_random_rows_are_uniform_among_those_allowed() -> None:
    queries = np.zeros((40_000, 1))
    exclude = np.tile([2, 0, 2, -1], (40_000, 1))
    ids, _ = retrieve(
        np.zeros((7, 1)), queries, 2, strategy="random", exclude=exclude
    )  # fmt: skip
    pairs, counts = np.unique(np.sort(ids, axis=1), axis=0, return_counts=True)
    assert pairs.tolist() == [[a, b] for a in (1, 3, 4, 5, 6) for b in (3, 4, 5, 6) if a < b]
    expected = len(queries) / 10
    assert (((counts - expected) ** 2).sum() / expected) < 27.9  # χ²(9), p = 0.001


# ---------------------------------------------------------------- approximate search


def gaits(rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    time = np.arange(rows)[:, None] * 0.1
    return np.sin(time * rng.uniform(0.5, 2, 8) + rng.normal(size=8)) + 0.1 * rng.normal(
        size=(rows, 8)
    )


def test_approximate_search_reaches_its_floor_and_says_so() -> None:
    states, said = gaits(20_000), []
    queries = states[::4]
    ids, away = retrieve(
        states,
        queries,
        10,
        engine="approximate",
        recall_floor=0.99,
        progress=lambda label, done: said.append((label, done)),
    )
    true_ids, true_away = retrieve(states, queries, 10)
    recall = (away <= true_away[:, -1:]).mean()
    assert 0.99 <= recall < 1  # it is approximate, or this test says nothing
    same = ids == true_ids
    np.testing.assert_array_equal(away[same], true_away[same])
    measured = [label for label, _ in said if label.startswith("recall")]
    assert measured
    assert all(0 <= done <= 1 for _, done in said)
    again = retrieve(states, queries, 10, engine="approximate", recall_floor=0.99)
    assert_same(again, (ids, away))


def test_a_higher_floor_probes_more_cells(tmp_path: Path) -> None:
    data = transitions(gaits(6000))
    reports = [
        build_neighbours(
            data, ContextSettings(k=5, engine="approximate", recall_floor=floor)
        ).report
        for floor in (0.5, 0.9999)
    ]
    assert reports[0].probes < reports[1].probes
    assert reports[1].recall >= 0.9999
    assert reports[1].sample == 1000
    assert "recall" in str(reports[1])


def test_a_floor_out_of_reach_is_an_error() -> None:
    rng = np.random.default_rng(0)
    # Steps that float32 cannot tell apart: even every cell does not give the nearest.
    states = rng.integers(0, 3, size=(3000, 1)) + rng.normal(size=(3000, 4)) * 1e-12
    with pytest.raises(UserError, match=r"context\.recall_floor: approximate search reaches"):
        retrieve(states, states, 10, engine="approximate")


def test_auto_is_exact_for_small_and_approximate_for_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = transitions(gaits(500))
    assert build_neighbours(data, ContextSettings(k=3)).report.engine == "exact"
    monkeypatch.setattr(nearest_module, "EXACT_UP_TO", 400)
    assert build_neighbours(data, ContextSettings(k=3)).report.engine == "approximate"


def test_cells_with_fewer_than_k_states_are_made_up_for() -> None:
    states = gaits(2000)
    got = retrieve(states, states[:50], 300, engine="approximate", recall_floor=0.0)
    assert_same(got, brute_force(states, states[:50], 300))


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_approximate_search_of_tiny_data(rows: int) -> None:
    states = gaits(rows)
    assert_same(
        retrieve(states, states, rows, engine="approximate"), brute_force(states, states, rows)
    )


# ---------------------------------------------------------------- tables and cache


def transitions(states: np.ndarray, seed: int = 0) -> Transitions:
    states = np.asarray(states, np.float32)
    rng = np.random.default_rng(seed)
    n = len(states)
    next_states = np.roll(states, -1, axis=0)
    next_states[-1] = rng.normal(size=states.shape[1])
    actions = np.zeros((n, 1), np.float32)
    return Transitions(
        states=states,
        actions=actions,
        rewards=rng.integers(0, 3, n).astype(np.float32),
        next_states=next_states,
        next_actions=actions,
        mask=np.ones(n, np.float32),
        episode=np.zeros(n, np.int32),
        step=np.arange(n, dtype=np.int32),
        info=DataInfo("walk", source="walk.hdf5"),
    )


@pytest.fixture
def data() -> Transitions:
    return transitions(np.random.default_rng(1).normal(size=(80, 3)))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("strategy", ["similar", "high_reward"])
@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_tables_hold_the_contexts_of_s_and_next_s(
    data: Transitions, metric: Any, strategy: Any, include_self: bool
) -> None:
    chosen = ContextSettings(
        k=4, metric=metric, strategy=strategy, candidates=9, include_self=include_self
    )
    tables = build_neighbours(data, chosen)
    common = {"metric": metric, "strategy": strategy, "rewards": data.rewards, "candidates": 9}
    exclude = None if include_self else np.arange(80)
    ids, away = retrieve(data.states, data.states, 4, exclude=exclude, **common)
    np.testing.assert_array_equal(tables.state, ids)
    next_ids, _ = retrieve(data.states, data.next_states, 4, **common)
    np.testing.assert_array_equal(tables.next_state, next_ids)
    assert tables.state.dtype == tables.next_state.dtype == np.int32
    np.testing.assert_allclose(tables.report.mean_distance, away.mean(axis=0))
    own = (tables.state == np.arange(80)[:, None]).any(axis=1)
    if strategy == "similar":
        assert own.all() == include_self
    assert include_self or not own.any()


def test_random_tables_can_leave_out_their_own_row(data: Transitions) -> None:
    chosen = ContextSettings(k=79, strategy="random", include_self=False)
    tables = build_neighbours(data, chosen)
    assert not (tables.state == np.arange(80)[:, None]).any()
    assert (tables.next_state == np.arange(80)[:, None]).any()


def test_progress_is_told_in_blocks(data: Transitions) -> None:
    said: list[tuple[str, float]] = []
    build_neighbours(data, ContextSettings(k=3), progress=lambda *given: said.append(given))
    assert said[-1][1] == 1.0
    assert all(isinstance(label, str) and 0 <= done <= 1 for label, done in said)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often tables are really computed."""
    calls: list[int] = []
    real = tables_module.contexts

    def counted(*args: Any) -> Any:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(tables_module, "contexts", counted)
    return calls


def test_cache_is_hit_only_for_the_same_content(
    data: Transitions, tmp_path: Path, searches: list[int]
) -> None:
    chosen = ContextSettings(k=4)
    first = build_neighbours(data, chosen, cache_dir=tmp_path)
    second = build_neighbours(replace(data), chosen, cache_dir=tmp_path)
    assert len(searches) == 1
    assert not first.report.cached
    assert second.report == replace(first.report, cached=True)
    assert_same((first.state, first.next_state), (second.state, second.next_state))

    def changed(name: str) -> Transitions:
        array = getattr(data, name).copy()
        array[5] += 1
        return replace(data, **{name: array})

    others = [changed(name) for name in ("states", "next_states", "rewards")]
    for i, other in enumerate(others):
        cached = build_neighbours(other, chosen, cache_dir=tmp_path)
        assert len(searches) == 2 + 2 * i
        fresh = build_neighbours(other, chosen)
        assert_same((cached.state, cached.next_state), (fresh.state, fresh.next_state))
    before = len(searches)
    for i, setting in enumerate(
        (
            {"k": 5},
            {"metric": "cosine"},
            {"strategy": "random"},
            {"include_self": False},
            {"engine": "exact"},
            {"seed": 1},
        )
    ):
        build_neighbours(data, replace(chosen, **setting), cache_dir=tmp_path)
        assert len(searches) == before + i + 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def other_key(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": "0"}))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("state.npy", cut),
        ("state.npy", flip),
        ("next_state.npy", flip),
        ("next_state.npy", Path.unlink),
        ("meta.json", cut),
        ("meta.json", Path.unlink),
        ("meta.json", lambda path: path.write_text("[]")),
        ("meta.json", other_key),
    ],
)
def test_a_damaged_entry_is_rebuilt(
    data: Transitions,
    tmp_path: Path,
    searches: list[int],
    name: str,
    damage: Callable[[Path], None],
) -> None:
    chosen = ContextSettings(k=4)
    good = build_neighbours(data, chosen, cache_dir=tmp_path)
    [entry] = (tmp_path / "neighbours").iterdir()
    damage(entry / name)
    again = build_neighbours(data, chosen, cache_dir=tmp_path)
    assert len(searches) == 2
    assert not again.report.cached
    assert_same((again.state, again.next_state), (good.state, good.next_state))
    assert build_neighbours(data, chosen, cache_dir=tmp_path).report.cached
    assert [path.name for path in (tmp_path / "neighbours").iterdir()] == [entry.name]


def test_a_second_writer_finds_the_entry_and_leaves_no_rubbish(
    data: Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ContextSettings(k=4)
    real = tables_module.contexts

    def race(*args: Any) -> Any:
        monkeypatch.setattr(tables_module, "contexts", real)
        build_neighbours(data, chosen, cache_dir=tmp_path)  # another process is faster
        return real(*args)

    monkeypatch.setattr(tables_module, "contexts", race)
    assert not build_neighbours(data, chosen, cache_dir=tmp_path).report.cached
    assert len(list((tmp_path / "neighbours").iterdir())) == 1
    assert build_neighbours(data, chosen, cache_dir=tmp_path).report.cached


def test_a_cache_that_cannot_be_written_is_a_clear_error(data: Transitions, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(UserError, match=r"cannot be used: Not a directory.*ICQL_CACHE"):
        build_neighbours(data, ContextSettings(k=4), cache_dir=blocked)


def test_default_cache_dir_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ICQL_CACHE", str(tmp_path / "here"))
    assert default_cache_dir() == tmp_path / "here"
    monkeypatch.delenv("ICQL_CACHE")
    assert default_cache_dir().name == "icql"


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"k": 0}, r"^context\.k: must be at least 1, not 0\.$"),
        (
            {"metric": "cosin"},
            r"^context\.metric: unknown metric 'cosin'\. Did you mean 'cosine'\?",
        ),
        ({"strategy": "high-reward"}, r"^context\.strategy: .*'high_reward'\?"),
        ({"engine": "faiss"}, r"^context\.engine: unknown engine 'faiss'"),
        ({"strategy": "high_reward", "candidates": 5}, r"^context\.candidates: 5 .* 20\."),
        ({"candidates": 0}, r"^context\.candidates: must be at least 1"),
        ({"recall_floor": 1.1}, r"^context\.recall_floor: must lie between"),
        ({"recall_floor": float("nan")}, r"^context\.recall_floor: must lie between"),
        ({"seed": -1}, r"^context\.seed: must be 0 or more"),
    ],
)
def test_settings_out_of_range_are_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ContextSettings(**setting)


STATES = np.arange(12.0).reshape(6, 2)
BROKEN = STATES.copy()
BROKEN[4, 1] = np.nan


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((STATES, STATES, 7), {}, r"^k: 7 is more than the 6 rows available\."),
        ((STATES, STATES, 6), {"exclude": np.arange(6)}, r"^k: 6 is more than the 5 rows"),
        ((STATES, STATES, 0), {}, r"^k: must be at least 1"),
        ((STATES[:0], STATES, 1), {}, r"^k: 1 is more than the 0 rows"),
        ((BROKEN, STATES, 2), {}, r"^states, row 4: is not finite"),
        ((STATES, BROKEN, 2), {}, r"^queries, row 4: is not finite"),
        ((STATES * 1e200, STATES, 2), {}, r"^states, row 0: has a value beyond"),
        ((STATES[0], STATES, 2), {}, r"^states: must have shape \(rows, columns\), not \(2,\)"),
        ((STATES, STATES[:, :1], 2), {}, r"^queries: have 1 columns, the states have 2"),
        ((STATES[:, :0], STATES[:, :0], 2), {}, r"^states: must have shape"),
        (([[1.0, 2.0], [3.0]], STATES, 2), {}, r"^states: rows have different lengths"),
        ((STATES.astype(str), STATES, 2), {}, r"^states: must be real numbers"),
        (
            (STATES, STATES, 2),
            {"metric": "l3"},
            r"^metric: unknown metric 'l3'\. Did you mean 'l2'",
        ),
        ((STATES, STATES, 2), {"strategy": "simlar"}, r"^strategy: .*'similar'"),
        ((STATES, STATES, 2), {"strategy": "high_reward"}, r"^rewards: .*needs the rewards"),
        (
            (STATES, STATES, 2),
            {"strategy": "high_reward", "rewards": np.zeros(5)},
            r"^rewards: must have shape \(6,\), not \(5,\)",
        ),
        (
            (STATES, STATES, 2),
            {"strategy": "high_reward", "rewards": BROKEN[:, 1]},
            r"^rewards, row 4: is not finite",
        ),
        ((STATES, STATES, 2), {"exclude": np.zeros(6)}, r"^exclude: must be row ids, not float64"),
        ((STATES, STATES, 2), {"exclude": np.arange(5)}, r"^exclude: must have shape \(6,\) or"),
        ((STATES, STATES, 2), {"exclude": np.arange(6) + 1}, r"^exclude, query 5: row ids lie"),
    ],
)
def test_bad_arguments_are_named(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        retrieve(*arguments, **options)


def test_no_queries_give_no_rows() -> None:
    for strategy in ("similar", "random", "high_reward"):
        ids, away = retrieve(
            STATES, STATES[:0], 3, strategy=strategy, rewards=np.zeros(6)
        )  # fmt: skip
        assert ids.shape == away.shape == (0, 3)


def test_bad_data_is_named_with_its_source(data: Transitions) -> None:
    states = data.states.copy()
    states[7, 0] = np.inf
    with pytest.raises(UserError, match=r"^walk\.hdf5: states, row 7: is not finite"):
        build_neighbours(replace(data, states=states), ContextSettings(k=3))
    with pytest.raises(UserError, match=r"^context\.k: 81 is more than the 80 rows available"):
        build_neighbours(data, ContextSettings(k=81))
