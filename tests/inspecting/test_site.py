"""`icql inspect RUN`: right answers for whoever has the address, and nothing for anybody else."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import browser
import icql
from icql.cli import main
from icql.inspecting.view import View
from icql.progress import Display
from inspecting.made import EVIL


class Site:
    """A server of its own, as people start it."""

    def __init__(self, *runs: Any) -> None:
        command = [sys.executable, "-m", "icql", "inspect", *map(str, runs), "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "serving" in line:
                break
        assert "serving" in lines[-1], "".join(lines)
        self.address = lines[-1].partition(" at ")[2].split()[0]
        self.port = int(self.address.split(":")[2].partition("/")[0])
        self.token = self.address.split("/")[3]

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as one:
            one.request(method, path, None if body is None else json.dumps(body), given)
            answer = one.getresponse()
            return answer.status, answer.read(), answer.headers

    def get(self, path: str) -> tuple[int, Any]:
        code, body, _ = self.ask("GET", f"/{self.token}/{path}")
        return code, json.loads(body)


@pytest.fixture(scope="module")
def site(runs) -> Iterator[Site]:
    one = Site(runs["icql"], runs["bc"])
    yield one
    one.process.terminate()
    out, err = one.process.communicate(timeout=30)
    assert one.process.returncode == 0, err
    assert "answered" in out


def test_answers_are_those_of_the_runs(site, runs):
    view = View([runs["icql"], runs["bc"]], dataset=None, rate=0.05, display=Display(quiet=True))
    code, found = site.get("row/33")
    assert code == 200
    expected = view.row(33)
    assert found["shared"]["row"] == [33]
    assert found["runs"][0]["near"] == expected["runs"][0]["near"]
    np.testing.assert_allclose(
        found["runs"][0]["value"], expected["runs"][0]["value"], rtol=1e-5, atol=1e-6
    )
    body = {"states": [[0.1, 0.2, 0.3]]}
    code, said, _ = site.ask("POST", f"/{site.token}/state", body, Content_Type="application/json")
    assert code == 200
    act = icql.load_policy(runs["bc"]).act([0.1, 0.2, 0.3])
    np.testing.assert_allclose(json.loads(said)["runs"][1]["action"], act, rtol=1e-5)
    code, episode = site.get("episode/2")
    assert (code, episode["episode"]) == (200, 2)
    assert len(episode["runs"][0]["value"]) == len(episode["series"]["row"])


@pytest.mark.parametrize(
    "path", ["/", "/row/3", "/state", "/TOKEN", "/wrong/", "/wrong/row/3", "/%ff/", "/TOKENx/"]
)
def test_nothing_is_told_without_the_token(site, path):
    code, body, headers = site.ask("GET", path.replace("TOKEN", site.token))
    assert code == 403
    assert list(json.loads(body)) == ["error"]
    assert "Access-Control-Allow-Origin" not in headers


def test_a_name_that_leads_here_is_refused(site):
    code, _, _ = site.ask("GET", f"/{site.token}/", Host="evil.example")
    assert code == 421


def test_a_page_of_another_site_is_refused_even_with_the_token(site):
    code, said, headers = site.ask("GET", f"/{site.token}/", Origin="https://evil.example")
    assert (code, json.loads(said)) == (403, {"error": "not for pages of other sites."})
    assert "Access-Control-Allow-Origin" not in headers


def test_headers_forbid_frames_foreign_scripts_and_sniffing(site):
    code, page, headers = site.ask("GET", f"/{site.token}/")
    assert code == 200
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    assert EVIL.encode() not in page


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "words"),
    [
        ("GET", "row/100000", None, 404, "the log has 228 rows"),
        ("GET", "episode/99", None, 404, "12 episodes"),
        ("GET", "nothing", None, 404, "Not Found"),
        ("POST", "state", {"states": [[1, 2]]}, 400, "must be 3"),
        ("POST", "state", {"states": [[1, 2, 3], [1, 2, 3]]}, 400, "one state at a time"),
    ],
)
def test_what_is_refused_is_said(site, method, path, body, code, words):
    found, said, _ = site.ask(
        method, f"/{site.token}/{path}", body, Content_Type="application/json"
    )
    assert found == code
    assert words in json.loads(said)["error"]


def test_a_port_in_use_and_an_unknown_run(runs, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["inspect", str(runs["bc"]), "--port", port]) == 2
    assert f"port {port} of 127.0.0.1 is in use" in capsys.readouterr().err
    assert main(["inspect", "nowhere", "--port", "0"]) == 2
    assert "there is no such run folder" in capsys.readouterr().err


@pytest.mark.skipif(not browser.installed(), reason="needs chromium and chromedriver")
def test_a_click_in_a_browser_shows_the_evidence(site, tmp_path):
    with browser.browser(tmp_path / "profile") as page:
        page.open(site.address)
        first = _until(page, "return document.querySelector('.alarm') && title()")
        assert first.startswith("icql. Row ")
        page.run(
            "const m = document.querySelector('canvas.map'), b = m.getBoundingClientRect();"
            "m.dispatchEvent(new MouseEvent('click',"
            "  {clientX: b.left + 0.2 * b.width, clientY: b.top + 0.3 * b.height}))"
        )
        second = _until(page, f"return title() !== {json.dumps(first)} && title()")
        assert second.startswith("icql. Row ")
        assert page.run("return document.querySelectorAll('.scroll table').length") >= 6
        page.run(
            "const f = document.querySelectorAll('form')[1];"
            "f.elements.state.value = '50 50 50'; f.requestSubmit()"
        )
        _until(page, "return title().endsWith('A state that you gave')")
        assert page.run("return document.querySelector('.alarm').textContent").startswith(
            "The alarm rings."
        )
        assert EVIL in page.run("return document.querySelector('details').textContent")
        assert page.run("return document.querySelectorAll('details script').length") == 0
        assert page.complaints() == []


def _until(page: Any, script: str) -> Any:
    """What a script returns, once that is true."""
    title = "function title() { return [...document.querySelectorAll('h2')].map(h => h.textContent)"
    title += ".filter(t => t.startsWith('icql. '))[0] || ''; }"
    for _ in range(100):
        if found := page.run(f"{title} {script}"):
            return found
        time.sleep(0.1)
    raise AssertionError(f"never: {script}")
