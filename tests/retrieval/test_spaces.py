"""Distances on standardised columns and on learned features: in tables, queries and critics."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import icql
from icql.cli import main
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.nn.critics import Critics
from icql.retrieval import Neighbours, Retriever, build_neighbours, distances_of, find_space
from icql.retrieval import learned as learned_module
from icql.retrieval import metric as metric_module
from icql.retrieval import neighbours as neighbours_module
from icql.retrieval.cache import SearchReport, read_fitted
from icql.retrieval.coverage import coverage
from icql.retrieval.learned import features_of, learn
from icql.retrieval.metric import spreads
from icql.settings.contexts import ContextSettings
from icql.training.device import Normaliser
from icql.training.trained import load_critic
from icql.training.trained_critic import TrainedCritic
from retrieval.cases import assert_same, brute_force, distance_matrix, one_thread, transitions

__all__ = ["one_thread"]


def silent(label: str, share: float) -> None:
    pass


def plant(rows: int = 900, seed: int = 0) -> np.ndarray:
    """Pressure in Pa, a price in EUR, a valve that is opened now and then, a constant, a level."""
    rng = np.random.default_rng(seed)
    pressure = 240_000 + 900 * rng.normal(size=rows)
    price = 0.2 + 0.03 * rng.normal(size=rows)
    valve = (rng.random(rows) < 0.05).astype(float)
    level = rng.uniform(-4, 4, rows)
    states = np.stack([pressure, price, valve, np.full(rows, 0.1), level], axis=1)
    return states.astype(np.float32)


def expected_scale(states: np.ndarray) -> np.ndarray:
    """What standardised means, column by column in plain NumPy."""
    scale = []
    for column in states.astype(np.float64).T:
        low, high = np.percentile(column, [25, 75])
        spread = (high - low) / 1.349 or column.std()
        scale.append(1.0 if np.ptp(column) == 0 else spread)
    return np.array(scale)


def control(episodes: int = 40, steps: int = 30, seed: int = 0, idle: float = 2.0) -> Transitions:
    """Two columns that decide action and change, and three that mean nothing in an episode."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode in range(episodes):
        x, label = rng.uniform(-1, 1, 2), idle * rng.normal(size=3)
        for step in range(steps):
            a = -0.7 * x[:1] - 0.5 * x[1:] + 0.1 * rng.normal(size=1)
            force = a[0] + np.sin(3 * x[0])
            y = x + 0.1 * np.array([x[1], force]) + 0.01 * rng.normal(size=2)
            rows.append(([*x, *label], a, [*y, *label], episode, step))
            x = y
    states, actions, next_states, episode, step = (
        np.array(part) for part in zip(*rows, strict=True)
    )
    actions = actions.astype(np.float32)
    return Transitions(
        states=states.astype(np.float32),
        actions=actions,
        rewards=rng.normal(size=len(states)).astype(np.float32),
        next_states=next_states.astype(np.float32),
        next_actions=actions,
        mask=np.ones(len(states), np.float32),
        episode=episode.astype(np.int32),
        step=step.astype(np.int32),
        info=DataInfo("control"),
    )


# ---------------------------------------------------------------- each column's own spread


def test_spreads_are_those_of_the_columns() -> None:
    states = plant()
    np.testing.assert_allclose(spreads(states), expected_scale(states), rtol=1e-12)
    assert 0.15 < spreads(states)[2] < 0.3  # rarely moves: the standard deviation
    assert spreads(states)[3] == 1.0  # never moves: left alone


def test_a_column_that_rests_is_not_measured_in_its_noise() -> None:
    rng = np.random.default_rng(0)
    door = 1e-4 * rng.normal(size=2000) + 0.3 * (np.arange(2000) % 10 == 0)  # open a tenth of it
    low, high = np.quantile(door, [0.025, 0.975])
    expected = np.minimum(np.maximum(door, low), high).std()
    assert 0.08 < expected < 0.1
    assert spreads(door[:, None])[0] == pytest.approx(expected, rel=1e-9)
    broken = door.copy()
    broken[::97] = -9999  # a percent of nonsense
    assert spreads(broken[:, None])[0] == pytest.approx(expected, rel=0.05)


def test_outliers_do_not_move_a_spread() -> None:
    states = plant().astype(np.float64)
    before = spreads(states)
    states[::97] = 1e12
    after = spreads(states)
    np.testing.assert_allclose(after[[0, 1, 4]], before[[0, 1, 4]], rtol=0.1)
    assert states.std(axis=0)[1] > 1e9 * before[1]  # or this test says nothing


def test_rounding_is_no_movement() -> None:
    """A value that is computed again and again differs in its last bit: it has no spread."""
    rng = np.random.default_rng(0)
    noisy = np.nextafter(np.float32(0.1), np.float32(1)) * np.ones(500, np.float32)
    noisy[rng.random(500) < 0.5] = 0.1
    moving = np.where(rng.random(500) < 0.01, 240_001, 240_000)  # 1 is far more than rounding
    found = spreads(np.stack([noisy, moving], axis=1).astype(np.float32))
    assert found[0] == 1.0
    assert 0.01 < found[1] < 0.5
    assert spreads(np.zeros((0, 3))).tolist() == [1, 1, 1]


def test_numbers_at_the_end_of_floats() -> None:
    states = np.array([[0, 5e-324, 1e150], [1e150, 0, -1e150], [1e-300, 1e-323, 0], [1, 1, 1]])
    for k in (1, 4):
        ids, away = icql.retrieve(states, states, k, space="standardised")
        assert np.isfinite(away).all()
        assert ids[:, 0].tolist() == [0, 1, 2, 3]
    tiny = np.arange(20.0)[:, None] * 1e-200
    tiny[7] = 1e140  # 10³⁴⁰ spreads away
    ids, away = icql.retrieve(tiny, tiny, 3, space="standardised")
    assert np.isfinite(away).all()
    assert ids[[0, 7], 0].tolist() == [0, 7]
    assert ids[0].tolist() == [0, 1, 2]


def test_a_part_of_long_data_tells_its_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    states = plant(40_000)
    whole = spreads(states)
    monkeypatch.setattr(metric_module, "SAMPLE", 5 * 8192)
    part = spreads(states)
    assert part.tolist() == spreads(states).tolist() != whole.tolist()
    np.testing.assert_allclose(part, whole, rtol=0.05)
    rows = metric_module.spaced(40_000, 8192)
    assert len(rows) == 8192
    assert (np.diff(rows) > 0).all()
    assert 0 <= rows[0] < rows[-1] < 40_000


# ---------------------------------------------------------------- every engine


@pytest.mark.parametrize("engine", ["exact", "accelerator"])
def test_exact_engines_equal_brute_force_in_the_scaled_space(engine: Any) -> None:
    states, queries = plant(), plant(60, seed=1)
    scale = expected_scale(states)
    got = icql.retrieve(states, queries, 7, space="standardised", engine=engine)
    expected = brute_force(states / scale, queries / scale, 7)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-12)
    raw = icql.retrieve(states, queries, 7, engine=engine)
    assert (raw[0] != got[0]).mean() > 0.5  # or this test says nothing


@pytest.mark.parametrize("engine", ["exact", "accelerator", "approximate"])
def test_cosine_in_the_scaled_space(engine: Any) -> None:
    states, queries = plant(), plant(60, seed=1)
    scale = expected_scale(states)
    truth = distance_matrix(states / scale, queries / scale, "cosine")
    ids, away = icql.retrieve(
        states, queries, 7, space="standardised", metric="cosine", engine=engine
    )
    np.testing.assert_allclose(away, np.take_along_axis(truth, ids.astype(int), 1), atol=1e-12)
    np.testing.assert_allclose(away, np.sort(truth, axis=1)[:, :7], atol=1e-12)


def test_the_approximate_engine_in_the_scaled_space() -> None:
    states = plant(6000)
    scale = expected_scale(states)
    away = icql.retrieve(states, states[::9], 9, space="standardised", engine="approximate")[1]
    truth = brute_force(states / scale, states[::9] / scale, 9)[1]
    assert (away <= truth[:, -1:] * (1 + 1e-9)).mean() > 0.99


# ---------------------------------------------------------------- units do not matter


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_another_unit_changes_nothing(metric: Any) -> None:
    data = transitions(plant())
    settings = ContextSettings(k=6, metric=metric, space="standardised", exclude="episode")

    def tables(factor: Any, space: Any = "standardised") -> Neighbours:
        of = {name: getattr(data, name) * np.float32(factor) for name in ("states", "next_states")}
        return build_neighbours(replace(data, **of), replace(settings, space=space))

    plain = tables(1)
    still = 2.0**20 if metric == "l2" else 1  # a constant column has a say in what is parallel
    binary = tables([2.0**-10, 2.0**7, 1, still, 0.25])  # exact in float32: to the last bit
    assert_same((binary.state, binary.next_state), (plain.state, plain.next_state))
    assert binary.report.mean_distance == plain.report.mean_distance
    decimal = tables([1e-5, 100, 1, 1, 1e3])  # bar, cents, …
    assert (decimal.state == plain.state).mean() > 0.999  # up to float32's rounding of the data
    assert (tables([1e-5, 100, 1, 1, 1e3], "raw").state == tables(1, "raw").state).mean() < 0.5


def test_large_columns_do_not_hide_small_ones() -> None:
    states = plant()
    for space, hidden in (("raw", True), ("standardised", False)):
        ids, _ = icql.retrieve(states, states, 10, space=space)  # type: ignore[arg-type]
        apart = np.abs(states[ids, 1] - states[:, None, 1]).mean()
        anyhow = np.abs(states[:, None, 1] - states[None, :, 1]).mean()
        assert (apart > 0.8 * anyhow) == hidden


# ---------------------------------------------------------------- tables, blocks, caches


@pytest.fixture(scope="module")
def controlled() -> Transitions:
    return control()


@pytest.fixture(scope="module")
def fitted(controlled: Transitions) -> Any:
    return learn(controlled.states, controlled.actions, controlled.next_states, 0, silent)


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch, fitted: Any) -> list[int]:
    """The seeds of every network that is asked for; seed 0 of `controlled` is at hand."""
    seeds: list[int] = []

    def quick(states: Any, actions: Any, next_states: Any, seed: int, progress: Any) -> Any:
        seeds.append(seed)
        return {**fitted, "mean": fitted["mean"] + seed, "w2": fitted["w2"] * (1 + seed)}

    monkeypatch.setattr(learned_module, "learn", quick)
    return seeds


@pytest.mark.parametrize("space", ["standardised", "learned"])
@pytest.mark.parametrize("strategy", ["similar", "high_reward", "random"])
def test_tables_in_pieces_are_what_a_retriever_gives(
    space: Any,
    strategy: Any,
    controlled: Transitions,
    learnt: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    data = controlled.subset(slice(0, 500))
    settings = ContextSettings(k=4, candidates=9, exclude="episode", space=space, strategy=strategy)
    whole = build_neighbours(data, settings)
    found = find_space(data, settings)
    retriever = Retriever(data.states, data.rewards, settings, episode=data.episode, space=found)
    ids, away = retriever(data.states, rows=np.arange(500))
    np.testing.assert_array_equal(whole.state, ids)
    near = distances_of(data, whole, settings)
    np.testing.assert_allclose(near[0], away, rtol=1e-6)
    features = found.embed_states(data.states).astype(np.float64)
    apart = np.linalg.norm(features[whole.state] - features[:, None], axis=-1)
    np.testing.assert_allclose(near[0], apart, rtol=1e-6)
    assert (np.diff(away, axis=1) >= 0).all()
    cut = neighbours_module.Schedule(500, 0, 128, 64, room=50_000)
    monkeypatch.setattr(neighbours_module, "plan_work", lambda *_, **__: cut)
    pieces = build_neighbours(data, settings, cache_dir=tmp_path)
    assert_same((pieces.state, pieces.next_state), (whole.state, whole.next_state))
    assert pieces.report.space == space
    assert f"{space} space" in str(pieces.report)


def test_random_rows_are_the_same_in_every_space_but_measured_in_it() -> None:
    states = plant()
    raw, scaled = (
        icql.retrieve(states, states[:50], 6, strategy="random", space=space)
        for space in ("raw", "standardised")
    )
    np.testing.assert_array_equal(np.sort(raw[0]), np.sort(scaled[0]))
    truth = distance_matrix(
        *(part / expected_scale(states) for part in (states, states[:50])), "l2"
    )
    np.testing.assert_allclose(
        scaled[1], np.take_along_axis(truth, scaled[0].astype(int), 1), rtol=1e-9
    )
    assert (np.diff(scaled[1], axis=1) >= 0).all()
    assert (raw[0] != scaled[0]).any()


def test_keys_of_raw_tables_are_those_before_there_were_spaces() -> None:
    data = transitions(np.arange(60.0).reshape(30, 2) % 7)
    known = {
        "4b56201642a5b07ec164b1a30a8be55bd048c7d3fe74faba0f980a9ca91ce0cc": ContextSettings(k=3),
        "decb6715ef6abc7a89024e4fefe1a642bdad26d9f2e5290d5f44da1822f3535c": ContextSettings(
            k=2, metric="cosine", exclude="self", seed=4
        ),
    }
    for key, settings in known.items():
        assert build_neighbours(data, settings).key == key
        assert build_neighbours(data, replace(settings, space="standardised")).key != key


def test_tables_are_cached_by_their_space(
    controlled: Transitions, learnt: list[int], tmp_path: Path
) -> None:
    keys = set()
    for space, seed in (("raw", 0), ("standardised", 0), ("learned", 0), ("learned", 1)):
        settings = ContextSettings(k=4, space=space, seed=seed)  # type: ignore[arg-type]
        first = build_neighbours(controlled, settings, cache_dir=tmp_path)
        again = build_neighbours(controlled, settings, cache_dir=tmp_path)
        assert (first.report.cached, again.report.cached) == (False, True)
        assert first.space is not None
        assert again.space is not None
        assert again.space.digest == first.space.digest
        keys.add(first.key)
    assert len(keys) == 4
    assert learnt == [0, 1]  # each network once
    [damaged, *_] = sorted((tmp_path / "spaces").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-100])
    for seed in (0, 1):
        settings = ContextSettings(k=4, space="learned", seed=seed)
        assert build_neighbours(controlled, settings, cache_dir=tmp_path).report.cached
    assert len(learnt) == 3  # the damaged one again


# ---------------------------------------------------------------- more rows


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every part of the data that is searched."""
    calls: list[int] = []

    class Counted(neighbours_module.Nearest):
        def __call__(self, queries: Any, k: int, progress: Any) -> Any:
            calls.append(len(self))
            return super().__call__(queries, k, progress)

    monkeypatch.setattr(neighbours_module, "Nearest", Counted)
    return calls


@pytest.mark.parametrize("cached", [False, True])
def test_more_rows_have_another_space_and_other_tables(
    cached: bool, tmp_path: Path, searched: list[int]
) -> None:
    """The new rows double a column's spread: contexts of the old rows change among themselves."""
    states = plant()
    states[450:, 4] *= 4
    data, settings = transitions(states), ContextSettings(k=5, space="standardised")
    folder = tmp_path if cached else None
    old = build_neighbours(data.subset(slice(0, 450)), settings, cache_dir=folder)
    searched.clear()
    given = {} if cached else {"old": old}
    grown = build_neighbours(data, settings, cache_dir=folder, **given)
    assert set(searched) == {900}  # anew
    whole = build_neighbours(data, settings)
    assert_same((grown.state, grown.next_state), (whole.state, whole.next_state))
    # extended as they are, the old tables would have kept contexts that are wrong now
    kept = build_neighbours(data, settings, old=old, space=old.space)
    assert (kept.state != whole.state).mean() > 0.05


def test_a_space_that_is_kept_lets_tables_grow(searched: list[int]) -> None:
    data, settings = transitions(plant()), ContextSettings(k=5, space="standardised")
    old = build_neighbours(data.subset(slice(0, 450)), settings)
    searched.clear()
    grown = build_neighbours(data, settings, old=old, space=old.space)
    assert 450 in searched
    assert 900 not in searched
    assert old.space is not None
    scale = old.space.fitted["scale"]
    expected = brute_force(data.states / scale, data.states / scale, 5)
    np.testing.assert_array_equal(grown.state, expected[0])


def test_networks_of_more_rows_build_anew(
    controlled: Transitions, learnt: list[int], monkeypatch: pytest.MonkeyPatch, fitted: Any
) -> None:
    settings = ContextSettings(k=5, space="learned")
    old = build_neighbours(controlled.subset(slice(0, 600)), settings)
    monkeypatch.setattr(
        learned_module, "learn", lambda *_: {**fitted, "w1": np.roll(fitted["w1"], 1, axis=0)}
    )
    grown, whole = (build_neighbours(controlled, settings, old=o) for o in (old, None))
    assert_same((grown.state, grown.next_state), (whole.state, whole.next_state))
    kept = build_neighbours(controlled, settings, old=old, space=old.space)
    assert (kept.state != whole.state).any()


# ---------------------------------------------------------------- learned features


def test_the_same_seed_gives_the_same_features(
    controlled: Transitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_module, "STEPS", 300)
    monkeypatch.setattr(learned_module, "CHUNK", 50)
    given = controlled.states, controlled.actions, controlled.next_states
    fitted = learn(*given, 0, silent)
    said: list[float] = []
    again = learn(*given, 0, lambda label, share: said.append(share))
    assert all(np.array_equal(fitted[name], again[name]) for name in fitted)
    assert said == sorted(said)
    assert said[-1] == 1.0
    assert len(said) > 5
    other = learn(*given, 1, silent)
    assert not np.array_equal(other["w1"], fitted["w1"])
    more = {"actions": given[1], "next_states": given[2]}
    near = [
        icql.retrieve(controlled.states, controlled.states, 5, **at)[0]
        for at in ({"space": "learned", "seed": s, **more} for s in (0, 1))
    ]
    assert (near[0] != near[1]).any()
    features = features_of(fitted, controlled.states).astype(np.float64)
    np.testing.assert_array_equal(near[0], brute_force(features, features, 5)[0])


def test_columns_that_do_not_matter_are_ignored(controlled: Transitions, fitted: Any) -> None:
    data = controlled
    truth = data.states[:, :2]

    def apart(ids: np.ndarray) -> float:
        other = data.episode[ids] != data.episode[:, None]
        return float(np.linalg.norm(truth[ids] - truth[:, None], axis=-1)[other].mean())

    settings = ContextSettings(k=10, exclude="episode", engine="exact")
    found = {
        space: build_neighbours(data, replace(settings, space=space)).state
        for space in ("raw", "standardised")
    }
    space = metric_module.fitted_space("l2", fitted)
    learned = replace(settings, space="learned")
    found["learned"] = build_neighbours(data, learned, space=space).state
    best = Retriever(truth, None, settings, episode=data.episode)(truth, rows=np.arange(len(data)))
    assert apart(found["learned"]) < 0.5 * apart(found["raw"])
    assert apart(found["learned"]) < 0.5 * apart(found["standardised"])
    assert apart(found["learned"]) < 1.5 * apart(best[0])


@pytest.mark.parametrize("columns", [1, 3, 200])
def test_a_row_has_the_same_features_alone_and_among_others(columns: int) -> None:
    """To the bit: matrix products are exact, however they are cut."""
    rng = np.random.default_rng(0)
    fitted: Any = {
        "centre": rng.normal(size=columns),
        "scale": rng.uniform(0.1, 3, columns),
        "w1": learned_module._rounded(rng.normal(size=(columns, 128)), 16, 8.0),
        "b1": learned_module._rounded(rng.normal(size=128), 16, 8.0),
        "w2": learned_module._rounded(rng.normal(size=(128, 128)), 16, 8.0),
        "b2": learned_module._rounded(rng.normal(size=128), 16, 8.0),
        "mean": rng.normal(size=128),
        "std": rng.uniform(0.1, 3, 128),
    }
    states = (2 * rng.normal(size=(1500, columns))).astype(np.float32)
    together = features_of(fitted, states)
    for rows in (slice(0, 1), slice(7, 9), slice(100, 837), slice(1499, 1500)):
        np.testing.assert_array_equal(features_of(fitted, states[rows]), together[rows])
    np.testing.assert_array_equal(features_of(fitted, states[::-1])[::-1], together)
    hidden = learned_module._last_hidden(fitted, states)  # before float32 hides what differs
    for rows in (slice(0, 1), slice(7, 9), slice(100, 837), slice(1499, 1500)):
        alone = learned_module._last_hidden(fitted, states[rows])
        np.testing.assert_array_equal(alone, hidden[rows])
    x = np.clip((states - fitted["centre"]) / fitted["scale"], -16, 16)
    for w, b in (("w1", "b1"), ("w2", "b2")):
        z = x @ fitted[w] + fitted[b]
        x = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5)
        x = np.maximum(x, 0)
    np.testing.assert_allclose(together, (x - fitted["mean"]) / fitted["std"], atol=1e-4)


def test_learned_features_need_whole_transitions(controlled: Transitions) -> None:
    states = controlled.states
    with pytest.raises(UserError, match=r"^space: 'learned' needs actions and next_states"):
        icql.retrieve(states, states[:3], 3, space="learned")
    with pytest.raises(UserError, match=r"^context\.space: features are learned from whole"):
        Retriever(states, None, ContextSettings(k=3, space="learned"))
    with pytest.raises(UserError, match=r"^states, actions, next_states: do not fit together"):
        learn(states, controlled.actions[1:], states, 0, silent)
    with pytest.raises(UserError, match=r"^actions, row 2: is not finite"):
        learn(states, np.where(np.arange(len(states)) == 2, np.nan, 0)[:, None], states, 0, silent)
    with pytest.raises(UserError, match="space"):
        ContextSettings(space="scaled")  # type: ignore[arg-type]
    broken = replace(controlled, states=np.where(states == states[4, 0], np.nan, states))
    with pytest.raises(UserError, match="states, row 4: is not finite"):
        build_neighbours(broken, ContextSettings(k=3, space="standardised"))


# ---------------------------------------------------------------- trained critics


@pytest.mark.parametrize("space", ["standardised", "learned"])
def test_a_critic_measures_as_training_did(
    space: Any, controlled: Transitions, learnt: list[int]
) -> None:
    settings = ContextSettings(k=5, space=space, exclude="self")
    same: Any = Normaliser(np.zeros(1, np.float32), np.ones(1, np.float32), 1.0)
    critics: Any = Mock(spec=Critics)
    critic = TrainedCritic(critics, (), controlled, same, settings)
    table = build_neighbours(controlled, settings).state
    np.testing.assert_array_equal(critic.neighbours(controlled.states)[0], table)
    raw = build_neighbours(controlled, replace(settings, space="raw")).state
    assert (raw != table).any()


def test_a_run_keeps_the_space_of_its_contexts(
    controlled: Transitions,
    learnt: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Loaded or resumed elsewhere, where a network would be another one, contexts are the same."""
    monkeypatch.setenv("ICQL_CACHE", str(tmp_path / "cache"))
    np.savez(
        tmp_path / "log.npz",
        observations=controlled.states,
        actions=np.clip(controlled.actions, -0.9, 0.9),
        rewards=controlled.rewards,
        terminals=np.zeros(len(controlled), bool),
        timeouts=controlled.step == controlled.step.max(),
    )
    small = {
        "batch_size": 4,
        "hidden": [4, 4],
        "policy.hidden": [4, 4],
        "context.k": 3,
        "context.space": "learned",
        "policy.cosine": False,
        "local.layers": 2,
        "local.features": 4,
    }
    run = {"episodes": 0}
    log, out = str(tmp_path / "log.npz"), tmp_path / "run"
    icql.train("icql", dataset=log, steps=2, out=out, settings=small, run=run, quiet=True)
    assert json.loads((out / "run.json").read_text())["settings"]["context"]["space"] == "learned"
    data = load_critic(out).data
    settings = ContextSettings(k=3, space="learned")
    trained = build_neighbours(data, settings, cache_dir=tmp_path / "cache")
    assert trained.report.cached
    assert trained.space is not None
    recorded = read_fitted(out / "space.npz")
    assert recorded.keys() == trained.space.fitted.keys()
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(learned_module, "learn", lambda *_: {**recorded, "w2": recorded["w2"].T})
    assert (build_neighbours(data, settings).state != trained.state).any()
    critic = load_critic(out)
    np.testing.assert_array_equal(critic.neighbours(data.states)[0], trained.state)
    icql.train(resume=True, steps=4, out=out, quiet=True)
    again = build_neighbours(data, settings, cache_dir=tmp_path / "cache", space=trained.space)
    assert again.report.cached  # the resumed run made these very tables
    np.testing.assert_array_equal(again.state, trained.state)


# ---------------------------------------------------------------- distances


def test_distances_of_takes_little_memory_and_knows_holes() -> None:
    rows, k = 100_000, 32
    states = np.random.default_rng(0).normal(size=(rows, 2))
    data = transitions(states)
    table = ((np.arange(rows)[:, None] + np.arange(k)) % rows).astype(np.int32)
    table[5, 3] = table[rows - 1, 0] = -1
    near = Neighbours(table, table, SearchReport("exact", rows, 2 * rows))
    tracemalloc.start()
    here, there = distances_of(data, near, ContextSettings(k=k))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < here.nbytes + there.nbytes + 2e7  # (N, k) in float64 and as int64 would be 5e7
    expected = np.linalg.norm(data.states[table].astype(float) - data.states[:, None], axis=-1)
    expected[table < 0] = np.inf
    np.testing.assert_allclose(here, expected, rtol=1e-6)
    assert np.isinf(there[5, 3])


# ---------------------------------------------------------------- coverage


def test_coverage_is_measured_in_the_space(
    controlled: Transitions, learnt: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = controlled
    factor = np.array([2.0**12, 1, 1, 1, 1], np.float32)
    scaled = replace(data, states=data.states * factor, next_states=data.next_states * factor)
    plain, found = (coverage(d, (5,), space="standardised") for d in (data, scaled))
    np.testing.assert_array_equal(plain.distance, found.distance)
    np.testing.assert_array_equal(plain.held_out, found.held_out)
    assert (plain.step, plain.extent) == (found.step, found.extent)
    assert coverage(data, (5,)).step == plain.step  # the default of a log of one's own
    raw = [coverage(d, (5,), space="raw").step for d in (data, scaled)]
    assert raw[0] != raw[1]
    scale = expected_scale(data.states)
    moved = np.linalg.norm((data.next_states.astype(float) - data.states) / scale, axis=1)
    assert plain.step == pytest.approx(np.median(moved))
    learned = coverage(data, (5,), space="learned")
    assert learned.as_json()["space"] == "learned"
    assert learned.isolated.mean() < plain.isolated.mean()  # idle columns keep episodes apart
    assert learnt == [0]
    np.savez(
        tmp_path / "log.npz",
        observations=data.states,
        actions=data.actions,
        rewards=data.rewards,
        terminals=np.zeros(len(data), bool),
        timeouts=data.step == data.step.max(),
    )
    for space in ("raw", "standardised"):
        main(["data", "coverage", str(tmp_path / "log.npz"), "--space", space, "--json"])
        said = json.loads(capsys.readouterr().out)
        assert said["space"] == space
        assert (said["step"] == pytest.approx(plain.step, rel=0.05)) == (space == "standardised")
