"""From a port to answers, until SIGTERM: what was asked by then is answered."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from icql.errors import UserError
from icql.serving.app import make_app
from icql.serving.guard import Served
from icql.serving.policy_file import PolicyFile

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAITING = 1.0  # seconds at the end for requests on connections that are open
ENDING = 30  # seconds at most for answers in the making
BACKLOG = 2048  # connections that wait to be accepted
LETTING_IN = 0.01  # seconds in which connections that were asked for before the end are made
SO_ATTACH_FILTER = 26  # Linux; Python has no name for it


def serve(
    policy: PolicyFile, host: str, port: int, token: str | None, begun: Callable[[str], None]
) -> Served:
    """Answer who knows the token (None: everybody on this machine) until SIGTERM or Ctrl-C.

    `begun` is told the address. Returns what was answered.

    Raises:
        UserError: the host is not this machine, or the port is taken.
    """
    served = Served()
    run_app(make_app(policy, served, token), served, listen(host, port), begun)
    return served


def run_app(
    app: ASGIApp, served: Served, listening: socket.socket, begun: Callable[[str], None]
) -> None:
    """Answer on a socket until SIGTERM or Ctrl-C; `begun` is told the address."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=ENDING,
    )
    server = _Server(config, served, lambda: begun(address_of(listening)))
    # uvicorn raises a signal again once it has ended; here that is how a server is meant to end
    before = signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    try:
        server.run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
        served.beside.shutdown()


def address_of(listening: socket.socket) -> str:
    """The address of a socket; of port 0 the one that was chosen."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this machine alone."""
    if host not in LOOPBACK:
        raise UserError(
            f"must be {', '.join(LOOPBACK[:-1])} or {LOOPBACK[-1]}, not {host!r}: it is served "
            "to its own machine alone.",
            where="--host",
            fix="For others, put a proxy with access control of your own before it.",
        )
    if not 0 <= port < 2**16:
        raise UserError(f"must lie between 0 and 65535, not {port}.", where="--port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        taken = error.errno == errno.EADDRINUSE
        what = "is in use" if taken else f"cannot be listened on ({error.strerror})"
        raise UserError(
            f"port {port} of {host} {what}.", where="--port", fix="Choose another with --port."
        ) from None
    return listening


class _Server(uvicorn.Server):
    """uvicorn, which at the end also answers what is still on its way on open connections."""

    def __init__(self, config: uvicorn.Config, served: Served, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._served, self._begun = served, begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, and say so."""
        await super().startup(sockets)
        self._begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more; answer and close what is open; then end as uvicorn does."""
        self._served.ending = True
        for listening in sockets or ():
            _let_nobody_in(listening)
        await asyncio.sleep(LETTING_IN)
        waiting = [one for listening in sockets or () for one in _accept_all(listening)]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for one in waiting:
            await loop.connect_accepted_socket(self._connection, one)
        until = loop.time() + WAITING
        while self._open and loop.time() < until:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    @property
    def _open(self) -> Any:
        return self.server_state.connections


def _let_nobody_in(listening: socket.socket) -> None:
    """Where the system can, drop what asks for a new connection (SYN), and nothing else.

    Who would connect between the last that is accepted and the closing of the port would be thrown
    out with its request; now it asks again a second later and is told that nobody is there.
    """
    if sys.platform != "linux":
        return
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x30, 0, 0, 13),  # the flags of TCP
            (0x45, 0, 1, 0x02),  # is it a SYN?
            (0x06, 0, 0, 0),  # then drop it,
            (0x06, 0, 0, 0xFFFFFFFF),  # else take all of it
        )
    )
    kept = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HP", len(program) // 8, ctypes.addressof(kept))
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    """Who is connected already but not accepted: closing the port would throw them out."""
    accepted = []
    with contextlib.suppress(OSError):  # nobody is left
        listening.setblocking(False)
        while True:
            one, _ = listening.accept()
            one.setblocking(False)
            accepted.append(one)
    return accepted
