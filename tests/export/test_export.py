"""An exported policy says what the Python policy and alarm say, with onnxruntime alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import icql
from export.runs import ask, plant, train
from icql.cli import main
from icql.errors import UserError
from icql.export import build, policy_nodes
from icql.export.seal import CARD, verify
from icql.files import file_hash
from icql.seals import write_sealed
from icql.training.run_folder import RunFolder

WIDE = np.float32(1e9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with units, two seeds, and states that are clipped."""
    folder = tmp_path_factory.mktemp("export")
    return train(plant(folder), folder / "run", seeds=2)


def probes(run: Path, count: int = 200) -> np.ndarray:
    """States of the log, perturbed ones, and some where no log could be."""
    data = icql.load_dataset(str(run.parent / "plant.csv"))
    rng = np.random.default_rng(0)
    states = np.asarray(data.states[rng.integers(len(data), size=count)], np.float32)
    states[1::2] *= 1 + 0.1 * rng.normal(size=states[1::2].shape).astype(np.float32)
    states[:3] = [[WIDE], [-WIDE], [0]]
    return states


@pytest.mark.parametrize("seed", [0, 1])
def test_actions_are_in_the_units_of_the_log_and_alarms_are_those_of_python(run, tmp_path, seed):
    policy, states = icql.load_policy(run), probes(run)
    policy.export(tmp_path / "policy.onnx", seed=seed)
    said = ask(tmp_path / "policy.onnx", states)
    actions = policy.act(states, seed=seed)
    assert actions[:, 0].max() > 20  # percent
    assert np.abs(said["action"] - actions).max() <= 1e-5 * 100
    assert np.abs(said["action"][:, 1] - actions[:, 1]).max() <= 1e-5 * 5
    rings = policy.alarm(states)
    assert_allclose(said["distance"], rings.distance, rtol=1e-9)
    assert_array_equal(said["alarm"], rings.rings)
    assert said["alarm"].any()
    assert not said["alarm"].all()
    assert said["limit"] == rings.limit


def test_the_alarm_keeps_as_many_states_as_asked(run, tmp_path):
    card = icql.load_policy(run).export(tmp_path / "policy.onnx", states=100, rate=0.1)
    assert card["alarm"]["states"] == 100
    assert card["alarm"]["limit"] > icql.load_alarm(run, rate=0.1).limit
    sizes = [t.dims for t in onnx.load(tmp_path / "policy.onnx").graph.initializer]
    assert [8, 100] in [list(size) for size in sizes]


def test_what_is_not_finite_gets_no_action_and_an_alarm(run, tmp_path):
    icql.load_policy(run).export(tmp_path / "policy.onnx")
    states = probes(run, 10)
    states[4, 0], states[5, 2], states[6, 1] = np.nan, np.inf, -np.inf
    said = ask(tmp_path / "policy.onnx", states)
    assert_array_equal(np.isnan(said["action"]).all(1), [*[False] * 4, *[True] * 3, *[False] * 3])
    assert np.isfinite(said["action"][[0, 1, 2, 3, 7, 8, 9]]).all()
    assert said["alarm"][4:7].all()


def test_it_runs_where_there_is_no_icql_and_no_jax(run, tmp_path):
    policy, states = icql.load_policy(run), probes(run, 20)
    policy.export(tmp_path / "policy.onnx")
    np.save(tmp_path / "states.npy", states)
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("icql", "jax", "jaxlib", "equinox", "onnx"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("policy.onnx")
action, rings = session.run(["action", "alarm"], {"state": np.load("states.npy")})
np.savez("said.npz", action=action, rings=rings)
assert "icql" not in sys.modules and "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True)
    with np.load(tmp_path / "said.npz") as said:
        assert_allclose(said["action"], policy.act(states), atol=1e-3)
        assert_array_equal(said["rings"], policy.alarm(states).rings)


def test_the_card_is_inside_and_beside(run, tmp_path, capsys):
    path = tmp_path / "policy.onnx"
    assert main(["export", str(run), str(path), "--member", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    inside = {p.key: p.value for p in onnx.load(path).metadata_props}
    card = json.loads(inside[CARD])
    assert printed["card"] == card
    assert card["member"] == "seed 1"
    assert card["data"]["hash"] == json.loads((run / "run.json").read_text())["data_hash"]
    assert card["policy_hash"] == file_hash(run / "policy.safetensors")
    assert card["signals"]["observation"][0] == "pressure"
    assert len(card["alarm"]["still"]["states"]) == card["columns"]
    assert str(run.parent) not in json.dumps(card)  # no folders of this machine
    page = (tmp_path / "policy.md").read_text()
    for words in (
        "| 0 | pressure | Pa |",
        "| 0 | valve | % | 0 | 100 |",
        "about 5 %",
        "mode=auto",
        "are stuck",
    ):
        assert words in page
    assert "not recorded" in page


def test_the_same_run_gives_the_same_file(run, tmp_path):
    for name in ("one.onnx", "two.onnx"):
        icql.load_policy(run).export(tmp_path / name)
    assert file_hash(tmp_path / "one.onnx") == file_hash(tmp_path / "two.onnx")


def test_the_verdict_on_these_weights_is_in_the_card(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    said = {"verdict": "better", "reasons": ["it is."], "difference": 2.5, "seeds": [0, 1]}
    said |= {
        "difference_interval": [1.5, 3.5],
        "policy_hash": file_hash(run / "policy.safetensors"),
    }
    RunFolder.open(copy).write_judged(said)
    card = icql.load_policy(copy).export(tmp_path / "policy.onnx")
    assert card["verdict"]["verdict"] == "better"
    assert "2.5, 95 % interval 1.5 to 3.5" in (tmp_path / "policy.md").read_text()
    assert "`icql judge` on seeds 0, 1 together: better" in (tmp_path / "policy.md").read_text()
    RunFolder.open(copy).write_judged({**said, "policy_hash": "of other weights"})
    assert icql.load_policy(copy).export(tmp_path / "policy.onnx")["verdict"] is None


def refused(capsys: pytest.CaptureFixture[str], path: Path, *argv: str) -> str:
    code = main(["export", *argv, str(path)])
    err = capsys.readouterr().err
    assert code == 2, err
    assert list(path.parent.glob("*policy*")) == []
    return err


def test_a_file_that_differs_is_not_written(run, tmp_path, capsys, monkeypatch):
    path = tmp_path / "policy.onnx"
    with monkeypatch.context() as broken:
        broken.setitem(policy_nodes.OPERATIONS, "relu", "Softplus")
        assert "differs from the Python policy in an action" in refused(capsys, path, str(run))
    honest = build.alarm_nodes

    def broken_alarm(graph, alarm, state):
        return honest(graph, dataclasses.replace(alarm, limit=0.5), state)

    monkeypatch.setattr(build, "alarm_nodes", broken_alarm)
    assert "in an alarm" in refused(capsys, path, str(run))


def test_too_few_episodes_for_a_rate_are_said(run, tmp_path, capsys):
    for rate, few in (("0.05", True), ("0.4", False)):
        path = tmp_path / f"{rate}.onnx"
        assert main(["export", str(run), str(path), "--rate", rate]) == 0
        said = capsys.readouterr().out
        assert ("so few episodes can promise no such rate" in said) == few
        alarm = icql.load_policy(run).export(path, rate=float(rate), seed=0)["alarm"]
        assert alarm["rate"] < alarm["worst"] < 1
        assert "if no logged episode is like another" in path.with_suffix(".md").read_text()


def test_without_the_data_there_is_no_alarm(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    asked = json.loads((copy / "run.json").read_text())
    write_sealed(copy / "run.json", {**asked, "dataset": str(tmp_path / "gone.csv")})
    path, states = tmp_path / "policy.onnx", probes(run, 5)
    assert "--no-alarm" in refused(capsys, path, str(copy))
    assert main(["export", str(copy), str(path), "--no-alarm"]) == 0
    assert list(ask(path, states)) == ["action"]
    assert "exported without one" in (tmp_path / "policy.md").read_text()
    assert "made-up states" in (tmp_path / "policy.md").read_text()
    there = str(run.parent / "plant.csv")
    assert main(["export", str(copy), str(path), "--dataset", there]) == 0
    assert "alarm" in ask(path, states)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--member", "2"], "--member: there is no 2. Known: 0: seed 0; 1: seed 1."),
        (["--states", "1"], "states: 1 are too few"),
        (["--states", "-5"], "too few"),
        (["--rate", "2"], "must lie between 0 and 1"),
    ],
)
def test_options_that_cannot_be(run, tmp_path, capsys, argv, words):
    assert words in refused(capsys, tmp_path / "policy.onnx", str(run), *argv)


def test_names_that_cannot_be(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "policy.txt")]) == 2
    assert "must end in .onnx" in capsys.readouterr().err
    (tmp_path / "folder.onnx").mkdir()
    assert main(["export", str(run), str(tmp_path / "folder.onnx")]) == 2


def test_one_changed_byte_is_found(run, tmp_path):
    icql.load_policy(run).export(tmp_path / "policy.onnx")
    content = (tmp_path / "policy.onnx").read_bytes()
    assert verify(content, "file") == verify(bytes(content), "file")
    for place in (100, len(content) // 2, content.index(b"seed 0"), len(content) - 5):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises(UserError):
            verify(bytes(changed), "file")
    with pytest.raises(UserError, match="no policy file"):
        verify(content[:-100], "file")
