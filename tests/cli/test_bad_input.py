"""Data and settings that an algorithm cannot use: one message, exit code 2, no run folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from icql.cli import main

ROWS, LENGTH = 200, 50


def write(
    path: Path,
    *,
    order: np.ndarray | None = None,
    actions: np.ndarray | None = None,
    length: int = LENGTH,
) -> str:
    """A log of four episodes with its next observations, its rows in any order."""
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(ROWS, 3)).astype(np.float32)
    arrays = {
        "observations": observations,
        "actions": rng.uniform(-0.9, 0.9, (ROWS, 2)) if actions is None else actions,
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminals": np.zeros(ROWS, bool),
        "timeouts": np.arange(ROWS) % length == length - 1,
        "next_observations": np.roll(observations, -1, axis=0),
    }
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array if order is None else array[order]
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], out: Path, *argv: str) -> str:
    code = main(["train", "--steps", "1", "--episodes", "0", "--out", str(out), *argv])
    err = capsys.readouterr().err
    assert code == 2, err
    assert "Traceback" not in err
    assert not out.exists()
    return err


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ((np.arange(ROWS) % 4).astype(np.float32), "shape (200,)"),
        ((np.arange(ROWS) % 4)[:, None].astype(np.float32), "these look like choices"),
        (np.eye(3)[np.arange(ROWS) % 3], "are one-hot: these look like choices"),
    ],
    ids=["ids as floats", "column of ids as floats", "one-hot"],
)
def test_discrete_actions(capsys, tmp_path, actions, words):
    data = write(tmp_path / "log.hdf5", actions=actions)
    err = refused(capsys, tmp_path / "run", "--algo", "bc", "--dataset", data)
    assert words in err
    assert "log.hdf5" in err


def test_full_thrust_is_not_discrete(tmp_path):
    """Whole numbers within ±1 are what a bang-bang controller does."""
    actions = np.random.default_rng(0).integers(-1, 2, (ROWS, 2)).astype(np.float32)
    data = write(tmp_path / "log.hdf5", actions=actions)
    small = ["--policy.hidden", "8", "--batch-size", "8", "--json"]
    argv = ["train", "--algo", "bc", "--dataset", data, "--steps", "1", "--episodes", "0", *small]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("algo", ["dt", "radt", "qc"])
def test_shuffled_transitions(capsys, tmp_path, algo):
    order = np.random.default_rng(1).permutation(ROWS)
    data = write(tmp_path / "log.hdf5", order=order)
    err = refused(capsys, tmp_path / "run", "--algo", algo, "--dataset", data)
    assert "not in time order" in err
    assert "log.hdf5" in err


@pytest.mark.parametrize(
    ("algo", "option"), [("dt", "--length"), ("radt", "--length"), ("qc", "--chunk")]
)
def test_sequences_longer_than_any_episode(capsys, tmp_path, algo, option):
    data = write(tmp_path / "log.hdf5")
    err = refused(capsys, tmp_path / "run", "--algo", algo, "--dataset", data, option, "60")
    assert "60 steps are more than its longest episode" in err


def test_more_context_than_data(capsys, tmp_path):
    data = write(tmp_path / "log.hdf5")
    options = ("--algo", "icql", "--dataset", data, "--context.k", "999")
    err = refused(capsys, tmp_path / "run", *options)
    assert "context.k" in err
    assert "999" in err


@pytest.mark.parametrize(
    ("algo", "option", "value", "words"),
    [
        ("icql", "--expectile", "1.0", "expectile"),
        ("icql", "--local.layers", "0", "local.layers"),
        ("iql", "--beta", "-1", "beta"),
        ("bc", "--policy.dropout", "1", "dropout"),
        ("td3bc", "--alpha", "-2.5", "alpha"),
        ("icql-td3bc", "--form", "none", "form"),
        ("cql", "--samples", "0", "samples"),
        ("rebrac", "--critic-bc", "-1", "critic_bc"),
        ("dmg", "--mixture", "2", "mixture"),
        ("dt", "--discount", "2", "discount"),
        ("radt", "--candidates", "100000", "candidates"),
        ("fql", "--flow-steps", "0", "flow_steps"),
        ("qc", "--actor", "best", "actor"),
        ("sac", "--discount", "0.9", "icql data collect"),
        ("bc", "--steps", "1" + "0" * 30, "steps: is too large"),
        ("bc", "--batch-size", "1" + "0" * 20, "batch_size: is too large"),
        ("bc", "--policy.hidden", "1" + "0" * 20, "hidden: is too large"),
        ("iql", "--beta", "inf", "beta: is too large"),
        ("bc", "--seed", str(2**32), "--seed: must be from 0 to 4,294,967,295"),
        ("bc", "--seed", "-1", "--seed: must be from 0 to 4,294,967,295"),
        ("bc", "--seeds", "1" + "0" * 12, "--seeds: must be at most 10,000"),
    ],
)
def test_settings_out_of_range(capsys, tmp_path, algo, option, value, words):
    data = write(tmp_path / "log.hdf5")
    err = refused(capsys, tmp_path / "run", "--algo", algo, "--dataset", data, option, value)
    assert words in err


@pytest.mark.parametrize("algo", ["cql", "fql", "qc", "iql", "bc", "icql-graph"])
def test_rows_of_a_policy_that_has_none_of_its_own(capsys, tmp_path, algo):
    data = write(tmp_path / "log.hdf5")
    options = ("--algo", algo, "--dataset", data, "--draw.by", "rank", "--draw.rows", "policy")
    err = refused(capsys, tmp_path / "run", *options)
    assert "draw.rows policy: this algorithm has no rows that are its policy's alone" in err
    assert "comparing" not in err  # refused before the search


def test_nothing_to_compare_with(capsys, tmp_path):
    data = write(tmp_path / "log.hdf5", length=ROWS)
    options = ("--algo", "bc", "--dataset", data, "--draw.by", "rank")
    err = refused(capsys, tmp_path / "run", *options)
    assert "draw.by: rows are compared with those of other episodes, and there is a single" in err


@pytest.mark.parametrize("algo", ["dt", "radt"])
def test_a_preset_that_an_algorithm_does_not_have(capsys, tmp_path, algo):
    data = write(tmp_path / "log.hdf5")
    options = ("--algo", algo, "--dataset", data, "--preset", "robust")
    err = refused(capsys, tmp_path / "run", *options)
    assert f"--preset robust: gives methods the same policy network, and {algo} has one" in err


def test_a_task_whose_noise_is_of_other_observations(capsys, tmp_path):
    data = write(tmp_path / "log.hdf5")
    options = ("--algo", "bc", "--dataset", data, "--task", "kitchen-partial-v0")
    err = refused(capsys, tmp_path / "run", *options, "--policy.noise", "1")
    assert "knows the noise of 60 observations, the data has 3" in err


@pytest.mark.skipif(sys.platform != "linux", reason="files are limited in this way on Linux")
@pytest.mark.parametrize("kilobytes", [4, 200, 3000])
@pytest.mark.parametrize("name", ["out.hdf5", "out.npz", "out.parquet", "out.icql"])
def test_a_disk_that_is_full_is_said(name, kilobytes, tmp_path):
    """In a process of its own: HDF5 took it along when it could not write what was left."""
    if name == "out.icql" and kilobytes == 3000:
        pytest.skip("each of its files is smaller")
    code = (
        "import resource, sys; from icql.cli import main; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({kilobytes * 1000}, -1)); "
        f"sys.exit(main(['data', 'convert', 'hopper-mini', {name!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("icql: error: ") == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_time_limit_that_is_no_number(capsys, tmp_path):
    argv = ["bench", "run", "main", "--time-limit", "nan", "--out", str(tmp_path / "bench")]
    assert main(argv) == 2
    assert "--time-limit nan: must be above 0" in capsys.readouterr().err
