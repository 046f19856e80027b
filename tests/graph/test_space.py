"""The graph of a dataset in another space than the raw columns, and its kernel's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from icql.data.transitions import DataInfo, Transitions
from icql.graph import logged
from icql.graph.deviations import Around, action_spread
from icql.graph.logged import compare_rows, kernel_weights
from icql.retrieval import learned as learned_module
from icql.settings.draw import DrawSettings
from icql.training.choose import choose
from icql.training.plan import Plan


def plant(episodes: int = 30, steps: int = 20, seed: int = 0, unit: float = 1.0) -> Transitions:
    """The price decides what an action is worth; the pressure, a large number, means nothing."""
    rng = np.random.default_rng(seed)
    rows = episodes * steps
    price = 0.2 + 0.05 * rng.normal(size=rows)
    pressure = 240_000 + 2_000 * rng.normal(size=rows)
    states = np.stack([pressure * unit, price], axis=1).astype(np.float32)
    actions = np.clip(20 * (price - 0.2) + 0.1 * rng.normal(size=rows), -0.99, 0.99)
    actions = actions[:, None].astype(np.float32)
    step = np.tile(np.arange(steps, dtype=np.int32), episodes)
    return Transitions(
        states=states,
        actions=actions,
        rewards=(10 * price + rng.normal(size=rows)).astype(np.float32),
        next_states=np.roll(states, -1, axis=0),
        next_actions=actions,
        mask=(step < steps - 1).astype(np.float32),
        episode=np.repeat(np.arange(episodes, dtype=np.int32), steps),
        step=step,
        info=DataInfo("plant"),
    )


def test_rows_are_compared_in_the_space() -> None:
    """In another unit of pressure (exact in float32) raw comparisons differ, others do not."""
    settings = DrawSettings(by="rank", compared=20, neighbours=8, kernel=1.0)
    for space, alike in (("raw", False), ("standardised", True)):
        chosen = replace(settings, space=space)  # type: ignore[arg-type]
        found = [compare_rows(plant(unit=unit), chosen) for unit in (1.0, 2.0**-17)]
        same = [
            np.array_equal(getattr(found[0], name), getattr(found[1], name))
            for name in ("q", "v", "weights")
        ]
        assert same == [alike] * 3


def test_values_follow_the_column_that_matters() -> None:
    data = plant()
    price = data.states[:, 1]

    def told(space: Any) -> float:
        v = compare_rows(data, DrawSettings(by="advantage", space=space, discount=0.1)).v
        return float(np.corrcoef(v, price)[0, 1])

    assert told("standardised") > told("raw") + 0.2


def test_the_spread_of_actions_is_that_of_states_near_in_the_space() -> None:
    data = plant()
    raw, scaled = (action_spread(Around(data, space=space)) for space in ("raw", "standardised"))
    assert raw > 0.8  # the pressure says nothing of the action
    assert scaled < 0.4


def test_the_choice_of_an_algorithm_asks_in_the_space_of_the_draws() -> None:
    data = plant()
    plan = Plan.make(dataset="hopper-mini")
    raw = plan.asked(settings={"draw.space": "raw"})
    assert choose(raw, data, ["draw.space"])[0].algo == "icql-rank"
    assert choose(plan, data)[0].algo == "icql-graph"  # of a log of one's own
    scaled = choose(plan.asked(settings={"draw.space": "standardised"}), data)[0]
    assert scaled.algo == "icql-graph"
    assert scaled.settings.draw.space == "standardised"


def test_learned_features_reach_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    real = learned_module.learn
    monkeypatch.setattr(learned_module, "STEPS", 250)

    def counted(*given: Any) -> Any:
        seeds.append(given[3])
        return real(*given)

    monkeypatch.setattr(learned_module, "learn", counted)
    data = plant(10)
    settings = DrawSettings(by="rank", compared=10, neighbours=4, kernel=1.0, space="learned")
    said: list[float] = []
    learned = compare_rows(data, settings, progress=lambda label, share: said.append(share))
    assert seeds == [0]  # once: tables and kernel have the same one
    assert said == sorted(said)
    assert not np.array_equal(learned.v, compare_rows(data, replace(settings, space="raw")).v)


# ---------------------------------------------------------------- the kernel


def test_kernel_weights_follow_their_formula() -> None:
    away = np.random.default_rng(0).uniform(0, 3, (70, 5)).astype(np.float32)
    squares = away.astype(np.float64) ** 2
    expected = np.exp(-0.7 * squares / squares.mean(1, keepdims=True))
    found = kernel_weights(away, 0.7)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 1:], expected, rtol=1e-6)
    assert (found[:, 0] == 1).all()


def test_a_kernel_knows_holes_and_neighbours_at_the_same_place() -> None:
    inf = np.inf
    away = np.array(
        [[0, 0, 0], [1, 2, inf], [inf, inf, inf], [1e30, 2e30, inf], [0, 1e-30, 2e-30]], np.float32
    )
    found = kernel_weights(away, 1.0)[:, 1:]
    assert np.isfinite(found).all()
    assert found[0].tolist() == [1, 1, 1]
    two = np.exp([-1 / 2.5, -4 / 2.5])
    np.testing.assert_allclose(found[1], [*two, 0], rtol=1e-6)
    assert found[2].tolist() == [0, 0, 0]
    np.testing.assert_allclose(found[3], found[1], rtol=1e-6)  # d² would not fit float32
    np.testing.assert_allclose(found[4], np.exp([0, -3 / 5, -12 / 5]), rtol=1e-6)


def test_a_kernel_is_measured_in_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the rows that values are taken over alone, and not of all that are compared."""
    given: list[np.ndarray] = []
    real = logged.kernel_weights

    def seen(away: Any, kernel: float) -> Any:
        given.append(away)
        return real(away, kernel)

    monkeypatch.setattr(logged, "kernel_weights", seen)
    data = plant(10)
    settings = DrawSettings(by="rank", compared=12, neighbours=4, kernel=1.0, space="standardised")
    compare_rows(data, settings)
    assert [away.shape for away in given] == [(200, 4), (200, 4)]
    low, high = np.percentile(data.states.astype(float), [25, 75], axis=0)
    x = data.states / ((high - low) / 1.349)
    apart = np.linalg.norm(x[:, None] - x, axis=-1)
    apart[data.episode[:, None] == data.episode] = np.inf
    np.testing.assert_allclose(given[0], np.sort(apart, axis=1)[:, :4], rtol=1e-5)
