"""What critics say of the same pairs: numbers against NumPy's own, pictures, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import icql
import pendulum
from icql.algos.base import Spec
from icql.algos.sac import SAC
from icql.analysis import agreement, c_statistics, values_of
from icql.cli.main import main
from icql.errors import UserError
from icql.online import Snapshot
from icql.settings.algorithms import SACSettings
from icql.weights import save_weights

SMALL = {"batch_size": 8, "hidden": [8], "policy.hidden": [8]}
LOCAL = {"context.k": 3, "local.layers": 2, "local.features": 4, "local.c_scale": 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    made = tmp_path_factory.mktemp("analysis")
    log = str(pendulum.make_data(made / "pendulum.npz", steps=300))
    rest: Any = {"dataset": log, "steps": 4, "run": {"episodes": 0}, "quiet": True}
    icql.train("icql", out=made / "icql", settings={**SMALL, **LOCAL}, **rest)
    icql.train("iql", out=made / "iql", seeds=2, settings=SMALL, **rest)
    icql.train("icql-graph", out=made / "graph", settings={"policy.hidden": [8]}, **rest)
    icql.train("bc", out=made / "bc", settings={"policy.hidden": [8]}, **rest)
    for name, width in (("sac", 4), ("narrow", 2)):
        state = SAC(SACSettings(hidden=(8,)), Spec(width, 1, 0)).init(jax.random.key(0))
        save_weights(made / f"{name}.safetensors", Snapshot.of(state))
    return made


def test_all_critics_are_asked_about_the_same_pairs(folder: Path) -> None:
    runs = [folder / name for name in ("icql", "iql", "graph")]
    values = values_of(runs, count=50, oracle=folder / "sac.safetensors")
    assert [critic.label for critic in values.critics] == ["icql", "iql", "icql-graph"]
    assert [critic.values.shape for critic in values.critics] == [(1, 50), (2, 50), (1, 50)]
    data = icql.load_dataset(folder / "pendulum.npz")
    s, a = data.states[values.rows], data.actions[values.rows]
    iql = icql.load_critic(folder / "iql")
    np.testing.assert_allclose(values.critics[1].values[1], iql.q(s, a, seed=1), rtol=1e-6)
    assert not np.allclose(*values.critics[1].values)
    layered = values.critics[0]
    assert layered.by_layer is not None
    np.testing.assert_allclose(  # the last layer is what the first critic says
        layered.by_layer[-1], icql.load_critic(folder / "icql").trace(s, a)[-1], rtol=1e-6
    )
    assert layered.c is not None
    np.testing.assert_allclose(layered.c["diagonal"], 1 / 4, rtol=0.1)  # C starts as I/d
    assert values.critics[1].c is None
    assert values.truth[0] == "the oracle"
    assert values.oracle is not None
    assert values.oracle.shape == (50,)


def test_runs_of_one_algorithm_are_told_apart_by_their_folders(folder: Path) -> None:
    hashed = folder / "5fc93672271cba9bd065953f05239613" / "iql"
    shutil.copytree(folder / "iql", hashed)
    values = values_of([folder / "icql", folder / "iql", hashed], count=5)
    labels = [critic.label for critic in values.critics]
    above = folder.name if len(folder.name) <= 20 else f"{folder.name[:8]}…"
    assert labels == ["icql", f"iql in {above}/iql", "iql in 5fc93672…/iql"]


def test_a_runs_own_policy_is_no_oracle(folder: Path) -> None:
    with pytest.raises(UserError, match=r"holds no SAC policy.*icql data collect"):
        values_of([folder / "iql"], count=5, oracle=folder / "iql" / "policy.safetensors")


def test_statistics_of_c_are_those_of_its_matrices() -> None:
    c = np.random.default_rng(0).normal(size=(3, 5, 4, 4))
    found = c_statistics(c)
    for layer in range(5):
        own = c[:, layer]
        singular = [np.linalg.svd(matrix, compute_uv=False) for matrix in own]
        np.testing.assert_allclose(found["spectral"][layer], np.mean([x[0] for x in singular]))
        sizes = [np.sqrt((x**2).sum()) for x in singular]
        np.testing.assert_allclose(found["frobenius"][layer], np.mean(sizes))
        np.testing.assert_allclose(
            found["diagonal"][layer], np.mean([np.trace(m) / 4 for m in own])
        )
        beside = [np.sqrt(np.mean(m[~np.eye(4, dtype=bool)] ** 2)) for m in own]
        np.testing.assert_allclose(found["off"][layer], np.mean(beside))


def test_agreement_of_each_seed() -> None:
    truth = np.arange(10.0)
    found = agreement(np.stack([np.exp(truth), -truth, np.ones(10)]), truth)
    np.testing.assert_allclose(found["spearman"], [1, -1, np.nan])
    assert found["pearson"][0] == pytest.approx(np.corrcoef(np.exp(truth), truth)[0, 1])
    assert np.isnan(agreement(truth[None], np.ones(10))["pearson"][0])


def test_the_command_tells_and_draws(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(folder / "icql"), str(folder / "iql")]
    assert main(["analyse", *runs, "--states", "40", "--out", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["against"] == "the logged outcome"
    assert [len(critic["spearman"]) for critic in told["critics"]] == [1, 2]
    assert {Path(path).name for path in told["pictures"]} == {
        *("value_maps.png", "agreement.png", "q_by_layer.png", "c_statistics.png")
    }
    assert all(Path(path).stat().st_size > 5_000 for path in told["pictures"])


@pytest.mark.parametrize(
    ("runs", "more", "message"),
    [
        ([], {}, "name at least one run"),
        (["bc"], {}, "bc has no critic"),
        (["iql"], {"count": 2}, "2 pairs are too few"),
        (["iql"], {"oracle": "narrow.safetensors"}, "knows 2 observations and 1 actions"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    folder: Path, runs: list[str], more: dict[str, Any], message: str
) -> None:
    if "oracle" in more:
        more = {"oracle": folder / more["oracle"]}
    with pytest.raises(UserError, match=message):
        values_of([folder / run for run in runs], **more)


def test_runs_on_other_data_are_refused(folder: Path, tmp_path: Path) -> None:
    log = str(pendulum.make_data(tmp_path / "other.npz", steps=200))
    run: Any = {"episodes": 0}
    icql.train(
        "iql", dataset=log, steps=1, out=tmp_path / "run", settings=SMALL, run=run, quiet=True
    )
    with pytest.raises(UserError, match="other data than"):
        values_of([folder / "iql", tmp_path / "run"])
