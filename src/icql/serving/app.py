"""The answers: POST /act, GET /health and GET / as an ASGI application, for this machine alone.

A page in a browser may send requests to any address, this one too. So a request must name a
loopback host (a name that was made to lead here is none) and POST must be JSON, which a page of
another origin may not send without asking first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icql._version import __version__
from icql.serving.policy_file import PolicyFile
from icql.serving.requests import Refused, most_bytes, read_states

HOSTS = ("localhost", "127.0.0.1", "[::1]")
SMALL = 2**14  # bytes: what is larger is answered beside the loop, so that others need not wait
SECONDS = 20  # for a body to arrive
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass
class Served:
    """What was answered so far, and whether the end has come."""

    requests: int = 0
    rows: int = 0
    alarms: int = 0
    refused: int = 0
    ending: bool = False  # answer what comes, and close the connection
    beside: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))


def make_app(policy: PolicyFile, served: Served) -> ASGIApp:
    """The application of one policy."""
    answers = Answers(policy, served)
    routes = [
        Route("/act", answers.act, methods=["POST"]),
        Route("/health", answers.health),
        Route("/", answers.card),
    ]
    handlers: Any = {
        Refused: answers.refuse,
        HTTPException: answers.unknown,
        Exception: answers.fail,
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), served)


class Answers:
    """An answer for every route."""

    def __init__(self, policy: PolicyFile, served: Served) -> None:
        self.policy, self.served = policy, served
        self.limit = most_bytes(policy.columns)

    async def act(self, request: Request) -> Response:
        """Actions, distances and alarms of the states in the body."""
        body = await self._body(request)
        if len(body) <= SMALL:
            said, rows, alarms = self._answer(body)
        else:
            loop = asyncio.get_running_loop()
            said, rows, alarms = await loop.run_in_executor(self.served.beside, self._answer, body)
        self.served.requests += 1
        self.served.rows += rows
        self.served.alarms += alarms
        return Response(said, media_type="application/json")

    def _answer(self, body: bytes) -> tuple[bytes, int, int]:
        states = read_states(body, self.policy)
        answer = self.policy(states)
        return _as_json(answer), len(states), sum(answer.get("alarms", ()))

    async def _body(self, request: Request) -> bytes:
        """The body of a request, unless it is too large, too slow or not JSON."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "send JSON, with the header Content-Type: application/json.")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.limit:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.limit:
                        raise self._too_large()
        except TimeoutError:
            raise Refused(408, f"the body took longer than {SECONDS} s.") from None
        except ClientDisconnect:  # nobody reads the answer
            raise Refused(400, "the body was not sent to its end.") from None
        return bytes(body)

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self.limit:,} bytes: ask for fewer rows.")

    async def health(self, request: Request) -> Response:
        """Whether it answers, and what."""
        served = self.served
        return _json(
            {
                "status": "ending" if served.ending else "ok",
                "icql": __version__,
                "digest": self.policy.digest,
                "requests": served.requests,
                "rows": served.rows,
                "alarms": served.alarms,
                "refused": served.refused,
            }
        )

    async def card(self, request: Request) -> Response:
        """What the policy is."""
        return _json(self.policy.card)

    async def refuse(self, request: Request, error: Refused) -> Response:
        """Say what is wrong with a request."""
        self.served.refused += 1
        return _json({"error": str(error)}, error.code)

    async def unknown(self, request: Request, error: HTTPException) -> Response:
        """Say what there is instead."""
        self.served.refused += 1
        known = "POST /act, GET /health, GET /"
        said = {"error": f"{error.detail}: there is {known}."}
        return _json(said, error.status_code, error.headers)

    async def fail(self, request: Request, error: Exception) -> Response:
        """Say that it is not the request's fault; what happened goes to standard error."""
        self.served.refused += 1
        return _json({"error": "the policy could not be run; the server's log says why."}, 500)


class Guard:
    """Lets requests to a loopback host in, and puts the same headers on every answer."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self.app, self.served = app, served
        self._always = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._always]
                if self.served.ending:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or _host(hosts[0]) not in HOSTS:
            self.served.refused += 1
            refusal = _json({"error": f"only for this machine: {', '.join(HOSTS)}."}, 421)
            await refusal(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)


def _host(header: bytes) -> str:
    """The host of a Host header without its port."""
    host = header.decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _json(content: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    given = None if headers is None else dict(headers)
    return Response(_as_json(content), code, given, media_type="application/json")


def _as_json(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
