"""Whole runs: they learn, they repeat to the bit, and a kill loses nothing but time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import icql
import pendulum
from icql.algos.base import Spec
from icql.algos.iql import IQL
from icql.data.tasks import get_task
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval.retriever import Nearest
from icql.seals import write_sealed
from icql.settings.algorithms import BCSettings, DTSettings, IQLSettings
from icql.settings.change import override
from icql.settings.contexts import DataSettings
from icql.settings.grid import Member
from icql.training.desk import Watch
from icql.training.device import fit_normaliser
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder
from icql.training.spec import observation_noise

TINY = {
    "batch_size": 32,
    "hidden": [32, 32],
    "policy.hidden": [32, 32],
    "context.k": 5,
    "local.layers": 4,
    "local.features": 16,
}
OPTIONS = [
    *("--batch-size", "32", "--hidden", "32", "32", "--policy.hidden", "32", "32"),
    *("--context.k", "5", "--local.layers", "4", "--local.features", "16", "--log-every", "50"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory, pictures: Any) -> dict:
    with pictures():
        return icql.train(
            "icql",
            task="pendulum-test",
            dataset=str(data),
            steps=1500,
            seeds=2,
            out=tmp_path_factory.mktemp("runs") / "trained",
            settings={**TINY, "policy.dropout": 0.0, "data.reward_scale": 0.01},
            run={"evaluate_every": 750, "episodes": 5},
            quiet=True,
        )


def test_training_beats_the_untrained_policy(trained, data, tmp_path):
    untrained = icql.train(
        "icql",
        task="pendulum-test",
        dataset=str(data),
        steps=1,
        seeds=2,
        out=tmp_path / "untrained",
        settings=TINY,
        run={"episodes": 5},
        quiet=True,
    )
    assert trained["score"]["mean"] > 3 * untrained["score"]["mean"] + 10
    assert trained["score"]["mean"] > 0.8 * trained["behaviour_score"]


def test_the_run_folder_holds_everything(trained):
    folder = RunFolder.open(trained["run"])
    for name in (
        "run.json",
        "metrics.jsonl",
        "policy.safetensors",
        "critic.safetensors",
        "result.json",
        "plots/overview.png",
        "plots/score.png",
        "plots/q_by_layer.png",
        "plots/state_map.png",
    ):
        assert (folder.path / name).stat().st_size > 0, name
    assert any((folder.path / "tensorboard").iterdir())
    assert folder.result() == trained
    kinds = [row["kind"] for row in folder.rows()]
    assert kinds.count("evaluation") == 2
    assert folder.manifest["data_hash"] == trained["data_hash"]
    assert folder.manifest["versions"]["mujoco"]


def test_final_and_best_scores_stand_apart(trained):
    score = trained["score"]
    assert score["mean"] == pytest.approx(np.mean(score["per_seed"]))
    assert np.shape(score["returns"]) == (2, 5)
    assert score["best"]["mean"] >= score["mean"]


def test_loaded_policy_and_critic(trained, data):
    transitions = icql.load_dataset(data, task="pendulum-test")
    policy = icql.load_policy(trained["run"])
    actions = policy.act(transitions.states[:7])
    assert actions.shape == (7, 1)
    assert np.abs(actions).max() <= 1
    np.testing.assert_allclose(policy.act(transitions.states[0]), actions[0], rtol=1e-5)
    assert not np.allclose(actions, policy.act(transitions.states[:7], seed=1))
    with pytest.raises(icql.UserError, match="no seed 9"):
        policy.act(transitions.states[:7], seed=9)
    with pytest.raises(icql.UserError, match="observations"):
        policy.act(np.zeros((2, 3)))

    critic = icql.load_critic(trained["run"])
    q = critic.q(transitions.states[:7], transitions.actions[:7])
    trace = critic.trace(transitions.states[:7], transitions.actions[:7])
    assert trace.shape == (4, 7)
    np.testing.assert_allclose(trace[-1], q, rtol=1e-3)
    rows, distances = critic.neighbours(transitions.states[:7])
    assert rows.shape == distances.shape == (7, 5)
    np.testing.assert_allclose(distances[:, 0], 0, atol=1e-9)


def test_a_critic_prepares_its_data_once(trained, monkeypatch):
    prepared, real = [], Nearest.__init__

    def counted(self, *how, **more):
        prepared.append(self)
        real(self, *how, **more)

    monkeypatch.setattr(Nearest, "__init__", counted)
    critic = icql.load_critic(trained["run"])
    states, actions = critic.data.states[:9], critic.data.actions[:9]
    for _ in range(2):
        critic.q(states, actions)
        critic.trace(states, actions)
        critic.neighbours(states + 0.01)
    assert len(prepared) == 1


def test_evaluation_repeats_from_its_seed(trained):
    policy = icql.load_policy(trained["run"])
    first, again, other = (policy.evaluate(episodes=3, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first[0].returns, again[0].returns)
    assert len(other) == len(policy.seeds)


def run_cli(*arguments: str, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "ICQL_CACHE": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-m", "icql", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)


def test_killed_run_resumes_to_the_same_bits(data, tmp_path):
    """Two processes with one seed agree, though one of them was killed on the way."""

    def start(out: Path) -> subprocess.Popen[str]:
        options = ["--steps", "600", "--episodes", "0", "--checkpoint-every", "100", *OPTIONS]
        arguments = [
            "train",
            "--algo",
            "icql",
            "--dataset",
            str(data),
            "--out",
            str(out),
            "--json",
            *options,
        ]
        return run_cli(*arguments, cache=tmp_path / "cache")

    beside = start(tmp_path / "whole")
    killed_out = tmp_path / "killed"
    process = start(killed_out)
    deadline = time.monotonic() + 240
    while not list(killed_out.glob("checkpoints/[1-9]00")):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed_out / "result.json").exists()

    whole = finish(beside)
    resumed = finish(
        run_cli("train", "--resume", "--out", str(killed_out), "--json", cache=tmp_path)
    )
    assert resumed["parameter_hash"] == whole["parameter_hash"]
    steps = [row["step"] for row in RunFolder.open(killed_out).rows() if row["kind"] == "train"]
    assert steps == list(range(50, 601, 50))


def test_the_precision_of_a_run_reaches_its_updates_and_its_folder(data, tmp_path):
    def train(precision):
        return icql.train(
            "bc",
            dataset=str(data),
            steps=2,
            out=tmp_path / precision,
            run={"episodes": 0, "precision": precision},
            quiet=True,
        )

    hashes = [train(precision)["parameter_hash"] for precision in ("float32", "bfloat16")]
    assert hashes[0] != hashes[1]
    assert RunFolder.open(tmp_path / "bfloat16").manifest["run"]["precision"] == "bfloat16"


def test_a_folder_of_another_version_says_so(data, tmp_path):
    out = tmp_path / "run"
    icql.train("bc", dataset=str(data), steps=2, out=out, run={"episodes": 0}, quiet=True)
    manifest = json.loads((out / "run.json").read_text())
    manifest["settings"]["width"] = 3
    del manifest["seal"]  # which the other version would have made of it
    write_sealed(out / "run.json", manifest)
    for look in (icql.load_policy, lambda path: Plan.read(RunFolder.open(path))):
        with pytest.raises(UserError, match=r"run\.json: does not fit this version .*'width'"):
            look(out)


def test_resume_refuses_other_data_and_other_settings(trained, data, tmp_path):
    changed = pendulum.make_data(tmp_path / "changed.npz", steps=500, seed=1)
    run = json.loads((Path(trained["run"]) / "run.json").read_text())
    copy = tmp_path / "copy"
    copy.mkdir()
    write_sealed(copy / "run.json", {**run, "dataset": str(changed)})
    with pytest.raises(icql.UserError, match="other data"):
        icql.train(resume=True, out=copy, quiet=True)
    with pytest.raises(icql.UserError, match="expectile"):
        icql.train(resume=True, out=trained["run"], settings={"expectile": 0.8}, quiet=True)


def test_divergence_is_named(data, tmp_path):
    with pytest.raises(icql.UserError, match="diverged"):
        icql.train(
            "icql",
            dataset=str(data),
            steps=60,
            out=tmp_path / "run",
            settings={**TINY, "local.c_scale": 1e12, "local.layers": 8},
            run={"episodes": 0},
            quiet=True,
        )


def test_without_a_task_there_is_no_score(data, tmp_path):
    result = icql.train(
        "bc",
        dataset=str(data),
        steps=5,
        out=tmp_path / "run",
        settings={"policy.hidden": [8]},
        quiet=True,
    )
    assert result["score"] is None
    with pytest.raises(icql.UserError, match="no task"):
        icql.load_policy(tmp_path / "run").evaluate()
    with pytest.raises(icql.UserError, match="no critic"):
        icql.load_critic(tmp_path / "run")


def test_a_run_that_does_not_fit_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr("icql.training.loop.free_memory", lambda device: 1000)
    with pytest.raises(icql.UserError, match=r"an update needs .* the device has 1,000 B free"):
        icql.train(
            "bc",
            dataset=str(data),
            out=tmp_path / "run",
            settings={"policy.hidden": [8]},
            quiet=True,
        )
    assert not (tmp_path / "run").exists()


def test_a_critic_beyond_all_that_rewards_allow_is_said_so(data, tmp_path, capsys):
    kwargs = {"algo": "iql", "dataset": str(data), "steps": 20, "seeds": 2}
    small = {"batch_size": 16, "hidden": [16, 16], "policy.hidden": [16, 16]}
    fine = icql.train(**kwargs, run={"episodes": 0}, settings=small, out=tmp_path / "fine")
    assert fine["warnings"] == []
    assert "run away" not in capsys.readouterr().err
    # with rewards next to nothing, the values that a fresh network gives are too high already
    tiny = {**small, "data.reward_scale": 1e-9}
    wrong = icql.train(**kwargs, run={"episodes": 0}, settings=tiny, out=tmp_path / "wrong")
    assert [w for w in wrong["warnings"] if "seed 0" in w or "seed 1" in w] == wrong["warnings"]
    assert wrong["warnings"]
    said = capsys.readouterr().err
    assert said.count("run away") == 1  # once while it trains
    assert "--bound-values" in said
    tiny["bound_values"] = True
    braked = icql.train(**kwargs, run={"episodes": 0}, settings=tiny, out=tmp_path / "braked")
    assert "--bound-values" not in capsys.readouterr().err  # that is what it has
    hashes = {run["parameter_hash"] for run in (wrong, braked)}
    assert len(hashes) == 2  # the range of rewards reaches the update


def test_the_largest_value_is_the_largest_reward_forever():
    members = [Member(0, {}), Member(1, {"discount": 0.5})]

    def watching(*rewards):
        return Watch(IQL(IQLSettings(discount=0.9), Spec(3, 2, 10, rewards)), members)

    watch = watching(0.0, 2.0)
    assert watch.warnings({"q": [19.9, 3.9]}) == []
    assert watch.warnings({"q": [20.1, 3.9]}) == []  # within a hundredth of what is possible
    assert len(watch.warnings({"q": [20.3, 3.9]})) == 1
    assert "seed 1" in watch.warnings({"q": [19.9, 4.1]})[0]
    assert watching(-2.0, -1.0).limits(members[0])[1] == 0
    assert watching(-2.0, -1.0).warnings({"q": [0.1, 0.01]}) == []  # as fresh networks are
    assert len(watching(-2.0, -1.0).warnings({"q": [0.3, 0.01]})) == 1
    assert watch.warnings({"policy_loss": [1e9, 1e9]}) == []
    assert watch.first({"q": [1.0, 1.0]}) is None
    assert watch.first({"q": [30.0, 1.0]}) is not None
    assert watch.first({"q": [30.0, 1.0]}) is None


# --- Noise on observations, in the units that the policy sees ---------------------------------


def kitchen(observations: int = 60) -> Mock:
    states = np.random.default_rng(0).normal(size=(50, observations)).astype(np.float32)
    states *= np.linspace(0.5, 4, observations, dtype=np.float32)
    return Mock(spec=Transitions, states=states, observation_dim=observations, rewards=states[:, 0])


def noise_of(data, task, normalise=True, **policy):
    settings = override(BCSettings(), {f"policy.{name}": value for name, value in policy.items()})
    normaliser = fit_normaliser(data, DataSettings(normalise_states=normalise))
    return observation_noise(settings, task, data, normaliser)


def test_noise_that_the_task_knows_is_scaled_as_states_are():
    data, task = kitchen(), get_task("kitchen-partial-v0")
    known = np.asarray(task.noise)
    spread = data.states.astype(np.float64).std(0)
    np.testing.assert_allclose(noise_of(data, task, noise=2.0), 2 * known / spread, rtol=1e-5)
    np.testing.assert_allclose(noise_of(data, task, False, noise=2.0), 2 * known, rtol=1e-6)
    # a task that knows its own noise has no use for a share of the spread
    assert noise_of(data, task, relative_noise=0.1) == ()
    assert noise_of(data, task) == ()


@pytest.mark.parametrize("task", [None, "hopper-mini"])
def test_elsewhere_noise_is_a_share_of_each_columns_spread(task):
    data, named = kitchen(11), task and get_task(task)
    spread = data.states.astype(np.float64).std(0)
    np.testing.assert_allclose(noise_of(data, named, relative_noise=0.1), 0.1, rtol=1e-5)
    found = noise_of(data, named, False, relative_noise=0.1)
    np.testing.assert_allclose(found, 0.1 * spread, rtol=1e-5)
    assert noise_of(data, named, noise=1.0) == ()


def test_an_algorithm_without_such_a_policy_has_no_noise():
    data = kitchen()
    normaliser = fit_normaliser(data, DataSettings())
    assert observation_noise(DTSettings(), get_task("kitchen-partial-v0"), data, normaliser) == ()


def test_noise_of_other_observations_is_refused():
    with pytest.raises(UserError, match=r"policy\.noise, task kitchen.*60 observations.*has 11"):
        noise_of(kitchen(11), get_task("kitchen-partial-v0"), noise=1.0)
    assert noise_of(kitchen(11), get_task("kitchen-partial-v0")) == ()


def test_noise_of_a_run_reaches_its_updates(data, tmp_path):
    def train(noise):
        return icql.train(
            "bc",
            dataset=str(data),
            steps=2,
            out=tmp_path / str(noise),
            settings={"policy.hidden": [8], "batch_size": 8, "policy.relative_noise": noise},
            run={"episodes": 0},
            quiet=True,
        )["parameter_hash"]

    assert train(0.0) != train(0.5)
