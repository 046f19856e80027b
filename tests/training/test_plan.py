"""A plan is made or read; resuming refuses what would change the run, and may add updates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icql
import pendulum
from icql.cli import main
from icql.errors import UserError
from icql.settings.algorithms import DMGSettings, DTSettings, IQLSettings, RADTSettings
from icql.settings.shared import PolicySettings
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder

SMALL = {"batch_size": 8, "policy.hidden": [8]}
RUN = {"episodes": 0, "log_every": 10, "checkpoint_every": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=400)


def train(data: Path, out: Path, **more: Any) -> dict[str, Any]:
    given = {"steps": 20, "seeds": 2, "settings": SMALL, "run": RUN, **more}
    return icql.train("bc", dataset=str(data), out=out, quiet=True, **given)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(data, out)
    return out


def test_a_plan_is_recorded_and_read_back(finished: Path, data: Path) -> None:
    plan = Plan.read(RunFolder.open(finished))
    own = {"data.normalise_states": True, "data.spread": "quartiles"}  # a log of one's own
    made = Plan.make("bc", dataset=str(data)).asked(
        seeds=2, settings={**SMALL, **own}, run={**RUN, "steps": 20}
    )
    assert plan == made
    assert (plan.preset, plan.seeds, plan.task) == ("quick", (0, 1), None)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--preset", "paper"], "--preset"),
        (["--seed", "1"], "--seed"),
        (["--seeds=3"], "--seeds"),
        (["--grid", "policy.learning-rate=1e-3,1e-4"], "--grid"),
        (["--task", "pendulum-test"], "--task"),
        (["--algo=dt"], "--algo"),
        (["--policy.dropout", "0.3"], "--policy.dropout"),
        (["--data.reward-scale=2"], "--data.reward-scale"),
        (["--log-every", "5"], "--log-every"),
        (["--steps", "10"], "--steps"),
    ],
)
def test_what_would_change_the_run_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str], options: list[str], where: str
) -> None:
    before = (finished / "run.json").read_bytes()
    assert main(["train", "--resume", "--out", str(finished), *options]) == 2
    assert f"error: {where}: the run was started with" in capsys.readouterr().err
    assert (finished / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"preset": "paper"}, "--preset"),
        ({"seed": 1}, "--seed"),
        ({"algo": "dt"}, "--algo"),
        ({"grid": {"policy.learning_rate": [1e-3]}}, "--grid"),
        ({"settings": {"data.reward_scale": 2.0}}, "--data.reward-scale"),
        ({"run": {"episodes": 3}}, "--episodes"),
    ],
)
def test_the_api_refuses_it_as_well(finished: Path, given: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError, match=f"^{where}: the run was started with"):
        icql.train(resume=True, out=finished, quiet=True, **given)


def test_what_the_run_has_may_be_said_again(finished: Path, data: Path, tmp_path: Path) -> None:
    """And the data may have moved: the run then says where it is now."""
    out, moved = tmp_path / "run", tmp_path / "moved.npz"
    shutil.copytree(finished, out)
    shutil.copy(data, moved)
    arguments = [
        "--algo=bc",
        "--preset",
        "quick",
        "--seeds",
        "2",
        "--seed=0",
        "--policy.hidden",
        "8",
    ]
    arguments += ["--dataset", str(moved), "--json"]
    assert main(["train", "--resume", "--out", str(out), *arguments]) == 0
    assert Plan.read(RunFolder.open(out)).dataset == str(moved)


@pytest.mark.parametrize("done", [True, False])
def test_a_longer_run_is_the_one_planned_so(
    finished: Path, data: Path, tmp_path: Path, done: bool
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    if not done:
        shutil.rmtree(out / "checkpoints" / "20")
        (out / "result.json").unlink()
    whole = train(data, tmp_path / "whole", steps=40)
    longer = icql.train(resume=True, out=out, steps=40, quiet=True)
    assert longer["parameter_hash"] == whole["parameter_hash"]
    assert longer["steps"] == 40
    runs = [RunFolder.open(folder) for folder in (out, tmp_path / "whole")]
    assert runs[0].policy_path.read_bytes() == runs[1].policy_path.read_bytes()
    steps = [[row["step"] for row in run.rows() if row["kind"] == "train"] for run in runs]
    assert steps[0] == steps[1] == [10, 20, 30, 40]
    assert Plan.read(runs[0]).run.steps == 40


def test_a_result_stays_until_the_longer_run_is_finished(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    before = (out / "result.json").read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("icql.training.loop.Loop.advance", killed)
    with pytest.raises(KeyboardInterrupt):
        icql.train(resume=True, out=out, steps=30, quiet=True)
    assert (out / "result.json").read_bytes() == before
    assert json.loads((out / "run.json").read_text())["run"]["steps"] == 30  # what goes on


def test_an_interrupted_run_says_how_to_go_on(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    options = ["train", "--algo", "bc", "--dataset", str(data), "--episodes", "0"]
    monkeypatch.setattr("icql.training.loop.Loop.advance", killed)
    assert main([*options, "--out", str(out)]) == 130
    err = capsys.readouterr().err
    assert f"run: {out}\n" in err
    assert err.endswith(f"icql: interrupted. 'icql train --resume --out {out}' goes on.\n")
    monkeypatch.setattr("icql.training.trainer.examine", killed)  # nothing to go on with
    assert main([*options, "--out", str(tmp_path / "other")]) == 130
    begins = "Whatever was written is whole; the same command begins anew."
    assert capsys.readouterr().err == f"icql: interrupted. {begins}\n"


def test_a_schedule_over_the_planned_updates_is_not_stretched(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    given: dict[str, Any] = {"dataset": str(data), "steps": 2, "run": RUN, "settings": SMALL}
    icql.train("iql", out=out, quiet=True, **given)
    with pytest.raises(UserError, match=r"--steps: .* planned with 2 .*\(policy.cosine = True\)"):
        icql.train(resume=True, out=out, steps=4, quiet=True)
    assert IQLSettings(policy=PolicySettings()).scheduled_by is None
    assert DMGSettings().scheduled_by == "policy.cosine"
    assert [DTSettings(cosine=c).scheduled_by for c in (False, True)] == [None, "cosine"]
    assert RADTSettings().scheduled_by == "pretrain"
    assert RADTSettings(pretrain=1.0).scheduled_by is None


def test_a_folder_of_another_format_says_so(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    manifest = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**manifest, "format": 1}))
    with pytest.raises(UserError, match=r"was written in format 1, this version reads 2"):
        icql.load_policy(out)


def test_settings_that_nothing_reads_are_said(data, tmp_path, capsys):
    """A global critic has no context, and uniform draws no β."""
    options = ["--algo", "iql", "--dataset", str(data), "--steps", "1", "--episodes", "0"]
    small = ["--batch-size", "8", "--hidden", "8", "--policy.hidden", "8"]
    idle = ["--local.layers", "3", "--draw.beta", "2"]
    assert main(["train", *options, *small, *idle, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert "warning: --local.layers has no effect: the critic is global" in said
    assert "warning: --draw.beta has no effect: draw.by is uniform" in said
    assert "--batch-size has no effect" not in said


def test_a_unit_of_what_is_not_divided_has_no_effect() -> None:
    plan = Plan.make("icql-rank").asked(settings={"q_unit": "noise", "normalise_q": False})
    assert plan.without_effect() == {"q_unit": "normalise_q is off"}
    assert not Plan.make("icql-rank").asked(settings={"q_unit": "noise"}).without_effect()


@pytest.mark.parametrize("algo", ["icql", "fql"])
@pytest.mark.parametrize(
    ("module", "read"),
    [
        ("linear", {"layers", "c_scale", "c_learning_rate", "form"}),
        ("mlp", set()),
        ("softmax", {"blocks"}),
        ("ridge", {"ridge"}),
    ],
)
def test_every_local_module_reads_its_own_settings_alone(data, algo, module, read):
    """λ belongs to ridge, layers to the linear Transformer, blocks to softmax; φ to all."""
    changes = {"layers": 3, "c_scale": 2.0, "c_learning_rate": 0.5, "form": "dual"}
    changes |= {"blocks": 2, "ridge": 0.3, "features": 8, "module": module}
    settings = {f"local.{name}": value for name, value in changes.items()} | {"critic": "local"}
    plan = Plan.make(algo, dataset=str(data)).asked(settings=settings)
    assert set(changes) - {name.removeprefix("local.") for name in plan.without_effect()} == (
        read | {"features", "module"}
    )
    assert set(plan.without_effect().values()) <= {f"local.module is {module}"}


def test_a_grid_over_an_unknown_setting_is_refused_before_anything_is_retrieved(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr("icql.training.trainer.find_contexts", None)  # not called
    for grid, words in (({"bta": [1.0]}, "Did you mean 'beta'"), ({"context.k": [2]}, "no real")):
        with pytest.raises(UserError, match=words):
            icql.train("icql", dataset=str(data), out=tmp_path / "run", grid=grid, quiet=True)
    assert not (tmp_path / "run").exists()


def test_episodes_are_an_argument_of_train(data, tmp_path):
    result = icql.train(
        "bc",
        dataset=str(data),
        steps=1,
        episodes=0,
        settings=SMALL,
        out=tmp_path / "run",
        quiet=True,
    )
    assert result["score"] is None
    policy = icql.load_policy(tmp_path / "run")
    with pytest.raises(UserError, match=r"observations: column 1 of row 0 is nan"):
        policy.act(np.array([0.0, np.nan, 0.0, 0.0]))
