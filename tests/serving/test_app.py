"""What no well-behaved client does, and what no healthy policy does: the application by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from icql.serving import requests
from icql.serving.app import make_app
from icql.serving.guard import Served

BODY = json.dumps({"states": [[1.0, 2.0]]}).encode()


class Fake:
    """A policy of two columns."""

    columns, names, digest, card = 2, [], "", {}

    def __call__(self, states: Any) -> dict[str, Any]:
        return {"actions": states.tolist(), "alarms": [True] * len(states)}


class Broken(Fake):
    def __call__(self, states: Any) -> dict[str, Any]:
        raise RuntimeError("out of order")


def ask(
    policy: Any,
    served: Served,
    *pieces: bytes | None,
    fails: type[Exception] | None = None,
    origin: bytes | None = None,
) -> tuple[int, dict[str, str], Any]:
    """POST a body in pieces; None: the client goes away, and after the last piece it waits."""
    left, sent = list(pieces), []

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.sleep(10)
        piece = left.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": piece != BODY}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost:8000"), (b"content-type", b"application/json")]
    headers += [] if origin is None else [(b"origin", origin)]
    scope = {"type": "http", "method": "POST", "path": "/act", "headers": headers}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http"}
    with pytest.raises(fails) if fails else contextlib.nullcontext():
        asyncio.run(make_app(policy, served, None)(scope, receive, send))
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], head, json.loads(sent[1]["body"])


def test_an_answer_is_counted_and_the_last_ones_close_the_connection():
    served = Served()
    code, head, said = ask(Fake(), served, BODY)
    assert (code, said["actions"]) == (200, [[1.0, 2.0]])
    assert "connection" not in head
    assert (served.requests, served.rows, served.alarms, served.refused) == (1, 1, 1, 0)
    served.ending = True
    assert ask(Fake(), served, BODY)[1]["connection"] == "close"


def test_a_file_of_before_knows_no_stuck_sensors(monkeypatch):
    """Its alarm came without limits of standing still."""
    served, body = Served(), json.dumps({"states": [[1.0, 2.0]], "course": True}).encode()
    monkeypatch.setattr(Fake, "stuck", lambda self, states: None, raising=False)
    monkeypatch.setitem(globals(), "BODY", body)
    code, _, said = ask(Fake(), served, body)
    assert (code, "export it anew" in said["error"], served.requests) == (400, True, 0)


def test_a_body_that_does_not_arrive(monkeypatch):
    monkeypatch.setattr(requests, "SECONDS", 0.05)
    code, _, said = ask(Fake(), Served(), BODY[:5])
    assert code == 408
    assert "took longer" in said["error"]


def test_a_client_that_goes_away_harms_nobody():
    served = Served()
    ask(Fake(), served, BODY[:5], None)
    assert (served.requests, served.refused) == (0, 1)


def test_a_policy_that_fails_is_said_and_raised_for_the_log():
    served = Served()
    code, head, said = ask(Broken(), served, BODY, fails=RuntimeError)
    assert code == 500
    assert "could not be run" in said["error"]
    assert head["x-content-type-options"] == "nosniff"
    assert (served.requests, served.refused) == (0, 1)


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"http://localhost:8001"])
def test_pages_of_other_sites_are_refused(origin):
    served = Served()
    code, headers, said = ask(Fake(), served, BODY, origin=origin)
    assert (code, said) == (403, {"error": "not for pages of other sites."})
    assert "access-control-allow-origin" not in headers
    assert (served.requests, served.refused) == (0, 1)
    assert ask(Fake(), served, BODY, origin=b"http://localhost:8000")[0] == 200
