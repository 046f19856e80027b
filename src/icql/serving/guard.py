"""Who may ask a server of this machine: a browser's page of another origin may not.

A page in a browser may send requests to any address, a loopback one too. So a request must name a
loopback host: a name that was made to lead here is none. And where a browser says which page asks,
it must be a page of this very server; programs say nothing of the kind. Other users of the machine
reach its loopback address as well: they do not know the token.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icql.errors import UserError

TOKEN = "ICQL_TOKEN"  # environment variable: options are seen by every user of a machine
SHORTEST = 16  # characters of a token that was chosen
HOSTS = ("localhost", "127.0.0.1", "[::1]")
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


class Guard:
    """Lets requests to a loopback host in, and puts the same headers on every answer."""

    def __init__(self, app: ASGIApp, served: Served, headers: Mapping[str, str] = HEADERS) -> None:
        self.app, self.served = app, served
        self._always = [(name.encode(), value.encode()) for name, value in headers.items()]

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

        refusal = _refusal(scope["headers"])
        if refusal is not None:
            self.served.refused += 1
        await (refusal or self.app)(scope, receive, guarded)


class Bearer:
    """Lets in who names the token, as `Authorization: Bearer TOKEN`."""

    def __init__(self, app: ASGIApp, token: str, served: Served) -> None:
        self.app, self.served, self._expected = app, served, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if len(given) == 1 and secrets.compare_digest(given[0], self._expected):  # constant time
            await self.app(scope, receive, send)
            return
        self.served.refused += 1
        said = {"error": "send the server's token, with the header Authorization: Bearer TOKEN."}
        await json_answer(said, 401, {"www-authenticate": "Bearer"})(scope, receive, send)


def chosen_token() -> str | None:
    """The token that the environment names; None where it names none.

    Raises:
        UserError: anybody could guess it, or no header can hold it.
    """
    token = os.environ.get(TOKEN)
    if not token:
        return None
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(
            f"must be at least {SHORTEST} ASCII characters without spaces.",
            where=TOKEN,
            fix="Make one with: python -c 'import secrets; print(secrets.token_urlsafe())', or "
            "leave it out: one is then made and said.",
        )
    return token


def _refusal(headers: Sequence[tuple[bytes, bytes]]) -> Response | None:
    """What is answered to who may not ask."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or _host(hosts[0]) not in HOSTS:
        return json_answer({"error": f"only for this machine: {', '.join(HOSTS)}."}, 421)
    pages = [value for name, value in headers if name == b"origin"]
    if any(page.lower() != b"http://" + hosts[0].lower() for page in pages):
        return json_answer({"error": "not for pages of other sites."}, 403)
    return None


def _host(header: bytes) -> str:
    """The host of a Host header without its port."""
    host = header.decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def json_answer(
    content: Any, code: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    given = None if headers is None else dict(headers)
    return Response(as_json(content), code, given, media_type="application/json")


def as_json(content: Any) -> bytes:
    """Content as compact JSON; a number that is not finite is an error."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
