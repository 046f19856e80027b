"""Fetching by name, against a server of our own: broken connections, checksums, resuming."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from data.log_cases import source
from icql.data import download, get_task, list_tasks, load_dataset
from icql.data.download import cached_file, fetch, url_of
from icql.data.formats.d4rl import write_d4rl
from icql.data.transitions import Steps
from icql.errors import UserError

NAME = "hopper-medium-v2"
PATH = "/mirror/gym_mujoco_v2/hopper_medium-v2.hdf5"


class Server(ThreadingHTTPServer):
    """Serves one file, and misbehaves as told."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.version = '"1"'
        self.break_after: list[int] = []  # bytes of the body before each connection is dropped
        self.errors: list[int] = []  # statuses to answer first
        self.with_ranges = True
        self.marks_versions = True
        self.wrong_range = False
        self.seen: list[str | None] = []  # the Range of every request
        self.asked, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()  # else it stops after half of a file
        self.sends_on_to = ""  # where, instead of an answer
        self.length: str | None = None  # what it says of its size, instead of the truth
        self.drips = 0  # connections on which it sends a byte at a time

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mirror/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.seen.append(asked)
        if server.errors:
            self.send_error(server.errors.pop(0))
            return
        if server.sends_on_to and self.path == PATH:
            self.send_response(302)
            self.send_header("Location", server.sends_on_to)
            self.end_headers()
            return
        if self.path not in (PATH, "/moved"):
            self.send_error(404)
            return
        start = 0
        if asked and server.with_ranges and self.headers.get("If-Range") == server.version:
            match = re.fullmatch(r"bytes=(\d+)-", asked)
            assert match is not None
            start = int(match[1])
        if start >= len(server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            said = start + 7 if server.wrong_range else start
            self.send_header("Content-Range", f"bytes {said}-{len(server.content) - 1}/*")
        if server.marks_versions:
            self.send_header("ETag", server.version)
        length = str(len(body)) if server.length is None else server.length
        if length:
            self.send_header("Content-Length", length)
        self.end_headers()
        if server.drips:
            server.drips -= 1
            with contextlib.suppress(OSError):  # whoever asked has had enough
                for i in range(200):
                    self.wfile.write(body[i : i + 1])
                    time.sleep(0.01)
            return
        body = body[: server.break_after.pop(0)] if server.break_after else body
        half = len(body) // 2
        with contextlib.suppress(ConnectionError):  # of a process that was killed
            self.wfile.write(body[:half])
            self.wfile.flush()
            server.asked.set()
            server.goes_on.wait(60)
            self.wfile.write(body[half:])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("source") / "log.hdf5"
    rng, rows = np.random.default_rng(0), 20_000
    ends = np.arange(rows) % 100 == 99
    write_d4rl(
        path,
        source(
            Steps(
                rng.normal(size=(rows, 11)).astype(np.float32),
                rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
                np.ones(rows, np.float32),
                ends,
                np.zeros(rows, np.bool_),
            )
        ),
    )
    return path.read_bytes()


@pytest.fixture
def server(
    content: bytes, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    with Server(content) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("ICQL_D4RL_URL", server.url)
        monkeypatch.setenv("ICQL_CACHE", str(tmp_path))
        monkeypatch.delenv("ICQL_D4RL_DIR", raising=False)
        monkeypatch.setattr(download, "WAIT", 0.0)
        monkeypatch.setattr(download, "TIMEOUT", 10.0)
        yield server
        server.shutdown()
        thread.join()


FETCHES = """
import sys
from icql.data.download import fetch
print(fetch(sys.argv[1], tell=lambda said: print(said, flush=True)), flush=True)
"""


@pytest.mark.parametrize("killed", [False, True])
def test_two_processes_fetch_once_and_a_dead_one_holds_nobody_up(
    server: Server, content: bytes, killed: bool
) -> None:
    def start() -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", FETCHES, NAME]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    server.goes_on.clear()  # the first gets half of it, then waits
    first = start()
    second = None
    try:
        assert server.asked.wait(60)
        second = start()
        assert second.stdout is not None
        said = second.stdout.readline()
        assert said.startswith(f"waiting for process {first.pid} on ")
        assert said.endswith(f", which fetches {NAME}\n")
        if killed:
            first.kill()
        server.goes_on.set()
        assert second.stdout.readlines() == [f"{cached_file(NAME)}\n"]
        assert second.wait() == 0
    finally:
        server.goes_on.set()
        for child in filter(None, (first, second)):
            child.kill()
            child.communicate()
    assert cached_file(NAME).read_bytes() == content
    assert len(server.seen) == 1 + killed
    names = {path.name for path in cached_file(NAME).parent.iterdir()}
    assert names == {f"{NAME}.hdf5", f"{NAME}.hdf5.json"}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def left() -> list[str]:
    folder = download.datasets_dir()
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


WHOLE = [f"{NAME}.hdf5", f"{NAME}.hdf5.json"]


def test_fetch_and_load(server: Server, content: bytes) -> None:
    with pytest.raises(UserError, match=f"not found.*Fetch it with `icql data fetch {NAME}`"):
        load_dataset(NAME)
    assert server.seen == []  # nothing is fetched silently
    said: list[tuple[int, int]] = []
    path = fetch(NAME, sha256=sha(content).upper(), progress=lambda *now: said.append(now))
    assert path == cached_file(NAME)
    assert path.read_bytes() == content
    assert said[-1] == (len(content), len(content))
    assert left() == WHOLE
    record = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert record == {"url": url_of(NAME), "bytes": len(content), "sha256": sha(content)}
    assert load_dataset(NAME).info.task == NAME
    assert fetch(NAME) == path
    assert len(server.seen) == 1  # what is there and intact is not fetched again
    fetch(NAME, force=True)
    assert len(server.seen) == 2


def test_the_users_folder_comes_first(
    server: Server, content: bytes, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(NAME)
    monkeypatch.setenv("ICQL_D4RL_DIR", str(tmp_path / "own"))
    assert load_dataset(NAME).info.source == str(cached_file(NAME))
    (tmp_path / "own").mkdir()
    own = tmp_path / "own" / f"{NAME}.hdf5"
    own.write_bytes(content)
    assert load_dataset(NAME).info.source == str(own)


def test_broken_connections_are_taken_up_again(server: Server, content: bytes) -> None:
    server.break_after = [1000, 300_000, 0, 0, 5]
    assert fetch(NAME).read_bytes() == content
    assert server.seen == [
        None,
        "bytes=1000-",
        "bytes=301000-",
        "bytes=301000-",
        "bytes=301000-",
        "bytes=301005-",
    ]
    assert left() == WHOLE


def test_connections_that_bring_something_do_not_count(
    server: Server, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "RETRIES", 1)
    server.break_after = [1000] * 10
    assert fetch(NAME).read_bytes() == content


def test_a_later_call_goes_on(
    server: Server, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "RETRIES", 2)
    server.break_after = [5000, 0, 0, 0]
    with pytest.raises(UserError, match=r"failed 3 times .*5,000 bytes are kept"):
        fetch(NAME)
    assert left() == [f"{NAME}.hdf5.part", f"{NAME}.hdf5.part.json"]
    with pytest.raises(UserError, match="not found"):
        load_dataset(NAME)
    assert fetch(NAME).read_bytes() == content
    assert server.seen[-1] == "bytes=5000-"
    assert left() == WHOLE


def test_a_part_that_was_whole_already(server: Server, content: bytes) -> None:
    server.break_after = [1000]
    fetch(NAME)
    part = cached_file(NAME).rename(cached_file(NAME).with_name(f"{NAME}.hdf5.part"))
    version = {"url": url_of(NAME), "version": server.version}
    part.with_name(f"{part.name}.json").write_text(json.dumps(version))
    assert fetch(NAME).read_bytes() == content
    assert server.seen[-1] == f"bytes={len(content)}-"


def test_a_file_that_changed_in_between_is_fetched_whole(server: Server, content: bytes) -> None:
    server.break_after = [5000, 0, 0, 0, 0, 0, 0]
    with pytest.raises(UserError, match="bytes are kept"):
        fetch(NAME)
    server.content, server.version = content[:-1] + b"\xff", '"2"'
    assert fetch(NAME).read_bytes() == server.content


@pytest.mark.parametrize("lack", ["with_ranges", "marks_versions"])
def test_servers_that_cannot_resume(server: Server, content: bytes, lack: str) -> None:
    setattr(server, lack, False)
    server.break_after = [5000, 7000]
    assert fetch(NAME).read_bytes() == content
    assert len(server.seen) == 3


def test_a_server_that_sends_another_part(server: Server) -> None:
    server.break_after, server.wrong_range = [5000], True
    with pytest.raises(UserError, match="another part of the file than asked for"):
        fetch(NAME)
    assert f"{NAME}.hdf5" not in left()


def test_wrong_checksum_keeps_nothing(server: Server, content: bytes) -> None:
    with pytest.raises(UserError, match=f"has SHA-256 {sha(content)}, but {'0' * 64} was expected"):
        fetch(NAME, sha256="0" * 64)
    assert left() == []
    with pytest.raises(UserError, match="sha256: must be 64 hexadecimal digits"):
        fetch(NAME, sha256="abc")


def test_wrong_checksum_leaves_an_earlier_file_alone(server: Server, content: bytes) -> None:
    fetch(NAME)
    with pytest.raises(UserError, match=r"hopper-medium-v2.hdf5: it has SHA-256 .*--force"):
        fetch(NAME, sha256="0" * 64)
    with pytest.raises(UserError, match=r"the fetched file has SHA-256"):
        fetch(NAME, sha256="0" * 64, force=True)
    assert left() == WHOLE
    assert cached_file(NAME).read_bytes() == content


def test_a_file_damaged_since_is_fetched_again(server: Server, content: bytes) -> None:
    fetch(NAME).write_bytes(content[:-5])
    assert fetch(NAME).read_bytes() == content
    cached_file(NAME).with_name(f"{NAME}.hdf5.json").unlink()
    assert fetch(NAME).read_bytes() == content  # without a record it is taken as it is
    assert len(server.seen) == 2


def test_refusals_of_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.errors = [503, 429, 500]  # these pass
    fetch(NAME)
    assert len(server.seen) == 4
    with pytest.raises(UserError, match=r"walker2d_medium-v2.hdf5: the server answers 404"):
        fetch("walker2d-medium-v2")
    assert len(server.seen) == 5  # asking again would not help
    server.errors = [503] * 10
    with pytest.raises(UserError, match=r"the connection failed 6 times \(HTTP Error 503"):
        fetch("walker2d-medium-v2")
    monkeypatch.setenv("ICQL_D4RL_URL", "http://127.0.0.1:1")
    words = r"failed 6 times \(\[Errno \d+\] Connection refused\). Is there a network\?"
    with pytest.raises(UserError, match=words):
        fetch("walker2d-medium-v2")
    monkeypatch.setenv("ICQL_D4RL_URL", "file:///etc")
    with pytest.raises(UserError, match=r"ICQL_D4RL_URL: 'file:.*' is not a web address"):
        fetch("walker2d-medium-v2")
    assert left() == WHOLE


def test_a_server_may_send_us_on_but_not_off_the_web(server: Server, content: bytes) -> None:
    ours, pythons = "which is not a web address", "is not allowed"
    for place, words in (
        ("file:///etc/passwd", pythons),
        ("ftp://127.0.0.1/x", ours),
        ("data:,x", pythons),
    ):
        server.sends_on_to = place
        with pytest.raises(UserError, match=f"'{place}',? {words}"):
            fetch(NAME)
    assert len(server.seen) == 3  # asking again would not help
    assert left() == []
    server.sends_on_to = server.url.replace("/mirror/", "/moved")
    assert fetch(NAME).read_bytes() == content


def test_a_server_that_sends_us_in_a_circle(server: Server) -> None:
    server.sends_on_to = f"{server.url}{PATH.removeprefix('/mirror/')}"
    with pytest.raises(UserError, match="the server answers 302"):
        fetch(NAME)
    assert left() == []


@pytest.mark.parametrize("digits", ["9" * 12, "9" * 5000])
def test_a_size_that_no_dataset_has(server: Server, digits: str) -> None:
    server.length = digits
    with pytest.raises(UserError, match=r"the server promises (99,999,999,)?999,999,999,999 bytes"):
        fetch(NAME)
    assert left() == []


def test_a_server_without_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.length = ""
    monkeypatch.setattr(download, "MOST", 100_000)
    with pytest.raises(UserError, match="the server sends more than 100,000 bytes"):
        fetch(NAME)
    assert left() == []


def test_a_server_that_drips(
    server: Server, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.drips = 1
    monkeypatch.setattr(download, "TIMEOUT", 0.3)
    with pytest.raises(UserError, match=r"less than 1,000 bytes a second.* bytes are kept"):
        fetch(NAME)
    assert len(server.seen) == 1
    kept = cached_file(NAME).with_name(f"{NAME}.hdf5.part").stat().st_size
    assert 0 < kept < 200  # it is given up while it drips
    assert fetch(NAME).read_bytes() == content
    assert server.seen[-1] == f"bytes={kept}-"


def test_who_waits_for_a_new_attempt_is_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "WAIT", 0.01)
    server.errors = [503, 503]
    said: list[str] = []
    fetch(NAME, tell=said.append)
    words = "the connection failed (HTTP Error 503: Service Unavailable): once more in 0 s"
    assert said == [words]  # a sentence is said once


def test_a_second_fetch_at_the_same_time_spoils_nothing(server: Server, content: bytes) -> None:
    part = cached_file(NAME).with_name(f"{NAME}.hdf5.part")
    meddled: list[int] = []

    def meddle(done: int, total: int) -> None:
        if not meddled:
            with part.open("ab") as file:
                meddled.append(file.write(b"other"))

    assert fetch(NAME, progress=meddle).read_bytes() == content
    assert len(server.seen) == 2


def test_something_else_than_hdf5_is_refused(server: Server) -> None:
    server.content = b"<html>Please log in</html>"
    with pytest.raises(UserError, match="not an HDF5 file"):
        fetch(NAME)
    assert left() == []


def test_no_room(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(UserError, match=r"bytes are needed, but only 10 are free"):
        fetch(NAME)


def test_every_task_of_the_paper_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = {name for name in list_tasks() if get_task(name).transitions is not None}
    assert paper == {name for name in list_tasks() if get_task(name).d4rl_file}
    monkeypatch.delenv("ICQL_D4RL_URL", raising=False)
    base = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
    assert url_of("walker2d-medium-replay-v2") == (
        f"{base}/gym_mujoco_v2/walker2d_medium_replay-v2.hdf5"
    )
    assert url_of("pen-cloned-v1") == f"{base}/hand_dapg_v1/pen-cloned-v1.hdf5"
    assert url_of("kitchen-complete-v0") == (
        f"{base}/kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5"
    )
    with pytest.raises(UserError, match=r"no dataset 'hopper-medum-v2'.*Did you mean 'hopper-med"):
        url_of("hopper-medum-v2")
