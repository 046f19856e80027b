"""Several devices and several processes train what one does, up to rounding."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from icql.errors import UserError
from icql.training.processes import join_group
from icql.training.run_folder import RunFolder

CHILD = Path(__file__).parent / "devices_child.py"
SIMULATED = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count="


def start(what: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    tests = str(CHILD.parent.parent)  # where the helpers lie
    path = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "ICQL_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(CHILD), what, str(folder)],
        env={**os.environ, **quick, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def devices(folder: Path) -> list[str]:
    """What the process with four devices has to say."""
    return finish(start("devices", folder, XLA_FLAGS=f"{SIMULATED}4")).splitlines()


def test_four_devices_train_what_one_does(devices: list[str]) -> None:
    assert devices[:3] == ["icql", "iql, uneven, streamed", "bc, seeds apart"]


def test_more_devices_than_there_are_is_refused(devices: list[str]) -> None:
    assert devices[3].startswith("--devices: 8 were asked for, and there are 4")


def test_two_processes_train_what_one_does(folder: Path, devices: list[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = [
        start(
            "group",
            folder,
            ICQL_COORDINATOR=address,
            ICQL_PROCESSES="2",
            ICQL_PROCESS=str(i),
            XLA_FLAGS=f"{SIMULATED}2",
        )
        for i in (0, 1)
    ]
    told = [finish(process) for process in processes]
    assert "already exists" in told[0]
    assert "another process of the group has stopped" in told[1]
    alone = load_file(RunFolder.open(folder / "alone").policy_path)
    for name in ("group", "resumed"):
        run = RunFolder.open(folder / name)
        weights = load_file(run.policy_path)
        assert weights.keys() == alone.keys()
        for key, expected in alone.items():
            np.testing.assert_allclose(weights[key], expected, rtol=1e-4, atol=1e-6)
        assert [row["step"] for row in run.rows() if row["kind"] == "evaluation"] == [5, 10]
        assert run.result_path.is_file()
    assert not (folder / "nothing").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ICQL_PROCESSES": "2"}, "ICQL_COORDINATOR, ICQL_PROCESS: is missing"),
        ({"ICQL_PROCESSES": "two", "ICQL_PROCESS": "0"}, "ICQL_PROCESSES: must be a whole number"),
        ({"ICQL_PROCESSES": "2", "ICQL_PROCESS": "2"}, "ICQL_PROCESS: must be one of 0"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(
    given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    if len(given) > 1:
        monkeypatch.setenv("ICQL_COORDINATOR", "127.0.0.1:1")
    with pytest.raises(UserError, match=message):
        join_group()
