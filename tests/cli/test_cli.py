"""The command line: one message, exit code 2, nothing overwritten; JSON alone on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import pendulum
from icql import __version__
from icql.cli import main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=400)


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run, expect exit code 2 and one message on standard error."""
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert code == 2, (out, err)
    assert "Traceback" not in err
    return err


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"icql {__version__}\n"
    assert main(["--help"]) == 0
    assert "evaluate" in capsys.readouterr().out


def test_unknown_command_suggests_the_nearest(capsys):
    assert "'train'" in fails(capsys, "trian")


def test_train_and_evaluate_print_one_json_object(capsys, data, tmp_path):
    out = str(tmp_path / "run")
    options = [
        "--algo",
        "icql",
        "--steps",
        "20",
        "--episodes",
        "2",
        "--hidden",
        "16",
        "--context.k",
        "4",
    ]
    assert main(["train", "--task", "pendulum-test", "--dataset", str(data), "--out", out,
                 "--seeds", "2", "--local.layers", "2", "--json", *options]) == 0  # fmt: skip
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    for key in ("run", "algo", "dataset", "data_hash", "steps", "updates_per_second", "score",
                "behaviour_score"):  # fmt: skip
        assert key in result
    assert len(result["score"]["per_seed"]) == 2
    assert "contexts: exact" in captured.err

    assert main(["evaluate", out, "--episodes", "3", "--seed", "4", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert np.shape(scores["returns"]) == (2, 3)
    assert scores["normalized_score"] == pytest.approx(np.mean(scores["per_seed"]))

    # the folder exists now: nothing is overwritten
    before = (tmp_path / "run" / "result.json").read_bytes()
    assert "already exists" in fails(capsys, "train", "--dataset", str(data), "--out", out)
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def test_algos_lists_settings_and_sources(capsys):
    assert main(["algos", "--task", "kitchen-complete-v0", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["algorithms"]
    assert {"icql", "iql", "bc"} <= set(listed)
    paper = listed["icql"]["presets"]["paper"]
    assert paper["settings"]["expectile"] == 0.9
    assert paper["settings"]["local"]["layers"] == 20
    assert paper["run"]["steps"] == 1_000_000
    assert all(preset["sources"] for a in listed.values() for preset in a["presets"].values())
    presets = {name: set(entry["presets"]) for name, entry in listed.items()}
    assert {name for name, has in presets.items() if "robust" not in has} == {"dt", "radt", "sac"}
    assert all({"quick", "paper"} <= has for has in presets.values())
    robust = listed["icql"]["presets"]["robust"]["settings"]["policy"]
    assert (robust["hidden"], robust["init"]) == ([512, 512], "small")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--algo", "icqll"], "'icql'"),
        (["--task", "hoper-medium-v2"], "hopper-medium-v2"),
        (["--preset", "papper"], "paper"),
        (["--dataset", "no-such-file.hdf5"], "no-such-file.hdf5"),
        (["--expectile", "1.5"], "expectile"),
        (["--local.layers", "0"], "local.layers"),
        (["--local.layrs", "3"], "layrs"),
        (["--steps", "0"], "steps"),
        (["--seeds", "0"], "seeds"),
        (["--resume"], "--out"),
        (["--resume", "--out", "nowhere"], "nowhere"),
    ],
)
def test_bad_options(capsys, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    assert words in fails(capsys, "train", *options)
    assert not list(tmp_path.iterdir())


def test_context_larger_than_the_data(capsys, data, tmp_path):
    options = ["--algo", "icql", "--context.k", "9999", "--out", str(tmp_path / "run")]
    err = fails(capsys, "train", "--dataset", str(data), *options)
    assert "9999" in err
    assert not (tmp_path / "run").exists()


def test_a_task_that_does_not_fit_the_data(capsys, data, tmp_path):
    err = fails(capsys, "train", "--task", "hopper-mini", "--dataset", str(data), "--out",
                str(tmp_path / "run"), "--algo", "bc")  # fmt: skip
    assert "Hopper-v4" in err
    assert not (tmp_path / "run").exists()


def write_h5(path: Path, **changes: np.ndarray | None) -> Path:
    n = 30
    arrays: dict[str, np.ndarray | None] = {
        "observations": np.ones((n, 3), np.float32),
        "actions": np.zeros((n, 2), np.float32),
        "rewards": np.zeros(n, np.float32),
        "terminals": (np.arange(n) % 10 == 9).astype(np.float32),
        "timeouts": np.zeros(n, np.float32),
        **changes,
    }
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file[name] = array
    return path


def test_bad_files_are_named(capsys, tmp_path):
    observations = np.ones((30, 3), np.float32)
    observations[7, 2] = np.nan
    cases = {
        "nan.hdf5": ({"observations": observations}, "7"),
        "keys.hdf5": ({"rewards": None}, "rewards"),
        "shapes.hdf5": ({"actions": np.zeros((29, 2), np.float32)}, "actions"),
        "ends.hdf5": ({"terminals": np.zeros(30, np.float32)}, "end"),
    }
    for name, (changes, words) in cases.items():
        path = write_h5(tmp_path / name, **changes)
        err = fails(capsys, "train", "--dataset", str(path), "--out", str(tmp_path / "run"))
        assert name in err, err
        assert words in err, err
        assert not (tmp_path / "run").exists()
    whole = write_h5(tmp_path / "cut.hdf5").read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    assert "cut.hdf5" in fails(capsys, "train", "--dataset", str(tmp_path / "cut.hdf5"))


def test_errors_are_json_too(capsys):
    assert main(["evaluate", "nowhere", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["where"] == "nowhere"


def test_evaluate_says_when_a_run_is_not_finished(capsys, tmp_path):
    assert "no run.json" in fails(capsys, "evaluate", str(tmp_path))
    (tmp_path / "run.json").write_text("{broken")
    assert "not valid JSON" in fails(capsys, "evaluate", str(tmp_path))
