"""A grid of settings trains in one program what separate runs would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icql
import pendulum
from icql.algos.base import Batch, Spec, Transition
from icql.algos.presets import resolve_preset
from icql.algos.registry import make_algorithm
from icql.cli.main import main
from icql.errors import UserError
from icql.settings.change import override
from icql.settings.grid import check_names, members_of, plain_grid, read_grid
from icql.training.vary import check_grid

GRID = {"beta": [1, 10], "expectile": [0.5, 0.9]}
RUN = {"episodes": 2, "evaluate_every": 10, "checkpoint_every": 10, "log_every": 10}
OBS, ACT, BATCH, K = 3, 2, 4, 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz")


def train(data: Path, out: Path, settings: dict[str, Any] | None = None, **more: Any) -> Any:
    return icql.train(
        "iql",
        task="pendulum-test",
        dataset=str(data),
        steps=20,
        seeds=2,
        out=out,
        settings={"batch_size": 8, "hidden": [8], "policy.hidden": [8], **(settings or {})},
        run=RUN,
        quiet=True,
        **more,
    )


@pytest.fixture(scope="module")
def gridded(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(data, tmp_path_factory.mktemp("runs") / "grid", grid=GRID)


def test_a_member_is_the_run_trained_alone(gridded: Any, data: Path, tmp_path: Path) -> None:
    place = {"beta": 10.0, "expectile": 0.5}
    alone = train(data, tmp_path / "alone", place)
    one = next(c for c in gridded["score"]["combinations"] if c["settings"] == place)
    np.testing.assert_allclose(one["returns"], alone["score"]["returns"])
    assert one["best"] == alone["score"]["best"]
    states = icql.load_dataset(data, task="pendulum-test").states[:9]
    actions = icql.load_dataset(data, task="pendulum-test").actions[:9]
    policies = [icql.load_policy(run["run"]) for run in (gridded, alone)]
    critics = [icql.load_critic(run["run"]) for run in (gridded, alone)]
    said = [repr(found).partition(": ")[2] for found in (policies[1], critics[1])]
    assert said == ["2 members, seed 0 … seed 1>"] * 2  # not the arrays
    for seed in (0, 1):
        found = policies[0].act(states, seed=seed, settings=place)
        expected = policies[1].act(states, seed=seed)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert not np.allclose(policies[0].act(states, seed=seed), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            critics[0].q(states, actions, seed=seed, settings=place),
            critics[1].q(states, actions, seed=seed),
            rtol=1e-3,
            atol=1e-5,
        )
    with pytest.raises(UserError, match="no beta=2, seed 0; it has beta=1, expect"):
        policies[0].act(states, seed=0, settings={"beta": 2})


def test_the_folder_records_the_grid(gridded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((Path(gridded["run"]) / "run.json").read_text())
    assert manifest["grid"] == gridded["grid"] == GRID
    assert [c["settings"] for c in gridded["score"]["combinations"]] == [
        {"beta": b, "expectile": e} for b in GRID["beta"] for e in GRID["expectile"]
    ]
    assert main(["evaluate", gridded["run"], "--episodes", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["combinations"]
    assert [np.shape(one["returns"]) for one in told] == [(2, 2)] * 4
    assert main(["evaluate", gridded["run"], "--episodes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("beta=1, expectile=0.9, seed 0: score ")
    assert lines[-1].endswith("beta=10, expectile=0.9")
    again = icql.train(resume=True, out=gridded["run"], quiet=True)
    assert again["parameter_hash"] == gridded["parameter_hash"]
    assert again["score"] == gridded["score"]
    with pytest.raises(UserError, match="--grid: the run was started with"):
        icql.train(resume=True, out=gridded["run"], grid={"beta": [1]}, quiet=True)


def test_the_command_line_reads_a_grid() -> None:
    read = plain_grid(read_grid(["beta=1,3", "critic-learning-rate=1e-3"]))
    assert read == {"beta": (1.0, 3.0), "critic_learning_rate": (1e-3,)}
    labels = [member.label for member in members_of((7, 8), read)]
    assert labels[1:3] == [
        "beta=1, critic_learning_rate=0.001, seed 8",
        "beta=3, critic_learning_rate=0.001, seed 7",
    ]
    for wrong in ("beta", "beta=", "beta=1,x"):
        with pytest.raises(UserError, match="must be a list of numbers"):
            plain_grid(read_grid([wrong]))
    for values in ([], [1.0, 1.0]):
        with pytest.raises(UserError, match="beta: must list each value once"):
            plain_grid({"beta": values})


def shapes(*leading: int) -> Transition:
    def of(*last: int) -> jax.Array:
        return jnp.zeros((*leading, *last))

    return jax.eval_shape(lambda: Transition(of(OBS), of(ACT), of(), of(OBS), of(ACT), of()))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"beta": [1.0, 3.0], "discount": [0.9]}, None),
        (
            {"context.k": [3.0]},
            "context.k: is no real number, and only those vary within one program",
        ),
        ({"policy.dropout": [0.1]}, r"policy.dropout: does not vary .*vary some of: .*\bbeta\b"),
        ({"data.reward_scale": [1.0, 2.0]}, "data.reward_scale: does not vary"),
        ({"betta": [1.0]}, "no setting 'betta'. Did you mean 'beta'"),
        ({"expectile": [0.5, 1.5]}, r"expectile: must be in \(0, 1\), not 1\.5\."),
    ],
)
def test_what_cannot_vary_is_refused(grid: dict[str, Any], message: str | None) -> None:
    settings = override(resolve_preset("iql", "quick", None).settings, {"hidden": [4]})
    iql = make_algorithm("iql", override(settings, {"batch_size": BATCH}), Spec(OBS, ACT, 10))

    def check() -> None:
        check_names(grid, iql.settings)
        check_grid(iql, grid, Batch(shapes(BATCH)))

    if message is None:
        check()
        return
    with pytest.raises(UserError, match=message):
        check()


def test_a_local_critic_keeps_its_discount() -> None:
    """TD inside the context is compiled for one γ, so that another would reach only the target."""
    changes = {"hidden": [4], "batch_size": BATCH, "context.k": K, "local.features": 2}
    changes |= {"policy.hidden": [4], "local.layers": 1}
    settings = override(resolve_preset("icql", "quick", None).settings, changes)
    algorithm = make_algorithm("icql", settings, Spec(OBS, ACT, 10))
    batch = Batch(shapes(BATCH), shapes(BATCH, K), shapes(BATCH, K))
    check_grid(algorithm, {"local.c_scale": [0.5, 1.0], "beta": [1.0]}, batch)
    with pytest.raises(UserError, match="discount: does not vary"):
        check_grid(algorithm, {"discount": [0.9, 0.99]}, batch)
    with pytest.raises(UserError, match="spectral_bound: does not vary"):
        check_grid(algorithm, {"local.spectral_bound": [0.0, 1.0]}, batch)
    with pytest.raises(UserError, match=r"local.ridge: does not vary"):  # linear has no λ
        check_grid(algorithm, {"local.ridge": [0.1, 1.0]}, batch)
    ridge = make_algorithm("icql", override(settings, {"local.module": "ridge"}), algorithm.spec)
    check_grid(ridge, {"local.ridge": [0.1, 1.0]}, batch)
