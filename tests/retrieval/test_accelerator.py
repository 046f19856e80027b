"""Exact search on JAX's devices: what it proposes, and that the tables are the same on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from icql.retrieval import accelerator, build_neighbours, neighbours, retrieve
from icql.retrieval import exact as exact_module
from icql.retrieval.accelerator import GROUP, Accelerator, tiled, turn
from icql.settings.contexts import ContextSettings
from retrieval.cases import assert_same, brute_force, one_thread, transitions

__all__ = ["one_thread"]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small data take the way of large data: many tiles, a few of them at once."""
    for name, value in {
        "QUERIES": 64,
        "CHUNK": 16,
        "TILE": 70,
        "PRODUCT": 200,
        "PRODUCTS": 2,
    }.items():
        monkeypatch.setattr(accelerator, name, value)


KINDS = ["gauss", "duplicates", "near ties", "outlier", "grid", "line", "clusters", "wide"]


@pytest.mark.parametrize("pieces", ["one tile", "many tiles"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_accelerator_equals_brute_force(
    kind: str, pieces: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if pieces == "many tiles":
        request.getfixturevalue("small_pieces")
    monkeypatch.setattr(exact_module, "MARGINS", (4, 12))
    rng = np.random.default_rng(7)
    states = rng.normal(size=(1500, 60 if kind == "wide" else 6))
    if kind == "duplicates":
        states[rng.permutation(1500)[:900]] = states[0]
    elif kind == "near ties":  # differences far below what float32 tells apart
        states = 1000 + np.repeat(states[:150], 10, axis=0) * 1e-3
        states += rng.normal(size=states.shape) * 1e-11
    elif kind == "outlier":
        states[3] = 1e9
    elif kind == "grid":
        states = rng.integers(0, 3, size=states.shape).astype(float)
    elif kind == "line":  # nothing varies in the other columns
        states = 0 * states + [[0, 1, 2, 3, 4, 5]]
        states[:, 2] = rng.permutation(1500) // 2
    elif kind == "clusters":
        states = 100 * states[rng.integers(0, 9, 1500)] + 0.1 * states
    queries = np.concatenate((states[:50], states[:50] + 0.01))
    for k in (1, 20):
        got = retrieve(states, queries, k, engine="accelerator")
        assert_same(got, brute_force(states, queries, k))


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_the_accelerator_equals_the_cpu(metric: Any, small_pieces: None) -> None:
    states = np.random.default_rng(0).normal(size=(2000, 5)).astype(np.float32)
    one, other = (
        retrieve(states, states[:300], 20, metric=metric, engine=engine)
        for engine in ("accelerator", "exact")
    )
    assert_same(one, other)


def test_tables_from_the_accelerator_equal_those_from_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 100)  # several at once
    data = transitions(np.random.default_rng(2).integers(0, 5, size=(650, 3)))
    one, other = (
        build_neighbours(data, ContextSettings(k=5, exclude="self", engine=engine))
        for engine in ("accelerator", "exact")
    )
    assert one.report.engine == "accelerator"
    assert_same((one.state, one.next_state), (other.state, other.next_state))


@pytest.mark.parametrize(
    ("rows", "m"), [(1000, 9), (1000, 31), (1000, 40), (129, 129), (40, 40), (5, 3)]
)
def test_no_state_outside_the_proposal_is_nearer_than_it_says(
    rows: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "QUERIES", 16)
    monkeypatch.setattr(accelerator, "TILE", 4 * GROUP)
    rng = np.random.default_rng(rows + m)
    near = rng.uniform(-1, 1, size=(rows, 3)).astype(np.float32)
    asked = rng.uniform(-1, 1, size=(37, 3))
    device = Accelerator(near)
    parts = [device.propose(asked[i : i + 16], asked[i : i + 16], 1, m) for i in (0, 16, 32)]
    ids = np.concatenate([part[0] for part in parts])[:37]
    unseen = np.concatenate([part[1] for part in parts])[:37]
    squared = ((near[None] - asked[:, None]) ** 2).sum(-1)
    assert [set(row) for row in ids.tolist()] == [
        set(row) for row in np.argsort(squared, axis=1)[:, :m].tolist()
    ]
    if m == rows:
        assert np.isinf(unseen).all()
    else:
        np.put_along_axis(squared, ids.astype(int), np.inf, 1)
        assert (unseen <= squared.min(axis=1) + 1e-6).all()
        np.testing.assert_allclose(
            unseen, np.sort(((near[None] - asked[:, None]) ** 2).sum(-1))[:, m - 1], atol=1e-5
        )


def test_tiles_that_are_too_far_away_are_not_looked_at(small_pieces: None) -> None:
    rng = np.random.default_rng(0)
    centres = rng.uniform(-1, 1, size=(20, 5))
    near = (centres[rng.integers(0, 20, 4000)] + 0.01 * rng.normal(size=(4000, 5))).astype("f4")
    asked = near[rng.integers(0, 4000, 64)] + 0.001 * rng.normal(size=(64, 5))
    ids, unseen, seen = map(np.asarray, Accelerator(near).search(asked, 3))
    tiles = -(-4000 // accelerator.TILE)
    assert seen.min() >= 1
    assert seen.max() < tiles / 2  # a chunk's 16 queries are of about 5 of the 20 clusters
    squared = ((near[None] - asked[:, None]) ** 2).sum(-1)
    nearest = np.argsort(squared, axis=1)
    np.testing.assert_array_equal(np.sort(ids), np.sort(nearest[:, :3]))
    others = np.take_along_axis(squared, nearest[:, 3:4], 1)[:, 0]
    assert (unseen <= others * (1 + 1e-5) + 1e-6).all()


def test_only_tiles_that_cannot_hold_a_nearer_state_are_left_out(
    small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "CHUNK", 1)  # no other query looks at more
    monkeypatch.setattr(accelerator, "QUERIES", 1024)
    monkeypatch.setattr(accelerator, "TILE", GROUP)
    rng = np.random.default_rng(5)
    near = rng.uniform(-1, 1, size=(2000, 3)).astype(np.float32)
    asked = rng.uniform(-1, 1, size=(1024, 3))
    ids, unseen, seen = map(np.asarray, Accelerator(near).search(asked, 1))
    squared = ((near[None] - asked[:, None]) ** 2).sum(-1)
    np.testing.assert_array_equal(ids[:, 0], squared.argmin(axis=1))
    np.testing.assert_allclose(unseen, squared.min(axis=1), atol=1e-5)
    # What is looked at is what a nearer state could be in, and the nearest tile.
    assert 1 < seen.mean() < 10


def test_all_tiles_are_looked_at_where_all_are_equally_far(small_pieces: None) -> None:
    near = np.random.default_rng(0).normal(size=(2000, 3))
    near = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    _, unseen, seen = map(np.asarray, Accelerator(near).search(np.zeros((3, 3)), 2))
    assert (seen == -(-2000 // accelerator.TILE)).all()
    assert (np.abs(unseen - 1) < 1e-5).all()


@pytest.mark.parametrize(("rows", "tile"), [(1, 64), (64, 64), (65, 64), (1000, 70)])
def test_every_state_is_in_one_tile_and_in_its_box(rows: int, tile: int) -> None:
    near = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    tiles, rotation = tiled(near, tile, GROUP)
    assert tiles.ids.shape[1] % GROUP == 0
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(4), atol=1e-12)
    filled = tiles.ids >= 0
    assert sorted(tiles.ids[filled].tolist()) == list(range(rows))
    assert filled[:-1].sum(axis=1).min() >= filled.sum(axis=1).max() - 1
    assert not filled[-1].any()
    np.testing.assert_array_equal(filled, np.isfinite(tiles.norms))
    np.testing.assert_array_equal(tiles.states[filled], turn(near, rotation)[tiles.ids[filled]])
    inside = (tiles.states[:-1] >= tiles.low[:, None]) & (tiles.states[:-1] <= tiles.high[:, None])
    assert inside[filled[:-1]].all()


def test_no_state_is_nearer_than_its_box() -> None:
    rng = np.random.default_rng(3)
    near = (rng.normal(size=(2000, 17)) * 10.0 ** rng.uniform(-6, 0, 17)).astype(np.float32)
    tiles, rotation = tiled(near, 2 * GROUP, GROUP)
    asked = turn(2 * near[:100], rotation)
    bounds = np.asarray(accelerator._bounds(tiles, jnp.asarray(asked)), np.float64)
    difference = tiles.states[None, :-1].astype(np.float64) - asked[:, None, None]
    squared = np.where(tiles.ids[:-1] < 0, np.inf, np.square(difference).sum(-1)).min(-1)
    assert (bounds > 0).mean() > 0.5  # or this test says nothing
    assert (bounds <= squared * (1 + 20 * 2.0**-24)).all()


@pytest.mark.parametrize("width", [GROUP, 1000, 40 * GROUP**2 + 5])
def test_the_smallest_are_found_through_groups(width: int) -> None:
    values = np.random.default_rng(width).normal(size=(3, width)).astype(np.float32)
    found = np.asarray(accelerator._smallest(jnp.asarray(values), 3))
    np.testing.assert_array_equal(found, np.argsort(values, axis=1)[:, :3])


CHILD = """
import json, sys
import jax, numpy as np
from icql.retrieval import accelerator, retrieve
accelerator.QUERIES = 64
states = np.random.default_rng(0).normal(size=(1500, 4)).astype(np.float32)
ids, _ = retrieve(states, states[:901], 10, engine="accelerator")  # 901 is not a multiple of 4
json.dump([len(jax.devices()), ids.tolist()], sys.stdout)
"""


def test_four_devices_give_the_same_tables_as_one() -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True
    )
    devices, ids = json.loads(child.stdout)
    assert devices == 4
    states = np.random.default_rng(0).normal(size=(1500, 4)).astype(np.float32)
    np.testing.assert_array_equal(ids, retrieve(states, states[:901], 10)[0])
