"""Exact search equals float64 brute force, whoever proposes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icql.retrieval import exact as exact_module
from icql.retrieval import retrieve
from icql.retrieval import retriever as retriever_module
from retrieval.cases import (
    anything,
    assert_same,
    brute_force,
    distance_matrix,
    grid,
    offset,
    one_thread,
    quick,
    rows,
)

__all__ = ["one_thread"]


@pytest.fixture
def cells_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small data take the way of large data: cells only, and almost no margin."""
    monkeypatch.setattr(retriever_module, "CELLS_FROM", 0)
    monkeypatch.setattr(exact_module, "FLAT_FROM", 2.0)
    monkeypatch.setattr(exact_module, "MARGINS", (1, 3))


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


def test_real_states_equal_brute_force(d4rl_dir: Path) -> None:
    import h5py

    with h5py.File(d4rl_dir / "kitchen-complete-v0.hdf5") as file:
        states = file["observations"][:]
    assert_same(retrieve(states, states[:500], 20), brute_force(states, states[:500], 20))
