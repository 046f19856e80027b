"""The paper's three strategies, exclusion, and bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icql.errors import UserError
from icql.retrieval import build_neighbours, retrieve
from icql.settings.data import ContextSettings
from retrieval.cases import (
    assert_same,
    brute_force,
    distance_matrix,
    grid,
    one_thread,
    quick,
    rows,
    transitions,
)

__all__ = ["one_thread"]


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
    queries = np.arange(40_000.0)[:, None]  # equal ones would have equal contexts
    exclude = np.tile([2, 0, 2, -1], (40_000, 1))
    ids, _ = retrieve(
        np.zeros((7, 1)), queries, 2, strategy="random", exclude=exclude
    )  # fmt: skip
    pairs, counts = np.unique(np.sort(ids, axis=1), axis=0, return_counts=True)
    assert pairs.tolist() == [[a, b] for a in (1, 3, 4, 5, 6) for b in (3, 4, 5, 6) if a < b]
    expected = len(queries) / 10
    assert (((counts - expected) ** 2).sum() / expected) < 27.9  # χ²(9), p = 0.001


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"k": 0}, r"^context\.k: must be at least 1, not 0\.$"),
        (
            {"metric": "cosin"},
            r"^context\.metric: must be one of l2, cosine, not 'cosin'\. Did you mean 'cosine'\?",
        ),
        ({"strategy": "high-reward"}, r"^context\.strategy: .*'high_reward'\?"),
        ({"engine": "faiss"}, r"^context\.engine: must be one of auto, .*, not 'faiss'"),
        ({"strategy": "high_reward", "candidates": 5}, r"^context\.candidates: 5 .* 20\."),
        ({"candidates": 0}, r"^context\.candidates: must be at least 1"),
        ({"recall_floor": 1.1}, r"^context\.recall_floor: must be in \[0, 1\], not"),
        ({"recall_floor": float("nan")}, r"^context\.recall_floor: must be in \[0, 1\], not"),
        ({"seed": -1}, r"^context\.seed: must not be negative"),
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
            r"^metric: must be one of l2, cosine, not 'l3'\. Did you mean 'l2'",
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


def test_bad_data_is_named_with_its_source() -> None:
    data = transitions(np.random.default_rng(1).normal(size=(80, 3)))
    states = data.states.copy()
    states[7, 0] = np.inf
    with pytest.raises(UserError, match=r"^walk\.hdf5: states, row 7: is not finite"):
        build_neighbours(replace(data, states=states), ContextSettings(k=3))
    with pytest.raises(UserError, match=r"^context\.k: 81 is more than the 80 rows available"):
        build_neighbours(data, ContextSettings(k=81))
