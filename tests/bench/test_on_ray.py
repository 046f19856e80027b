"""A real Ray cluster on this machine: killed workers, interruptions, records as of a local run."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE

import pytest

from bench import small_suite
from bench.small_suite import ON_RAY, RUN, outcomes, request, run
from icql.bench import on_ray
from icql.bench.records import BenchFolder
from icql.cli import main
from icql.errors import UserError
from icql.seals import plain

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="Ray is not installed (pip install 'icql[ray]')",
)
QUICK = ["bench", "run", "main", "--tasks", "hopper-mini", "--algos", "bc", "--preset", "quick"]


def ray_processes(place: str) -> list[int]:
    """Every process of the cluster that lives in `place`: all inherit the variable that says so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"RAY_TMPDIR={place}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended since
            continue
    return found


@pytest.fixture
def place() -> Iterator[str]:
    """Where a cluster lives: a short path, for its sockets; nothing of it survives the test."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield folder
    for pid in ray_processes(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(place: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts Python; what still runs when a test fails is ended, and its pipes are closed."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    given = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    env = given | {"PYTHONPATH": paths, "RAY_TMPDIR": place, "RAY_USAGE_STATS_ENABLED": "0"}
    with ExitStack() as left:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, *arguments]
            child = left.enter_context(subprocess.Popen(command, env=env, stdout=PIPE, stderr=PIPE))
            left.callback(child.kill)
            return child

        yield start


def wait_for(what: Callable[[], object], child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300  # Ray takes a minute to start where others compute
    while not what():
        assert child.poll() is None, child.stderr and child.stderr.read().decode()
        assert time.monotonic() < end
        time.sleep(0.005)


def gone(place: str) -> bool:
    end = time.monotonic() + 20
    while ray_processes(place) and time.monotonic() < end:
        time.sleep(0.1)
    return not ray_processes(place)


@needs_ray
def test_a_killed_worker_is_replaced_and_the_records_are_those_of_a_local_run(
    tmp_path, place, start
):
    out = tmp_path / "bench"
    child = start(small_suite.__file__, "hopper-mini", str(out))

    def saved() -> list[Path]:
        return [p for p in out.glob("runs/*/0-1/checkpoints/*") if p.name.isdigit()]

    wait_for(saved, child)
    key = saved()[0].parents[2].name
    worker = json.loads(BenchFolder(out).lock_path(key).read_text())["pid"]
    assert worker in ray_processes(place)
    assert worker != child.pid
    os.kill(worker, signal.SIGKILL)
    printed, said = child.communicate(timeout=180)
    assert child.returncode == 0, said.decode()
    assert printed == b""  # standard output is for results
    assert "[2/2]" in said.decode()
    assert gone(place)

    whole = tmp_path / "whole"
    assert run(Path("hopper-mini"), whole, **ON_RAY)["finished"] == 4
    assert outcomes(out) == outcomes(whole)
    assert len(outcomes(out)) == 4
    folder = BenchFolder.open(out)
    (killed,) = [group for group in folder.groups()[0] if group.key == key]
    assert folder.record(killed, 0)["run"]["resumed_at"], "it was not killed in the middle"


@needs_ray
def test_sigterm_ends_the_driver_and_its_cluster(tmp_path, place, start):
    out = tmp_path / "bench"
    long = ["--seeds", "1", "--steps", "1000000", "--episodes", "1", "--on", "ray"]
    child = start("-m", "icql", *QUICK, *long, "--out", str(out))
    wait_for(lambda: list(out.glob("runs/*/0-0/run.json")), child)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 143
    assert "The same command goes on." in said.decode()
    assert "Traceback" not in said.decode()
    assert gone(place)
    assert not list(out.glob("failures/*"))


class FakeRay:
    """As much of Ray as the driver sees, in this process; some tasks end as lost ones do."""

    class Lost(Exception):
        pass

    def __init__(self, lost: str = "", away: Path | None = None) -> None:
        self.lost, self.away, self.options = lost, away, dict[str, object]()
        self.cancelled = list[object]()

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0, "GPU": 2.0}

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True}]

    def remote(self, **options):
        self.options = options

        def task(function):
            def call(content, out, *more):
                return lambda: self.work(function, content, out, *more)

            call.remote = call
            return call

        return task

    def work(self, function, content, out, *more):
        if content["algo"] == self.lost:
            raise self.Lost("The worker died.\nMore about it.")
        return function(content, str(self.away or out), *more)

    def wait(self, tasks, **_):
        return tasks[:1], tasks[1:]

    def get(self, task):
        return task()

    def cancel(self, task, *, force):
        self.cancelled.append(task)


def run_on(fake: FakeRay, out: Path, monkeypatch: pytest.MonkeyPatch, **changes):
    monkeypatch.setattr(on_ray, "_ray", lambda: fake)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return small_suite.run_suite(
        request(Path("hopper-mini"), **ON_RAY | {"run": RUN | {"steps": 1}} | changes),
        out,
        small_suite.Display(),
        on_ray.OnRay(),
    )


def test_a_lost_group_is_recorded_and_the_rest_goes_on(tmp_path, monkeypatch, capfd):
    fake = FakeRay(lost="bc")
    result = run_on(fake, tmp_path / "bench", monkeypatch)
    assert (result["finished"], result["cells"]) == (2, 4)
    assert result["failed"][0]["error"] == "on a Ray worker: The worker died."
    assert (fake.options["num_cpus"], fake.options["num_gpus"]) == (1, 1)
    assert fake.options["max_retries"] == on_ray.RETRIES
    said = capfd.readouterr().err
    assert "[1/2] BC on hopper-mini: failed: on a Ray worker" in said
    assert "[2/2] IQL on hopper-mini: finished on" in said
    fake.lost = ""
    result = run_on(fake, tmp_path / "bench", monkeypatch)
    assert (result["finished"], result["failed"]) == (4, [])


def test_a_folder_that_is_not_shared_is_said(tmp_path, monkeypatch):
    quick = {"algos": ("bc",), "seeds": 1}
    monkeypatch.setattr(on_ray, "ARRIVAL", 0.0)
    nowhere = FakeRay(away=tmp_path / "nowhere")
    (failed,) = run_on(nowhere, tmp_path / "bench", monkeypatch, **quick)["failed"]
    assert "there is no such folder" in failed["error"]
    elsewhere = FakeRay(away=BenchFolder.make(tmp_path / "elsewhere").path)
    (failed,) = run_on(elsewhere, tmp_path / "other", monkeypatch, **quick)["failed"]
    assert "is --out shared?" in failed["error"]


def test_records_that_a_file_system_shows_late_count(tmp_path, monkeypatch, capfd):
    answers, is_done = [False, False], on_ray.is_done  # not begun; ended, but not seen here yet
    monkeypatch.setattr(
        on_ray, "is_done", lambda *given: answers.pop() if answers else is_done(*given)
    )
    result = run_on(FakeRay(), tmp_path / "bench", monkeypatch, algos=("bc",), seeds=1)
    assert (result["finished"], result["failed"]) == (1, [])
    assert not list((tmp_path / "bench").glob("failures/*"))
    assert "finished on" in capfd.readouterr().err


def test_an_interruption_takes_the_groups_back(tmp_path, monkeypatch):
    fake = FakeRay()

    def stop(*_, **__):
        raise KeyboardInterrupt

    fake.wait = stop
    with pytest.raises(KeyboardInterrupt):
        run_on(fake, tmp_path / "bench", monkeypatch)
    assert len(fake.cancelled) == 2


def test_data_that_a_worker_does_not_have_is_recorded(tmp_path, monkeypatch):
    """The driver read it under a path that the worker's node does not have."""
    folder = BenchFolder.make(tmp_path / "bench")
    (group,) = request(Path("hopper-mini"), **ON_RAY | {"algos": ("bc",)}).groups()
    gone = dataclasses.replace(group, dataset="/nowhere/log.npz")
    monkeypatch.chdir(tmp_path)
    on_ray.run_there(plain(dataclasses.asdict(gone)), str(folder.path), "/nowhere", {})
    assert "/nowhere/log.npz" in folder.failure(gone)["error"]


def test_workers_are_told_settings_and_no_secret():
    told = {"ICQL_CACHE": "/c", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--x"}
    assert on_ray.passed_on(told | {"ICQL_TOKEN": "t", "HOME": "/h", "MY_ICQL_": ""}) == told


def test_without_ray_one_message_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "bench"
    assert main([*QUICK, "--out", str(out), "--on", "ray"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'icql[ray]'" in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_options_of_ray_are_checked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(on_ray, "_ray", FakeRay)
    with pytest.raises(UserError, match="0 is too small"):
        on_ray.OnRay(cpus=0)
    assert main([*QUICK, "--out", str(tmp_path / "bench"), "--address", "auto"]) == 2
    assert "--on ray" in capsys.readouterr().err
