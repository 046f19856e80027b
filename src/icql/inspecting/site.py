"""The served page: on this machine alone, and for whoever was given its address.

The address holds a token that every request must name; without it nothing is told, not even what
there is. Other sites' pages may not read answers (no CORS), frame them, or reach them by a name of
their own (the guard); the page runs its own script and no other.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from icql.inspecting.view import View, listed
from icql.inspecting.webpage import served_page, served_policy
from icql.serving.guard import HEADERS, Guard, Served, json_answer
from icql.serving.requests import Refused, most_bytes, read_body, read_states
from icql.serving.server import run_app


def serve_view(view: View, listening: socket.socket, begun: Callable[[str], None]) -> Served:
    """Answer until SIGTERM or Ctrl-C; `begun` is told the address, token included."""
    served, token = Served(), secrets.token_urlsafe(24)
    app = make_site(view, token, served)
    run_app(app, served, listening, lambda address: begun(f"{address}/{token}/"))
    return served


def make_site(view: View, token: str, served: Served) -> ASGIApp:
    """The application; everything that takes long at first is done here."""
    answers = Site(view, served_page(view).encode(), served)
    answers.warm()
    routes = [
        Route("/", answers.page),
        Route("/row/{row:int}", answers.row),
        Route("/state", answers.state, methods=["POST"]),
        Route("/episode/{place:int}", answers.episode),
    ]
    handlers: Any = {Refused: answers.refuse, HTTPException: answers.unknown}
    headers = {
        **HEADERS,
        "content-security-policy": served_policy(),
        "cross-origin-opener-policy": "same-origin",
    }
    inner = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(Locked(inner, token, served), served, headers)


class Locked:
    """Lets in who names the token as the first part of the path."""

    def __init__(self, app: ASGIApp, token: str, served: Served) -> None:
        self.app, self.served, self._token = app, served, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        named, slash, rest = scope["path"].removeprefix("/").partition("/")
        given = named.encode("utf-8", "surrogateescape")
        if not secrets.compare_digest(given, self._token) or not slash:  # in constant time
            self.served.refused += 1
            refusal = json_answer({"error": "open the whole address that was printed."}, 403)
            await refusal(scope, receive, send)
            return
        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
        await self.app(inner, receive, send)


class Site:
    """An answer for every route."""

    def __init__(self, view: View, page: bytes, served: Served) -> None:
        self.view, self.served, self._page = view, served, page

    def warm(self) -> None:
        """Prepare every search and program once, so that the first click need not wait."""
        self.view.row(0)
        self.view.state(self.view.data.states[:1])

    async def page(self, request: Request) -> Response:
        """The page."""
        return Response(self._page, media_type="text/html; charset=utf-8")

    async def row(self, request: Request) -> Response:
        """All that is shown of a logged row."""
        row = request.path_params["row"]
        if row >= len(self.view.data):
            raise Refused(404, f"the log has {len(self.view.data):,} rows, counted from 0.")
        return await self._answer(self.view.row, row)

    async def state(self, request: Request) -> Response:
        """All that is shown of a state that need not be in the log."""
        body = await read_body(request, most_bytes(self.view.columns))
        states = read_states(body, self.view)
        if len(states) != 1:
            raise Refused(400, "ask about one state at a time.")
        return await self._answer(self.view.state, states)

    async def episode(self, request: Request) -> Response:
        """One episode as series."""
        place = request.path_params["place"]
        if place >= len(self.view.episodes.ids):
            raise Refused(404, f"there are {len(self.view.episodes.ids):,} episodes.")
        return await self._answer(self._series, place)

    def _series(self, place: int) -> dict[str, Any]:
        found = self.view.episode(place)
        runs = [listed(own) for own in found["runs"]]
        return {**found, "series": listed(found["series"]), "runs": runs}

    async def _answer(self, ask: Callable[[Any], Any], what: Any) -> Response:
        """Computed beside the loop, one after another."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.served.beside, ask, what)
        self.served.requests += 1
        return json_answer(found)

    async def refuse(self, request: Request, error: Refused) -> Response:
        """Say what is wrong with a request."""
        self.served.refused += 1
        return json_answer({"error": str(error)}, error.code)

    async def unknown(self, request: Request, error: HTTPException) -> Response:
        """Say that there is nothing."""
        self.served.refused += 1
        return json_answer({"error": error.detail}, error.status_code, error.headers)
