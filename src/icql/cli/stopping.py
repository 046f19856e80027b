"""SIGTERM ends a command as Ctrl-C does: clusters and services send it to have the machine back.

A signal is an exception at whatever line is being run. Where that line is in a finaliser or a
callback of the garbage collector, Python drops the exception; where it is in somebody's C++, it
comes back as another. Neither may make a command go on, or end in a traceback.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from icql.errors import Terminated

AGAIN = 0.05  # seconds after which a signal is sent that was dropped, or came too early
ONCE = 0.5  # seconds within which a second Ctrl-C is the first one
_asked: list[type[KeyboardInterrupt]] = []  # what this process was asked to end with


@contextlib.contextmanager
def stopping_on_sigterm(own: bool = False) -> Iterator[None]:
    """Raise `Terminated` once: what is being written is then tidied up without further ado.

    With `own`, the process is the command's own and ends with it: nothing that comes within `ONCE`
    disturbs that, and what comes later ends it on the spot.
    """

    heard = -math.inf  # when it was last asked to end

    def again(number: int) -> None:
        later = threading.Timer(AGAIN, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if _loads_a_module(frame):
            again(number)
            return
        heard = time.monotonic()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _asked.append(Terminated)
        raise Terminated

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if _loads_a_module(frame):
            again(number)
            return
        if time.monotonic() - heard < ONCE:  # `timeout -s INT` sends it to us, and to all of us
            return
        heard = time.monotonic()
        _asked.append(KeyboardInterrupt)
        raise KeyboardInterrupt

    def late(number: int, _: Any) -> None:
        if time.monotonic() - heard >= ONCE:
            os._exit(128 + number)

    def dropped(said: Any) -> None:
        nonlocal heard
        if not isinstance(said.exc_value, KeyboardInterrupt):
            hook(said)
            return
        number, heard = signal.SIGINT, -math.inf
        if isinstance(said.exc_value, Terminated):
            number = signal.SIGTERM
            signal.signal(number, stop)
        again(number)

    if threading.current_thread() is not threading.main_thread():  # only there signals are caught
        yield
        return
    _asked.clear()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else others look after it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if not _asked:
            heard = time.monotonic()
        for number, handler in before.items():
            signal.signal(number, late if own else handler)


def _loads_a_module(frame: FrameType | None) -> bool:
    """Whether a module in C++ is being loaded: some end the process where Python raises in them."""
    while frame is not None:
        loading = frame.f_code.co_name in ("create_module", "exec_module")
        if loading and type(frame.f_locals.get("self")).__name__ == "ExtensionFileLoader":
            return True
        frame = frame.f_back
    return False


def asked_to_stop() -> type[KeyboardInterrupt] | None:
    """What the command was asked to end with, whatever an error that came since calls itself."""
    return _asked[0] if _asked else None


def last_to_leave() -> Callable[[int], None]:
    """Return what ends this process with an exit code, once all that wants to be closed is closed.

    To be called before the libraries are imported: who asks first is asked last. XLA may still be
    computing what an interrupted command asked for; where Python then takes everything down, that
    crashes.
    """
    codes: list[int] = []

    def leave() -> None:
        if codes:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(codes[0])
        for number in (signal.SIGTERM, signal.SIGINT):  # all is done; Python would forget `late`
            signal.signal(number, signal.SIG_IGN)

    atexit.register(leave)
    return codes.append
