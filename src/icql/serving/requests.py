"""What a request may ask, and how it is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request

MOST_ROWS = 10_000
SECONDS = 20  # for a body to arrive
PER_NUMBER = 32  # bytes of JSON: float64 in full has 24 and a comma
AROUND = 4096  # bytes of JSON beside the numbers


class Refused(Exception):
    """A request that cannot be answered, with HTTP's code for it."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class TakesStates(Protocol):
    """Whatever takes states of so many numbers, with names where they are known."""

    columns: int
    names: list[str]


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request, unless it is too large, too slow or not JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "send JSON, with the header Content-Type: application/json.")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise Refused(408, f"the body took longer than {SECONDS} s.") from None
    except ClientDisconnect:  # nobody reads the answer
        raise Refused(400, "the body was not sent to its end.") from None
    return bytes(body)


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the body is larger than {limit:,} bytes: ask for fewer rows.")


def most_bytes(columns: int) -> int:
    """How large a request may be: about `MOST_ROWS` rows."""
    return MOST_ROWS * (columns * PER_NUMBER + 4) + AROUND


def read_states(body: bytes, policy: TakesStates) -> NDArray[np.float32]:
    """The states (rows, columns) of {"states": [[…], …]}.

    Raises:
        Refused: it is anything else, or a number in it is not finite.
    """
    return states_of(read_object(body), policy)


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is."""
    try:
        asked = json.loads(body, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not valid JSON ({error}).") from None
    if not isinstance(asked, dict) or "states" not in asked:
        raise Refused(400, 'the body must be an object: {"states": [[…], …]}.')
    return asked


def states_of(asked: dict[str, Any], policy: TakesStates) -> NDArray[np.float32]:
    """The states (rows, columns) of an object."""
    rows = asked["states"]
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list):
        raise Refused(400, "`states` must be a list of rows, each a list of numbers.")
    if len(rows) > MOST_ROWS:
        raise Refused(413, f"`states` has {len(rows):,} rows; at most {MOST_ROWS:,} at once.")
    return _numbers(rows, policy)


def is_course(asked: dict[str, Any]) -> bool:
    """Whether the states are an episode's last ones in order: {"course": true}."""
    course = asked.get("course", False)
    if not isinstance(course, bool):
        raise Refused(400, "`course` must be true or false.")
    return course


def _numbers(rows: list[Any], policy: TakesStates) -> NDArray[np.float32]:
    width = policy.columns
    order = f" Their order: {', '.join(policy.names)}." if policy.names else ""
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != width:
            found = f"{len(row)} numbers" if isinstance(row, list) else "no list of numbers"
            raise Refused(400, f"row {i} of `states` is {found}, must be {width}.{order}")
    try:
        wide = np.array(rows)
        if wide.ndim != 2 or wide.dtype.kind not in "fiu":
            raise TypeError
        with np.errstate(over="ignore"):
            states = wide.astype(np.float32)
    except (TypeError, ValueError):
        raise Refused(400, "`states` must hold numbers alone.") from None
    if not np.isfinite(states).all():
        row, column = np.argwhere(~np.isfinite(states))[0]
        name = f" ({policy.names[column]})" if policy.names else ""
        raise Refused(400, f"column {column}{name} of row {row} is not finite in float32.")
    return states


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON's")
