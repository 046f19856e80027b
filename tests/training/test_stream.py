"""Training from disk: the same bits as with the data on the device, whatever the budget."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import icql
import pendulum
from icql.algos.base import Spec
from icql.algos.presets import resolve_preset
from icql.algos.registry import make_algorithm
from icql.data.datasets import make_store
from icql.data.formats.store import open_store
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval import Neighbours, build_neighbours
from icql.settings.change import override
from icql.settings.contexts import DataSettings
from icql.training.corrective import corrective_of, effect_of
from icql.training.device import DeviceData, Normaliser, find_episodes, fit_normaliser
from icql.training.draws import alias_of
from icql.training.loop import Loop
from icql.training.stream import Streamed, feed
from icql.weights import tree_hash

TINY = {
    "icql": {
        "hidden": [16, 16],
        "policy.hidden": [16, 16],
        "context.k": 4,
        "local.layers": 2,
        "local.features": 8,
    },
    "iql": {"hidden": [16, 16], "policy.hidden": [16, 16]},
    "dt": {"length": 5, "layers": 1, "width": 8, "heads": 2},
    "bc": {"policy.hidden": [16, 16]},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    folder = tmp_path_factory.mktemp("data")
    pendulum.make_data(folder / "pendulum.npz")
    make_store(folder / "pendulum.npz", folder / "pendulum.icql", task="pendulum-test")
    return folder / "pendulum.icql"


def prepared(name: str, data: Transitions) -> tuple[Any, Normaliser, Neighbours | None]:
    changes = {"batch_size": 16, "data.normalise_states": True, **TINY[name]}
    settings = override(resolve_preset(name, "quick", None).settings, changes)
    algorithm = make_algorithm(name, settings, Spec(data.observation_dim, data.action_dim, 100))
    context = algorithm.needs.context
    neighbours = None if context is None else build_neighbours(data, context)
    return algorithm, fit_normaliser(data, settings.data), neighbours


@pytest.mark.parametrize(
    ("name", "weighted"),
    [("icql", False), ("iql", False), ("dt", False), ("bc", True)],
    ids=["icql", "iql", "dt", "bc, corrective rows by weight"],
)
def test_streamed_updates_are_those_of_resident_data_to_the_bit(
    name: str, weighted: bool, store: Path, request: pytest.FixtureRequest
) -> None:
    if name == "icql":  # its programs differ in their last bits when compiled in a hurry
        request.getfixturevalue("optimised")
    data = open_store(store)
    algorithm, normaliser, neighbours = prepared(name, data)
    budget = {"icql": 300_000, "iql": 100_000, "dt": 200_000, "bc": 100_000}[name]
    drawn: dict[str, Any] = {}
    if weighted:
        effect = effect_of(data)._replace(columns=np.ones(data.observation_dim, bool))
        drawn["alias"] = alias_of(np.float64(np.arange(len(data)) % 10 == 7), 5)
        drawn["corrective"] = corrective_of(effect, 0.3, normaliser.std)

    def trained(memory: int | None) -> tuple[Any, Any, str]:
        fed = feed(algorithm, data, normaliser, neighbours, seeds=2, memory=memory, **drawn)
        loop = Loop(algorithm, fed, (3, 4))
        states = loop.init()
        states, _ = loop.advance(states, 0, 7)  # ends inside a part of the streamed data
        states, metrics = loop.advance(states, 7, 40)
        return fed, metrics, tree_hash(states)

    resident, told, expected = trained(None)
    streamed, metrics, found = trained(budget)
    assert isinstance(resident, DeviceData)
    assert isinstance(streamed, Streamed)
    assert 1 < streamed.updates < 40
    assert found == expected
    for key, values in told.items():
        np.testing.assert_allclose(metrics[key], values, rtol=1e-4, atol=1e-6)
    for one, other in zip(
        jax.tree.leaves(resident.probe(50)), jax.tree.leaves(streamed.probe(50)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_run_from_a_store_is_the_run_from_its_log(
    store: Path, tmp_path: Path, pictures: Any
) -> None:
    def run(dataset: Path, memory: str | None) -> dict[str, Any]:
        return icql.train(
            "bc",
            dataset=str(dataset),
            task="pendulum-test",
            steps=60,
            out=tmp_path / f"{dataset.suffix}{memory}",
            settings={"batch_size": 16, "policy.hidden": [16, 16], "draw.by": "rank"},
            run={"episodes": 0, "evaluate_every": 30},
            memory=memory,
            quiet=True,
        )

    plain = run(store.with_suffix(".npz"), None)
    with pictures():
        streamed = run(store, "100kB")
    assert streamed["data_hash"] == plain["data_hash"]
    assert streamed["parameter_hash"] == plain["parameter_hash"]
    assert streamed["draw"] == plain["draw"]
    assert 0 < plain["draw"]["effective_share"] < 1
    assert (tmp_path / ".icql100kB" / "plots" / "overview.png").is_file()


def test_a_budget_that_holds_no_update_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"one update needs .* over the budget of 10,000 B"):
        icql.train(
            "iql", dataset=str(store), steps=1, out=tmp_path / "run", memory=10_000, quiet=True
        )
    assert not (tmp_path / "run").exists()


def test_a_changed_store_is_not_trained_on(store: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.icql"
    shutil.copytree(store, changed)
    rewards = np.load(changed / "rewards.npy", mmap_mode="r+")
    rewards[5] += 1
    rewards.flush()
    with pytest.raises(UserError, match="was changed or is damaged"):
        icql.train(dataset=str(changed), steps=1, out=tmp_path / "run", quiet=True)


def test_windows_and_returns_do_not_depend_on_blocks(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_store(store)
    normaliser = fit_normaliser(data, DataSettings(reward_scale=0.1, reward_shift=-0.5))
    whole = find_episodes(data, normaliser, 3)
    monkeypatch.setattr("icql.data.arrays.BLOCK", 7)
    small = find_episodes(data, normaliser, 3)
    for name in ("last", "step", "to_go", "episode"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(small, name))
