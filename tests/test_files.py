"""Files: whole, on disk and alone, or not there; what cannot be written or read is said."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icql import files
from icql.errors import UserError
from icql.files import (
    TEMPORARY,
    append,
    atomic,
    atomic_folder,
    check_writable,
    read_json,
    write_json,
)


def test_trying_a_folder_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_trying_a_folder_makes_none_that_another_run_may_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that begin at once must not take each other's folders away."""
    seen = []

    def looked(**where: Any) -> io.BytesIO:
        seen.append((tmp_path / "runs").exists())
        return io.BytesIO()

    monkeypatch.setattr("tempfile.TemporaryFile", looked)
    check_writable(tmp_path / "runs" / "one")
    assert seen == [False]


def test_what_is_no_folder_is_found_by_trying(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "link", tmp_path / "link" / "b", tmp_path / "file" / "b" / "c"):
        with pytest.raises(UserError, match=r"cannot be written to \(Not a directory\)"):
            check_writable(place)


def test_a_full_disk_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        """Can be made, but not written to."""

        def write(self, content: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(UserError, match=r"cannot be written to \(No space left on device\)"):
        check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[" * 200_000])
def test_what_is_no_json_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json: is not valid JSON"):
        read_json(tmp_path / "x.json")


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the system, in order: which files are synced, which are renamed."""
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(file: int) -> None:
        seen.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        fsync(file)

    def noted_replace(source: Path, path: Path) -> None:
        seen.append(f"rename to {Path(path).name}")
        replace(source, path)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return seen


linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")


@linux
def test_a_file_is_on_disk_before_its_name_and_its_name_before_anybody_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a" / "b"
    seen = calls(monkeypatch)
    with atomic(folder / "x.json") as temporary:
        temporary.write_text("1")
    assert seen[:2] == ["sync a", f"sync {tmp_path.name}"]  # the folders that were made
    assert seen[2].startswith(f"sync {TEMPORARY}")
    assert seen[3:] == ["rename to x.json", "sync b"]
    assert [path.name for path in folder.iterdir()] == ["x.json"]


@linux
def test_a_folder_is_on_disk_with_all_in_it_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    seen = calls(monkeypatch)
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "x").write_text("1")
        (folder / "y").write_text("2")
    assert sorted(seen[:2]) == ["sync x", "sync y"]
    assert seen[2:] == ["sync made", "rename to made", "rename to made", f"sync {tmp_path.name}"]
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["x", "y"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@linux
def test_a_line_is_on_disk_when_it_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("1\n")
    seen = calls(monkeypatch)
    append(tmp_path / "log", "2\n")
    assert seen == ["sync log"]
    assert (tmp_path / "log").read_text() == "1\n2\n"


def test_what_failed_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("before")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x", float("nan"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


LIVES = """
import sys, time
from pathlib import Path
from icql.files import atomic, scratch_folder
with atomic(Path(sys.argv[1]) / "x.npz") as file, scratch_folder(Path(sys.argv[1])) as folder:
    file.write_text("half")
    (folder / "y").write_text("half")
    print("writing", flush=True)
    time.sleep(600)
"""


def test_temporaries_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", LIVES, str(tmp_path)]
        child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        return child

    def write() -> None:
        files._swept.clear()  # as in a new process
        write_json(tmp_path / "mine.json", 1)

    first, second = start(), start()
    try:
        assert len(list(tmp_path.glob(f"{TEMPORARY}*"))) == 4
        first.kill()
        first.wait()
        write()  # nobody can tell whose they are while one of them lives
        assert len(list(tmp_path.glob(f"{TEMPORARY}*"))) == 4
        second.kill()
        second.wait()
        write()
    finally:
        for child in (first, second):
            child.kill()
            child.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


def test_another_machines_temporaries_are_left_for_a_day(tmp_path: Path) -> None:
    other = tmp_path / f"{TEMPORARY}zzzzzz-12345678.npz"
    other.touch()
    write_json(tmp_path / "mine.json", 1)
    assert other.exists()
    os.utime(other, (0, 0))
    files._swept.clear()
    write_json(tmp_path / "mine.json", 1)
    assert not other.exists()


def test_a_folder_half_replaced_when_its_process_was_killed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    replace, renames = os.replace, []

    def killed(source: Path, path: Path) -> None:
        renames.append(path)
        if len(renames) == 2:
            raise SystemExit
        replace(source, path)

    monkeypatch.setattr(os, "replace", killed)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # nor does the dead clean up
    with pytest.raises(SystemExit), atomic_folder(tmp_path / "made") as folder:
        (folder / "new").write_text("1")
    assert not (tmp_path / "made").exists()
    monkeypatch.undo()
    files._swept.clear()
    write_json(tmp_path / "mine.json", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "mine.json"]
    assert (tmp_path / "made" / "new").exists()
