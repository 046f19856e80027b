"""Approximate search: recall is measured and its floor is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from icql.errors import UserError
from icql.retrieval import build_neighbours, retrieve
from icql.retrieval import retriever as retriever_module
from icql.retrieval.approximate import Codes
from icql.retrieval.index import Cells
from icql.settings.data import ContextSettings
from retrieval.cases import assert_same, brute_force, gaits, one_thread, transitions

__all__ = ["one_thread"]


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


@pytest.mark.parametrize("columns", [1, 4, 60])
def test_states_on_very_different_scales_are_found_too(columns: int) -> None:
    """Four bits around a cell's centre cannot tell the close ones apart: float32 has to."""
    rng = np.random.default_rng(0)
    states = rng.standard_t(1.5, size=(3000, columns))
    away = retrieve(states, states[::3], 10, engine="approximate")[1]
    true_away = retrieve(states, states[::3], 10)[1]
    assert (away <= true_away[:, -1:]).mean() >= 0.999


def test_codes_are_used_where_they_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    probe = Codes.probe
    monkeypatch.setattr(
        Codes,
        "probe",
        lambda self, asked, *how: used.append(len(asked)) or probe(self, asked, *how),
    )
    monkeypatch.setattr(Cells, "probe", None)
    rng = np.random.default_rng(0)
    # four bits of the whole extent are too few for the states of one heap
    heaps = 5 * rng.normal(size=(4, 6))
    states = heaps[rng.integers(0, 4, size=6000)] + rng.normal(size=(6000, 6))
    retrieve(states, states[::2], 10, engine="approximate")
    assert sum(used) >= 3000


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
    monkeypatch.setattr(retriever_module, "EXACT_UP_TO", 400)
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
