"""`icql serve`: right answers, refusals in words, and nothing lost at the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from icql.cli import main
from icql.serving.policy_file import PolicyFile
from icql.serving.requests import MOST_ROWS, most_bytes
from icql.serving.server import _accept_all, _let_nobody_in, listen
from serving.made import KNOWN, OBS, TOKEN, Server, serving, write_policy

ROW = [0.1, -0.2, 0.3]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("serving") / "policy.onnx")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    with serving(path) as one:
        yield one


def test_answers_are_those_of_the_file(server, path):
    states = np.random.default_rng(1).normal(size=(70, OBS)).astype(np.float32)  # several blocks
    states[5] = 100
    code, said, _ = server.ask("POST", "/act", {"states": states.tolist()})
    assert code == 200
    expected = PolicyFile(path)(states)
    assert_allclose(said["actions"], expected["actions"], rtol=1e-6)
    assert 40 <= said["actions"][0][0] <= 90
    assert said["alarms"][5] is True
    assert said["distances"][5] > said["limit"] == expected["limit"]
    assert (np.array(said["distances"]) > said["limit"]).tolist() == said["alarms"]


def test_of_an_episodes_last_states_stuck_sensors_are_named(server, path):
    states = np.random.default_rng(2).normal(size=(12, OBS)).astype(np.float32)
    states[4:, 1] = states[4, 1]
    code, said, _ = server.ask("POST", "/act", {"states": states.tolist(), "course": True})
    assert code == 200
    assert PolicyFile(path).card["alarm"]["still"]["states"] == [1] * OBS  # all move every time
    assert said["stuck"] == [["water"] if row > 4 else [] for row in range(12)]
    assert said["actions"] == server.ask("POST", "/act", {"states": states.tolist()})[1]["actions"]
    assert "stuck" not in server.ask("POST", "/act", {"states": [ROW], "course": False})[1]


def test_health_and_card(server):
    code, health, _ = server.ask("GET", "/health")
    assert (code, health["status"]) == (200, "ok")
    code, card, _ = server.ask("GET", "/")
    assert code == 200
    assert card["signals"]["observation"] == ["pressure", "water", "price"]


def test_as_many_rows_as_allowed_are_answered_while_others_are(server):
    body = {"states": [ROW] * MOST_ROWS}
    waited = []

    def ask_small() -> None:
        begin = time.perf_counter()
        assert server.ask("POST", "/act", {"states": [ROW]})[0] == 200
        waited.append(time.perf_counter() - begin)

    large: list[int] = []
    thread = threading.Thread(
        target=lambda: large.append(len(server.ask("POST", "/act", body)[1]["actions"]))
    )
    thread.start()
    ask_small()
    thread.join()
    assert large == [MOST_ROWS]
    assert waited


REFUSED = {
    "NaN": ('{"states": [[NaN, 0, 0]]}', 400, "not valid JSON"),
    "infinite": ('{"states": [[0, 1e999, 0]]}', 400, "column 1 (water) of row 0 is not finite"),
    "too large for float32": ({"states": [ROW, [0, 0, 1e200]]}, 400, "column 2 (price) of row 1"),
    "too few columns": (
        {"states": [ROW, [0, 0]]},
        400,
        "row 1 of `states` is 2 numbers, must be 3",
    ),
    "words": ({"states": [["1", "2", "3"]]}, 400, "numbers alone"),
    "null": ({"states": [[None, 0, 0]]}, 400, "numbers alone"),
    "truth": ({"states": [[True, False, True]]}, 400, "numbers alone"),
    "nested": ({"states": [[[1], [2], [3]]]}, 400, "numbers alone"),
    "huge integer": ({"states": [[10**400, 0, 0]]}, 400, "numbers alone"),
    "one row by itself": ({"states": ROW}, 400, "a list of rows"),
    "no rows": ({"states": []}, 400, "a list of rows"),
    "a row that is none": ({"states": [ROW, 3]}, 400, "no list of numbers"),
    "no states": ({"state": [ROW]}, 400, "must be an object"),
    "a list": ([ROW], 400, "must be an object"),
    "a course of words": ({"states": [ROW], "course": "yes"}, 400, "true or false"),
    "not JSON": ("states", 400, "not valid JSON"),
    "not text": (b"\xff\xfe\xfa", 400, "not valid JSON"),
    "deep": ("[" * 100_000, 400, "not valid JSON"),
    "a row too many": ('{"states": [' + "[0,0,0]," * MOST_ROWS + "[0,0,0]]}", 413, "10,001 rows"),
    "a million rows": ('{"states": [' + "[0,0,0]," * 10**6 + "[0,0,0]]}", 413, "larger than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_said(server, name):
    body, code, words = REFUSED[name]
    found, said, _ = server.ask("POST", "/act", body)
    assert found == code, said
    assert words in said["error"]
    assert server.ask("POST", "/act", {"states": [ROW]})[0] == 200  # and the next one is answered


def test_a_body_without_a_length_is_refused_once_it_is_too_large(server):
    def pieces() -> Iterator[bytes]:
        for _ in range(most_bytes(OBS) // 2**16 + 2):
            yield b" " * 2**16

    with contextlib.closing(server.connect()) as connection:
        try:
            connection.request("POST", "/act", pieces(), KNOWN, encode_chunked=True)
        except (BrokenPipeError, ConnectionResetError):
            return  # it was refused before all was sent
        assert connection.getresponse().status == 413


@pytest.mark.parametrize(
    ("method", "place", "headers", "code"),
    [
        ("GET", "/act", {}, 405),
        ("GET", "/nothing", {}, 404),
        ("POST", "/act", {"Content_Type": "text/plain"}, 415),
        ("GET", "/", {"Host": "evil.example"}, 421),
        ("GET", "/", {"Host": "127.0.0.1.evil.example:8000"}, 421),
        ("GET", "/", {"Host": "localhost:1"}, 200),
        ("GET", "/", {"Host": "[::1]:8000"}, 200),
    ],
)
def test_who_may_ask_what(server, method, place, headers, code):
    found, said, sent = server.ask(method, place, "{}" if method == "POST" else None, **headers)
    assert found == code
    assert code == 200 or "error" in said
    assert sent["X-Content-Type-Options"] == "nosniff"
    assert sent["Content-Security-Policy"].startswith("default-src 'none'")
    assert "Server" not in sent


@pytest.mark.parametrize(
    "given", ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN]
)
@pytest.mark.parametrize("place", ["/", "/health", "/act", "/nothing"])
def test_nothing_is_told_without_the_token(server, given, place):
    code, said, sent = server.ask("GET", place, Authorization=given)
    assert (code, sent["WWW-Authenticate"]) == (401, "Bearer")
    assert said == {
        "error": "send the server's token, with the header Authorization: Bearer TOKEN."
    }
    assert sent["X-Frame-Options"] == "DENY"


def test_a_token_is_made_and_said_where_none_is_chosen(path):
    with serving(path, token="") as server:
        assert server.process.stderr is not None
        token = server.process.stderr.readline().split()[-1]
        assert len(token) == 32
        assert server.ask("GET", "/health")[0] == 401
        assert server.ask("GET", "/health", Authorization=f"Bearer {token}")[0] == 200


def test_a_token_is_not_asked_for_where_nobody_wants_one(path):
    with serving(path, "--no-token", token="short") as server:
        assert server.ask("GET", "/health", Authorization="")[0] == 200


@pytest.mark.parametrize(
    "token", ["short", "with a space in its middle", "naïve-naïve-naïve-naïve"]
)
def test_a_token_that_anybody_could_guess_is_refused(path, token, monkeypatch, capsys):
    monkeypatch.setenv("ICQL_TOKEN", token)
    said = refused(capsys, str(path), "--port", "70000")  # it would serve if this were taken
    assert said.startswith("icql: error: ICQL_TOKEN: must be at least 16 ASCII characters")
    assert token not in said


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_request_of_the_page_on_exporting_is_answered(server):
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("$ curl"))
    line = line.removeprefix("$ ").replace("localhost:8000", f"127.0.0.1:{server.port}")
    done = subprocess.run(
        line, shell=True, env=os.environ | {"ICQL_TOKEN": TOKEN}, capture_output=True, check=True
    )
    assert len(json.loads(done.stdout)["actions"]) == 1


def test_a_file_without_an_alarm_gives_actions_alone(tmp_path):
    with serving(write_policy(tmp_path / "policy.onnx", alarm=False)) as plain:
        code, said, _ = plain.ask("POST", "/act", {"states": [ROW]})
        assert (code, list(said)) == (200, ["actions"])
        code, said, _ = plain.ask("POST", "/act", {"states": [ROW], "course": True})
        assert (code, "no limits of standing still" in said["error"]) == (400, True)


@pytest.mark.parametrize("kept", [True, False], ids=["open connections", "new connections"])
def test_sigterm_loses_nothing(path, kept):
    """Every request that was sent is answered in full; then nobody is let in any more."""
    answered, lost = [], []

    def ask_on(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        while True:
            if connection.sock is None:
                try:
                    connection.connect()
                except ConnectionError:
                    return  # not let in: nothing was asked
            try:
                body = json.dumps({"states": [ROW] * 20})
                connection.request("POST", "/act", body, KNOWN)
                answer = connection.getresponse()
                said = json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                lost.append(repr(error))
                return
            answered.append(len(said["actions"]))
            if not kept:
                connection.close()

    with serving(path, "--json") as server:
        threads = [threading.Thread(target=ask_on, args=(server.port,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.7)
        code, out, _ = server.end()
        for thread in threads:
            thread.join()
    assert code == 0
    assert lost == []
    assert len(answered) > 50
    assert set(answered) == {20}
    assert json.loads(out)["requests"] == len(answered)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot drop what asks")
def test_between_the_last_accepted_and_the_closing_nobody_is_let_in():
    """Who came before is accepted and heard; who comes after is left to ask again."""
    with contextlib.closing(listen("127.0.0.1", 0)) as listening:
        address = listening.getsockname()[:2]
        with socket.create_connection(address) as before:
            _let_nobody_in(listening)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.2)
            before.sendall(b"heard")
            (accepted,) = _accept_all(listening)
            with accepted:
                accepted.settimeout(5)
                assert accepted.recv(5) == b"heard"


def test_a_request_in_the_making_is_finished_after_sigterm(path):
    with serving(path) as server, contextlib.closing(server.connect()) as connection:
        body = json.dumps({"states": [ROW]}).encode()
        connection.putrequest("POST", "/act")
        for name, value in KNOWN.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        connection.send(body[:5])
        time.sleep(0.3)
        server.process.terminate()
        time.sleep(1.5)  # beyond the time for connections on which nothing is asked
        connection.send(body[5:])
        answer = connection.getresponse()
        assert answer.status == 200
        assert len(json.loads(answer.read())["actions"]) == 1
        assert server.end()[0] == 0


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["serve", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_files_and_places_that_cannot_be_served(path, tmp_path, capsys):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "changed.onnx").write_bytes(content)
    assert "changed or damaged" in refused(capsys, str(tmp_path / "changed.onnx"))
    (tmp_path / "other.onnx").write_bytes(b"something else")
    assert "no policy file" in refused(capsys, str(tmp_path / "other.onnx"))
    assert "cannot be read" in refused(capsys, str(tmp_path / "none.onnx"))
    assert "--host: must be" in refused(capsys, str(path), "--host", "0.0.0.0")
    assert "--port: must lie" in refused(capsys, str(path), "--port", "70000")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert f"port {port} of 127.0.0.1 is in use" in refused(capsys, str(path), "--port", port)


def test_serving_needs_no_jax(path):
    code = (
        "import sys; from pathlib import Path; import icql.cli.export, icql.serving.server; "
        "from icql.serving.policy_file import PolicyFile; PolicyFile(Path(sys.argv[1])); "
        "print([m for m in ('jax', 'equinox', 'faiss', 'h5py', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_sigterm_at_once_and_a_client_that_goes_away(path):
    with serving(path) as server:
        connection = server.connect()
        connection.putrequest("POST", "/act")
        for name, value in KNOWN.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        connection.close()
        assert server.ask("GET", "/health")[0] == 200
        code, out, err = server.end()
    assert (code, err) == (0, "")
    assert "refused 1" in out
    with serving(path) as server:
        assert server.end()[0] == 0
