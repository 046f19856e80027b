"""What the retrieval tests share: the oracle in plain float64, and data to search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icql.data.transitions import DataInfo, Transitions

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


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


def gaits(rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    time = np.arange(rows)[:, None] * 0.1
    return np.sin(time * rng.uniform(0.5, 2, 8) + rng.normal(size=8)) + 0.1 * rng.normal(
        size=(rows, 8)
    )


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
        episode=np.arange(n, dtype=np.int32) // 30,
        step=np.arange(n, dtype=np.int32) % 30,
        info=DataInfo("walk", source="walk.hdf5"),
    )
