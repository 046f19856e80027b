"""Coverage: distances equal brute force, and sparse data is told from dense, at any scale."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from icql.cli.data import Coverage as CoverageOptions
from icql.data import DataInfo, Transitions, load_dataset
from icql.data.signals import Signals
from icql.errors import UserError
from icql.retrieval import retriever as module
from icql.retrieval.coverage import Coverage, coverage

Paths = np.ndarray  # (episodes, steps + 1, dimensions)


def transitions(paths: Paths) -> Transitions:
    episodes, steps, dimensions = paths.shape[0], paths.shape[1] - 1, paths.shape[2]
    rows = episodes * steps
    paths = paths.astype(np.float32)
    return Transitions(
        states=paths[:, :-1].reshape(rows, dimensions),
        actions=np.zeros((rows, 1), np.float32),
        rewards=np.zeros(rows, np.float32),
        next_states=paths[:, 1:].reshape(rows, dimensions),
        next_actions=np.zeros((rows, 1), np.float32),
        mask=np.ones(rows, np.float32),
        episode=np.repeat(np.arange(episodes, dtype=np.int32), steps),
        step=np.tile(np.arange(steps, dtype=np.int32), episodes),
    )


def wandering(episodes: int, dimensions: int = 4, steps: int = 50, seed: int = 0) -> Paths:
    """Random walks pulled to the origin: any two episodes have the same distribution."""
    generator = np.random.default_rng(seed)
    paths = np.empty((episodes, steps + 1, dimensions))
    paths[:, 0] = generator.normal(size=(episodes, dimensions))
    for t in range(steps):
        noise = generator.normal(size=(episodes, dimensions))
        paths[:, t + 1] = 0.98 * paths[:, t] + 0.2 * noise
    return paths


def homing(episodes: int, dimensions: int = 3, steps: int = 50, seed: int = 0) -> Paths:
    """Straight ways from anywhere to the origin, with a little noise."""
    generator = np.random.default_rng(seed)
    start = generator.uniform(-1, 1, (episodes, 1, dimensions))
    left = np.linspace(1, 0, steps + 1)[None, :, None]
    return start * left + 0.02 * generator.normal(size=(episodes, steps + 1, dimensions))


def unordered(episodes: int, dimensions: int = 4, steps: int = 50, seed: int = 0) -> Paths:
    """States that do not depend on the step before."""
    return np.random.default_rng(seed).normal(size=(episodes, steps + 1, dimensions))


@pytest.mark.parametrize("few", [0, 32])
@pytest.mark.parametrize(("episodes", "steps"), [(5, 60), (2, 9), (40, 10), (1, 30)])
def test_distances_equal_brute_force(
    episodes: int, steps: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW", few)  # both ways to find states of other episodes
    monkeypatch.setattr(module, "LONG", 10)
    data = transitions(wandering(episodes, steps=steps))
    ks = (1, 3, 8)
    found = coverage(data, ks, space="raw")
    rows = np.arange(len(data))  # fewer than the sample, so all are looked at
    away = np.linalg.norm(data.states[:, None].astype(float) - data.states, axis=2)
    away[rows, rows] = np.inf
    columns = np.array(ks) - 1
    assert_allclose(found.distance, np.sort(away, axis=1)[:, columns])
    same = data.episode[:, None] == data.episode
    others = np.sort(np.where(same, np.inf, away), axis=1)[:, columns]
    assert_allclose(found.held_out, others)
    order = np.argsort(away, axis=1, kind="stable")
    own = np.take_along_axis(same, order, axis=1)
    assert_allclose(found.own, np.stack([own[:, :k].mean(axis=1) for k in ks], axis=1))
    moved = np.linalg.norm(data.next_states - data.states, axis=1)
    assert found.step == pytest.approx(np.median(moved))


@pytest.mark.parametrize("paths", [wandering, homing, unordered])
def test_24_episodes_are_sparse_where_2000_are_dense(paths: Callable[[int], Paths]) -> None:
    sparse, dense = coverage(transitions(paths(24))), coverage(transitions(paths(2000)))
    assert sparse.level == "too sparse"
    assert sparse.verdict().startswith("too sparse for local estimates here: ")
    assert dense.level == "dense enough"
    assert dense.verdict().startswith("dense enough for local estimates: ")


def test_verdict_does_not_depend_on_units() -> None:
    for episodes in (24, 300):
        paths = wandering(episodes)
        plain = coverage(transitions(paths), space="raw")
        for scale in (1e-3, 1e3):
            scaled = coverage(transitions(scale * paths), space="raw")
            assert_array_equal(scaled.isolated, plain.isolated)
            assert_allclose(scaled.held_out, scale * plain.held_out, rtol=1e-4)


def test_regions_are_named_by_the_ranges_of_columns() -> None:
    paths = wandering(5, 3, steps=60) * [5_000.0, 0.01, 1.0] + [240_000.0, 0.2, 0.0]
    signals = Signals(("pressure", "price", "load"), units={"pressure": "Pa", "price": "EUR"})
    data = replace(transitions(paths), info=DataInfo("plant", signals=signals))
    found = coverage(data, (3,))  # all of the 300 states are looked at
    for region in found.regions():
        rows = data.states[found.region == region["region"]].astype(np.float64)
        low, high = np.percentile(rows, (10, 90), axis=0)
        told = re.findall(r"(\w+) (\S+) … ([^\s,]+)( Pa| EUR)?", region["where"])
        assert 1 <= len(told) <= 2
        for name, least, most, unit in told:
            at = signals.observation.index(name)
            assert (float(least), float(most)) == (
                float(f"{low[at]:.4g}"),
                float(f"{high[at]:.4g}"),
            )
            assert unit.strip() == signals.units.get(name, "")


def test_a_sparse_corner_is_named() -> None:
    """300 episodes share a small place; 80 lie far from them and from one another."""
    many, few = wandering(300, 2), wandering(80, 2, seed=1)
    few += [200, 0] + 50 * np.random.default_rng(2).normal(size=(80, 1, 2))
    found = coverage(transitions(np.concatenate([many, few])))
    assert found.level == "sparse in places"
    lonely = {r["region"] for r in found.regions() if r["level"] == "too sparse"}
    assert lonely
    named = "; ".join(f"{region} ({found.where[region]})" for region in sorted(lonely))
    assert found.verdict().endswith(f"regions {named}.")
    far = found.plane[:, 0] > 1
    assert found.isolated[far].mean() > 0.9
    assert found.isolated[~far].mean() < 0.2


def test_each_reason_alone_isolates_a_state() -> None:
    """Of own episode, too many steps away, too far for the data; then none, and just not."""
    own = np.array([[0.6], [0.1], [0.1], [0.1], [0.5]])
    held_out = np.array([[1.0], [4.1], [1.0], [1.0], [4.0]])
    found = Coverage("x", 5, 5, (20,), 1.0, 100.0, held_out, held_out, own, own, own[:, 0])
    assert found.isolated[:, 0].tolist() == [True, True, False, False, False]
    near = replace(found, extent=3.9)  # a quarter of it is less than 1
    assert near.isolated[:, 0].tolist() == [True, True, True, True, True]


def test_regions_hold_equally_many_states() -> None:
    found = coverage(transitions(wandering(40)))
    regions = found.regions()
    assert [region["region"] for region in regions] == list(range(16))
    assert {region["states"] for region in regions} <= {62, 63}
    total = sum(region["isolated"] * region["states"] for region in regions)
    assert total == pytest.approx(found.isolated[:, found.headline].sum())


def test_one_episode_cannot_be_held_out() -> None:
    found = coverage(transitions(wandering(1)), (5,))
    assert found.level == "too sparse"
    assert "a single episode" in found.verdict()
    assert found.as_json()["neighbours"][0]["held_out"]["p50"] is None


def test_logs_of_single_steps_are_judged_by_their_extent() -> None:
    """Every s' is s, as in a log of decisions without a successor."""
    states = np.random.default_rng(0).normal(size=(3000, 1, 2))
    found = coverage(transitions(np.repeat(states, 2, axis=1)))
    assert found.step == 0
    assert found.level == "dense enough"


@pytest.mark.parametrize("k", [(), (0,), (-3, 10), (600,)])
def test_impossible_k_is_refused(k: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="between 1 and 599"):
        coverage(transitions(wandering(12)), k)


@pytest.mark.parametrize("wrong", [{"queries": 0}, {"seed": -1}])
def test_impossible_sample_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must be at least"):
        coverage(transitions(wandering(12)), **wrong)


# --- embedded and real data --------------------------------------------------------------------


def episodes_of(data: Transitions, count: int) -> Transitions:
    chosen = np.random.default_rng(0).choice(np.unique(data.episode), count, replace=False)
    return data.subset(np.isin(data.episode, chosen))


def test_embedded_data_is_dense_and_24_of_its_episodes_are_not() -> None:
    data = load_dataset("hopper-mini")
    assert coverage(data).level == "dense enough"
    assert coverage(episodes_of(data, 24)).level == "too sparse"


def isolated(found: Coverage) -> float:
    return float(found.isolated[:, found.headline].mean())


def test_real_data(d4rl_dir: Path) -> None:
    """25 human demonstrations of one task are sparse; 19 that closely agree are not."""
    door = coverage(load_dataset(d4rl_dir / "door-human-v1.hdf5"))
    complete = coverage(load_dataset(d4rl_dir / "kitchen-complete-v0.hdf5"))
    data = load_dataset(d4rl_dir / "kitchen-partial-v0.hdf5")
    partial, few = coverage(data), coverage(episodes_of(data, 24))
    assert (door.level, complete.level) == ("too sparse", "dense enough")
    assert (partial.level, few.level) == ("dense enough", "too sparse")
    assert isolated(door) > 0.9
    assert max(isolated(complete), isolated(partial)) < 0.12


# --- command -----------------------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    argv = ["hopper-mini", "--k", "10", "20", "--queries", "100", "--out", str(out)]
    result = CoverageOptions.parse("coverage", [*argv, "--json"]).execute()
    assert capsys.readouterr().out == ""
    assert json.loads((out / "coverage.json").read_text()) == result
    assert (out / "coverage.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(out.iterdir())) == 2
    assert result["k"] == [10, 20]
    assert (result["queries"], result["verdict_k"]) == (100, 20)
    medians = [row["held_out"]["p50"] for row in result["neighbours"]]
    assert medians == sorted(medians)
    assert sum(region["states"] for region in result["regions"]) == 100
    assert CoverageOptions.parse("coverage", argv).execute() == result
    assert "dense enough for local estimates" in capsys.readouterr().out
