"""The answers: POST /act, GET /health and GET / as an ASGI application, for this machine alone.

POST must be JSON, which a page of another origin may not send without asking first; the guard asks
for a loopback host, and before anything is answered the token is asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from icql._version import __version__
from icql.serving.guard import Bearer, Guard, Served, as_json, json_answer
from icql.serving.policy_file import PolicyFile
from icql.serving.requests import (
    Refused,
    is_course,
    most_bytes,
    read_body,
    read_object,
    states_of,
)

SMALL = 2**14  # bytes: what is larger is answered beside the loop, so that others need not wait


def make_app(policy: PolicyFile, served: Served, token: str | None) -> ASGIApp:
    """The application of one policy, for who knows the token (None: for everybody here)."""
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
    inner = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(inner if token is None else Bearer(inner, token, served), served)


class Answers:
    """An answer for every route."""

    def __init__(self, policy: PolicyFile, served: Served) -> None:
        self.policy, self.served = policy, served
        self.limit = most_bytes(policy.columns)

    async def act(self, request: Request) -> Response:
        """Actions, distances and alarms of the states in the body; of a course, what is stuck."""
        body = await read_body(request, self.limit)
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
        asked = read_object(body)
        states, beside = states_of(asked, self.policy), {}
        if is_course(asked):
            beside["stuck"] = self.policy.stuck(states)
            if beside["stuck"] is None:
                raise Refused(
                    400, "the file has no limits of standing still: export it anew, with an alarm."
                )
        answer = self.policy(states) | beside
        return as_json(answer), len(states), sum(answer.get("alarms", ()))

    async def health(self, request: Request) -> Response:
        """Whether it answers, and what."""
        served = self.served
        return json_answer(
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
        return json_answer(self.policy.card)

    async def refuse(self, request: Request, error: Refused) -> Response:
        """Say what is wrong with a request."""
        self.served.refused += 1
        return json_answer({"error": str(error)}, error.code)

    async def unknown(self, request: Request, error: HTTPException) -> Response:
        """Say what there is instead."""
        self.served.refused += 1
        known = "POST /act, GET /health, GET /"
        said = {"error": f"{error.detail}: there is {known}."}
        return json_answer(said, error.status_code, error.headers)

    async def fail(self, request: Request, error: Exception) -> Response:
        """Say that it is not the request's fault; what happened goes to standard error."""
        self.served.refused += 1
        return json_answer(
            {"error": "the policy could not be run; the server's log says why."}, 500
        )
