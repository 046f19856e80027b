"""What clumsy and hostile users do: one sentence, exit code 2, at once, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icql.cli import main

MAPPING = """\
observation = ["pressure", "flow"]
action = ["valve"]
reward = "profit"
episode = "shift"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a log, a pipe, a loop and a device that never ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICQL_CACHE", str(tmp_path / "cache"))
    rows = [f"{i // 10},{1e5 + i},{i % 7},{i % 100},{i % 5}" for i in range(60)]
    (tmp_path / "log.csv").write_text("\n".join(["shift,pressure,flow,valve,profit", *rows]))
    (tmp_path / "log.csv.toml").write_text(MAPPING)
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zeros.onnx").symlink_to("/dev/zero")
    return tmp_path


def refused(capsys: Any, *argv: str) -> str:
    """What is said of a command that leaves nothing behind."""
    before = sorted(Path().rglob("*"))
    try:
        code = main(list(argv))
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    assert code == 2, said.err
    assert sorted(Path().rglob("*")) == before
    return str(said.err or said.out)


WRITING = {  # commands that work for long, with the place where they write in the end
    "inspect": ["inspect", "log.csv", "--out", "OUT.html"],
    "export": ["export", "log.csv", "OUT.onnx"],
    "compare": ["compare", "log.csv", "--out", "OUT.png"],
    "analyse": ["analyse", "log.csv", "--out", "OUT"],
    "data init": ["data", "init", "log.csv", "--out", "OUT.toml"],
    "data validate": ["data", "validate", "log.csv", "--report", "OUT"],
    "data coverage": ["data", "coverage", "log.csv", "--out", "OUT"],
    "data convert": ["data", "convert", "log.csv", "OUT.npz"],
    "data convert, store": ["data", "convert", "log.csv", "OUT.icql"],
    "data collect": ["data", "collect", "hopper", "--out", "OUT"],
    "bench run": ["bench", "run", "main", "--out", "OUT"],
    "bench report": ["bench", "report", "log.csv", "--out", "OUT.md"],
    "bench report, picture": ["bench", "report", ".", "--out", "x.md", "--picture", "OUT.svg"],
    "bench merge": ["bench", "merge", "log.csv", "--out", "OUT"],
    "bench speed": ["bench", "speed", "--out", "OUT.json"],
    "bench cost": ["bench", "cost", "--out", "OUT.json"],
    "train": ["train", "--dataset", "log.csv", "--out", "OUT"],
}


@pytest.mark.parametrize("out", ["log.csv/x", "loop/x", "/proc/x", "x" * 5000])
@pytest.mark.parametrize("command", WRITING)
def test_where_nothing_can_be_written_is_said_before_the_work(
    place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, command: str, out: str
) -> None:
    for name in ("icql.bench.speed.made_up_data", "icql.data.datasets.load_steps"):
        monkeypatch.setattr(name, None)  # work that is begun fails
    said = refused(capsys, *(word.replace("OUT", out) for word in WRITING[command]))
    assert "cannot be written to (" in said or "File name too long. Give a shorter name" in said
    assert ".icql-tmp" not in said


def test_a_run_that_cannot_keep_a_judgement_is_said_before_it(
    place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "run").mkdir()

    def locked(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", locked)
    said = refused(capsys, "judge", "run")
    assert "run: cannot be written to (Permission denied)" in said


@pytest.mark.parametrize("file", ["pipe.onnx", "zeros.onnx"])
@pytest.mark.parametrize(
    "command", [["serve", "FILE"], ["data", "show", "log.csv", "--columns", "FILE"]]
)
def test_what_never_ends_is_not_read(
    place: Path, capsys: Any, command: list[str], file: str
) -> None:
    said = refused(capsys, *(word.replace("FILE", file) for word in command))
    assert f"{file}: is not a file." in said


@pytest.mark.parametrize("command", [["show", "LOG"], ["init", "LOG"], ["convert", "LOG", "x.npz"]])
def test_a_user_that_does_not_exist(place: Path, capsys: Any, command: list[str]) -> None:
    words = [word.replace("LOG", "~nobody-of-this-name/log.csv") for word in command]
    assert "there is no such file" in refused(capsys, "data", *words)


def test_without_a_home_there_is_no_cache(
    place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ICQL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert "HOME: nobody knows where your home folder is." in refused(capsys, "data", "list")


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ("x = " + "[" * 100_000, "it is not TOML"),
        ("x = " + "{a=" * 3000 + "1" + "}" * 3000, "it is not TOML"),
        (f"{MAPPING}action_bounds = [0, 1{'0' * 5000}]", "it is not TOML"),
        (f"{MAPPING}action_bounds = [0, 1{'0' * 400}]", "action_bounds: a number is too large"),
        (f"{MAPPING}action_bounds = [0, 1e308]", "action_bounds: each low value"),
    ],
    ids=["lists in lists", "tables in tables", "5,000 digits", "400 digits", "beyond float32"],
)
@pytest.mark.filterwarnings("error")
def test_bombs_in_a_mapping(place: Path, capsys: Any, mapping: str, words: str) -> None:
    (place / "log.csv.toml").write_text(mapping)
    assert words in refused(capsys, "data", "show", "log.csv")
    assert words in refused(capsys, "data", "validate", "log.csv")


def test_a_bomb_in_an_option(place: Path, capsys: Any) -> None:
    bomb = f"batch_size={'[' * 100_000}"
    said = refused(capsys, "bench", "speed", "--algos", "bc", "--settings", bomb)
    assert "batch_size" in said


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["algos", "--task", "nope"], "nope"),
        (["data", "init", "log.csv", "--out", "x.toml", "--decimal", "x"], "--decimal: must be"),
    ],
)
def test_what_is_not_known_is_not_believed(
    place: Path, capsys: Any, argv: list[str], words: str
) -> None:
    assert words in refused(capsys, *argv)


def test_what_comes_from_others_does_not_steer_the_terminal(place: Path, capsys: Any) -> None:
    said = refused(capsys, "data", "show", "a\u202eb\u2028\udcff.csv")
    assert "a\\u202eb\\u2028\\udcff.csv: there is no such file" in said
    (place / "log.csv").write_text("o\x1b[2Jne,shift,flow,valve,profit\n1,1,1,1,1\n" * 2)
    assert "\x1b" not in refused(capsys, "data", "show", "log.csv")


def ended(*argv: str, shell: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: how it is left is the matter."""
    command = f'"$0" -m icql "$@" {shell}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, *argv],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs bash and /dev/full")
@pytest.mark.parametrize(
    ("argv", "shell", "code"),
    [
        (["train", "--help"], ">&-", 0),
        (["data", "show", "nothing.csv", "--json"], ">&- 2>&-", 2),
        (["data", "show", "nothing.csv", "--json"], "> /dev/full", 2),
        (["data", "show", "nothing.csv", "--json"], "| head -c 0; exit ${PIPESTATUS[0]}", 2),
        (["data", "validate", "log.csv"], "", 2),  # its table has characters beyond ASCII
    ],
)
def test_output_that_nobody_takes(place: Path, argv: list[str], shell: str, code: int) -> None:
    done = ended(*argv, shell=shell, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
