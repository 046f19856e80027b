"""One run folder, one process; a signal says where to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import icql
import pendulum
from icql.cli.main import main
from icql.errors import UserError
from icql.training.run_folder import RunFolder

RUN = {"episodes": 0, "log_every": 1, "checkpoint_every": 1}
SMALL = {"policy.hidden": [8], "batch_size": 8}
HOLDS = """
import sys, time
from pathlib import Path
from icql.training.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).owned():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=300)


def test_the_second_process_is_refused_and_a_dead_one_owns_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    given: dict[str, Any] = {"run": RUN, "settings": SMALL, "quiet": True}
    icql.train("bc", dataset=str(data), steps=1, out=out, **given)
    paths = os.pathsep.join(filter(None, sys.path))
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(out)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        before = (out / "run.json").read_bytes()
        assert main(["train", "--resume", "--out", str(out), "--steps", "2"]) == 2
        said = capsys.readouterr().err
        assert f"{out}: process {child.pid} on " in said
        assert "is training in it" in said
        assert (out / "run.json").read_bytes() == before
    finally:
        child.kill()
        child.communicate()
    assert main(["train", "--resume", "--out", str(out), "--steps", "2", "--json"]) == 0


def test_two_that_begin_at_once_do_not_share_a_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds the folder free, and owned once it has read its data."""
    out = tmp_path / "run"
    with RunFolder(out).owned():
        monkeypatch.setattr("icql.training.run_folder.held", RefusedBySelf)
        with pytest.raises(UserError, match="is training in it"):
            icql.train("bc", dataset=str(data), steps=1, out=out, run=RUN, quiet=True)
    assert [path.name for path in out.iterdir()] == ["lock"]
    monkeypatch.undo()
    icql.train("bc", dataset=str(data), steps=1, out=out, run=RUN, settings=SMALL, quiet=True)


class RefusedBySelf:
    """What another process sees of a lock that is held."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> bool:
        return False

    def __exit__(self, *_: Any) -> None:
        pass


def test_sigterm_says_where_to_go_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "run"
    before = signal.getsignal(signal.SIGTERM)

    def asked(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("icql.training.loop.Loop.advance", asked)
    options = ["train", "--algo", "bc", "--dataset", str(data), "--episodes", "0"]
    assert main([*options, "--out", str(out)]) == 143
    said = capsys.readouterr().err
    assert said.endswith(f"icql: interrupted. 'icql train --resume --out {out}' goes on.\n")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("place", ["file/run", "long", "nul"])
def test_an_out_that_cannot_be_is_refused_before_any_work(
    data: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "file").write_text("")
    out = {"long": "x" * 300, "nul": "a\x00b"}.get(place, place)
    monkeypatch.setattr("icql.training.trainer.examine", None)
    argv = ["train", "--algo", "bc", "--dataset", str(data), "--out", str(tmp_path / out)]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
