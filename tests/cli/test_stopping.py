"""SIGTERM, at the worst of times: one sentence, exit code 143, nothing half-written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import icql
import pendulum
from icql.cli import main
from icql.cli.stopping import stopping_on_sigterm

BEGINS = "icql: interrupted. Whatever was written is whole; the same command begins anew.\n"
GOES_ON = "icql: interrupted. The same command goes on"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=300)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    small: dict[str, Any] = {"policy.hidden": [8], "batch_size": 8}
    run = {"episodes": 1, "log_every": 1}
    icql.train("bc", dataset=str(data), steps=1, out=out, run=run, settings=small, quiet=True)
    return out


def asked(*_: Any, **__: Any) -> None:
    """What runs while the signal comes."""
    os.kill(os.getpid(), signal.SIGTERM)


def before(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and the signal when it has done its part."""

    def both(*args: Any, **given: Any) -> Any:
        function(*args, **given)
        asked()

    return both


def everything(folder: Path) -> dict[str, bytes]:
    return {str(x): x.read_bytes() for x in sorted(folder.rglob("*")) if x.is_file()}


@pytest.mark.parametrize("suffix", ["npz", "hdf5", "icql", "parquet"])
def test_a_conversion_leaves_what_was_there(
    data: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / f"log.{suffix}"
    assert main(["data", "convert", str(data), str(out)]) == 0
    was = everything(tmp_path)
    # all is written, nothing has its name yet
    monkeypatch.setattr("icql.files._sync_all", before(lambda path: None))
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["data", "convert", str(data), str(out), "--force"]) == 143
    assert capsys.readouterr().err.endswith(BEGINS)
    assert everything(tmp_path) == was
    assert signal.getsignal(signal.SIGTERM) is handler


def test_an_evaluation_and_a_judgement_leave_the_run_as_it_was(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    was = everything(run)
    monkeypatch.setattr("icql.training.trained.TrainedPolicy.evaluate", asked)
    assert main(["evaluate", str(run)]) == 143
    assert capsys.readouterr().err.endswith(BEGINS)
    monkeypatch.setattr("icql.files._sync_all", before(lambda path: None))
    monkeypatch.setattr("icql.training.run_folder.write_sealed", before(lambda *_: None))
    assert main(["judge", str(run), "--updates", "2", "--no-graph"]) == 143
    assert capsys.readouterr().err.endswith(BEGINS)
    assert everything(run) == was


def test_a_suite_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("icql.bench.runner.train_cells", asked)
    given = ["--tasks", "pendulum-test", "--dataset", f"pendulum-test={data}", "--algos", "bc"]
    argv = ["bench", "run", "main", *given, "--preset", "quick", "--out", str(tmp_path / "bench")]
    assert main(argv) == 143
    assert capsys.readouterr().err.endswith(f"{GOES_ON}.\n")
    assert not any(path.name.startswith(".icql") for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "command", [["collect", "hopper", "--out", "x"], ["fetch", "hopper-medium-v2"]]
)
def test_what_is_kept_goes_on_where_it_stopped(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICQL_CACHE", str(tmp_path))
    monkeypatch.setattr("icql.online.collect", asked)
    monkeypatch.setattr("icql.data.download.urlopen", asked)
    assert main(["data", *command]) == 143
    assert capsys.readouterr().err.endswith(f"{GOES_ON} where it stopped.\n")
    assert everything(tmp_path) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_disturb_the_tidying_up(number: int) -> None:
    tidied = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            tidied.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        with pytest.raises(KeyboardInterrupt), stopping_on_sigterm():
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert tidied


class Dropping:
    """Is finalised while the signal comes: Python drops what is raised there."""

    def __del__(self) -> None:
        asked()


LOST: list[str] = []  # an error would be taken for how the signal comes out


def dropped(*_: Any, **__: Any) -> None:
    Dropping()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        time.sleep(0.01)
    LOST.append("the signal")


def turned(*_: Any, **__: Any) -> None:
    """As modules in C++ do that are imported while the signal comes."""
    try:
        asked()
    except KeyboardInterrupt as error:
        raise ImportError("initialization failed") from error


class ExtensionFileLoader:
    """As Python's, which runs the C++ of a module: what is raised there ends the process."""

    def exec_module(self) -> None:
        try:
            asked()
            time.sleep(0.2)
        except KeyboardInterrupt:
            LOST.append("the process")


def loads(*_: Any, **__: Any) -> None:
    ExtensionFileLoader().exec_module()
    time.sleep(5)
    LOST.append("the signal")


@pytest.mark.parametrize("work", [dropped, turned, loads])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_neither_lost_nor_another_error(
    work: Callable[..., None], number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    LOST.clear()
    monkeypatch.setattr(f"{__name__}.asked", lambda: os.kill(os.getpid(), number))
    monkeypatch.setattr("icql.cli.algos.Algos.execute", work)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        assert main(["algos"]) == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == BEGINS
    assert not LOST
