"""A run moves: other cores compute the same bits, another machine or version is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import icql
import pendulum
from icql.cli.main import main
from icql.seals import write_sealed
from icql.training.machine import changes, machine, say_changes
from icql.training.run_folder import RunFolder

RUN = {"episodes": 0, "log_every": 5, "checkpoint_every": 5}
TRAINS = """
import json, os, sys
cores, keep = int(sys.argv[1]), json.loads(sys.argv[2])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import icql
found = icql.train(**keep)
print(found["parameter_hash"], json.dumps(found["moves"]))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=600)


def trained(cores: int, **asked: Any) -> list[str]:
    """Hash and moves of a training in a process of its own, on so many cores."""
    # programs are compiled for the number of threads: none that others have left
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    given = json.dumps({"quiet": True, **asked})
    command = [sys.executable, "-c", TRAINS, str(cores), given]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split(" ", 1)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores, on Linux",
)
def test_a_run_goes_on_to_the_same_bits_on_fewer_cores(data: Path, tmp_path: Path) -> None:
    """Begun on one core it has other bits: these settings see the cut (benchmarks/cores.py)."""
    given: dict[str, Any] = {
        "algo": "bc",
        "dataset": str(data),
        "run": RUN,
        "settings": {"policy.hidden": [256, 256], "batch_size": 256},
    }
    whole, _ = trained(2, steps=40, out=str(tmp_path / "two"), **given)
    trained(2, steps=20, out=str(tmp_path / "moved"), **given)
    again, moves = trained(1, steps=40, out=str(tmp_path / "moved"), resume=True)
    assert again == whole
    assert json.loads(moves) == [{"cores": ["2", "1"]}]


def test_what_changed_is_recorded_and_said(data: Path, tmp_path: Path, capsys: Any) -> None:
    out, moved = tmp_path / "run", tmp_path / "elsewhere" / "run"
    settings = {"policy.hidden": [8], "batch_size": 8}
    icql.train("bc", dataset=str(data), steps=5, out=out, run=RUN, settings=settings, quiet=True)
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["machine"] == machine()
    manifest["versions"]["jax"] = "0.9.0"
    manifest["machine"]["cpu"] = "another"
    write_sealed(out / "run.json", manifest)
    shutil.copytree(out, moved)
    shutil.copy(data, tmp_path / "elsewhere" / "renamed.npz")
    options = ["train", "--resume", "--out", str(moved), "--steps", "6", "--json"]
    options += ["--dataset", str(tmp_path / "elsewhere" / "renamed.npz")]
    assert main(options) == 0
    said = capsys.readouterr()
    [line] = [line for line in said.err.splitlines() if line.startswith("goes on elsewhere: ")]
    assert "jax 0.9.0 → " in line
    assert "cpu another → " in line
    assert "may be rounded otherwise" in line
    [move] = json.loads(said.out)["moves"]
    assert move["cpu"] == ["another", machine()["cpu"]]
    assert RunFolder.open(moved).moves == [move]
    assert main([*options, "--steps", "7"]) == 0  # said once
    said = capsys.readouterr()
    assert "goes on elsewhere" not in said.err
    assert json.loads(said.out)["moves"] == [move]


def test_runs_made_before_machines_were_recorded_go_on(
    data: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "run"
    settings = {"policy.hidden": [8], "batch_size": 8}
    icql.train("bc", dataset=str(data), steps=1, out=out, run=RUN, settings=settings, quiet=True)
    manifest = json.loads((out / "run.json").read_text())
    del manifest["machine"]
    write_sealed(out / "run.json", manifest)
    assert main(["train", "--resume", "--out", str(out), "--steps", "2"]) == 0
    assert "goes on elsewhere" not in capsys.readouterr().err


def test_the_number_of_cores_alone_changes_no_bits() -> None:
    changed = changes(
        {"cores": "2", "cpu": "x", "gone": "1"}, {"cores": "1", "cpu": "x", "new": "1"}
    )
    assert changed == {"cores": ["2", "1"]}
    assert say_changes(changed).endswith("cores 2 → 1. Updates are computed to the same bits.")
