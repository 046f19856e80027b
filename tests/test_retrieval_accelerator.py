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

from icql.retrieval import ContextSettings, accelerator, build_neighbours, plan, retrieve
from icql.retrieval import exact as exact_module
from icql.retrieval.accelerator import GROUP, Accelerator
from retrieval_cases import assert_same, brute_force, one_thread, transitions

__all__ = ["one_thread"]


@pytest.mark.parametrize("kind", ["gauss", "duplicates", "near ties", "outlier", "grid"])
def test_the_accelerator_equals_brute_force(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_module, "MARGINS", (4, 12))
    rng = np.random.default_rng(7)
    states = rng.normal(size=(1500, 6))
    if kind == "duplicates":
        states[rng.permutation(1500)[:900]] = states[0]
    elif kind == "near ties":  # differences far below what float32 tells apart
        states = 1000 + np.repeat(states[:150], 10, axis=0) * 1e-3
        states += rng.normal(size=states.shape) * 1e-11
    elif kind == "outlier":
        states[3] = 1e9
    elif kind == "grid":
        states = rng.integers(0, 3, size=states.shape).astype(float)
    queries = np.concatenate((states[:50], states[:50] + 0.01))
    for k in (1, 20):
        got = retrieve(states, queries, k, engine="accelerator")
        assert_same(got, brute_force(states, queries, k))


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_the_accelerator_equals_the_cpu(metric: Any) -> None:
    states = np.random.default_rng(0).normal(size=(2000, 5)).astype(np.float32)
    one, other = (
        retrieve(states, states[:300], 20, metric=metric, engine=engine)
        for engine in ("accelerator", "exact")
    )
    assert_same(one, other)


def test_tables_from_the_accelerator_equal_those_from_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "BLOCK", 100)  # several at once
    data = transitions(np.random.default_rng(2).integers(0, 5, size=(650, 3)))
    one, other = (
        build_neighbours(data, ContextSettings(k=5, include_self=False, engine=engine))
        for engine in ("accelerator", "exact")
    )
    assert one.report.engine == "accelerator"
    assert_same((one.state, one.next_state), (other.state, other.next_state))


@pytest.mark.parametrize(("rows", "m"), [(1000, 9), (1000, 31), (1000, 40), (40, 40), (5, 3)])
def test_no_state_outside_the_proposal_is_nearer_than_it_says(rows: int, m: int) -> None:
    rng = np.random.default_rng(rows + m)
    near = rng.uniform(-1, 1, size=(rows, 3)).astype(np.float32)
    asked = rng.uniform(-1, 1, size=(37, 3))
    device = Accelerator(near, queries=16, tile=4 * GROUP)
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


@pytest.mark.parametrize("width", [GROUP, 1000, 40 * GROUP**2 + 5])
def test_the_smallest_are_found_through_groups(width: int) -> None:
    values = np.random.default_rng(width).normal(size=(3, width)).astype(np.float32)
    found = np.asarray(accelerator._smallest(jnp.asarray(values), 3))
    np.testing.assert_array_equal(found, np.argsort(values, axis=1)[:, :3])


CHILD = """
import json, sys
import jax, numpy as np
from icql.retrieval import ContextSettings, accelerator, build_neighbours, plan, retrieve
accelerator.QUERIES = 64
states = np.random.default_rng(0).normal(size=(1500, 4)).astype(np.float32)
ids, _ = retrieve(states, states[:901], 10, engine="accelerator")  # 901 is not a multiple of 4
json.dump([len(jax.devices()), ids.tolist()], sys.stdout)
"""


def test_four_devices_give_the_same_tables_as_one() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True
    )
    devices, ids = json.loads(child.stdout)
    assert devices == 4
    states = np.random.default_rng(0).normal(size=(1500, 4)).astype(np.float32)
    np.testing.assert_array_equal(ids, retrieve(states, states[:901], 10)[0])
