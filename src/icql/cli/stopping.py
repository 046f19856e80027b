"""SIGTERM ends a command as Ctrl-C does: clusters and services send it to have the machine back.

A signal is an exception at whatever line is being run. Where that line is in a finaliser or a
callback of the garbage collector, Python drops the exception; where it is in somebody's C++, it
comes back as another. Neither may make a command go on, or end in a traceback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from icql.errors import Terminated

AGAIN = 0.05  # seconds after which a signal is sent that was dropped
_asked: list[type[KeyboardInterrupt]] = []  # what this process was asked to end with


@contextlib.contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Raise `Terminated` once: what is being written is then tidied up without further ado."""

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _asked.append(Terminated)
        raise Terminated

    def interrupt(*_: Any) -> None:
        _asked.append(KeyboardInterrupt)
        raise KeyboardInterrupt

    def dropped(said: Any) -> None:
        if not isinstance(said.exc_value, KeyboardInterrupt):
            hook(said)
            return
        number = signal.SIGINT
        if isinstance(said.exc_value, Terminated):
            number = signal.SIGTERM
            signal.signal(number, stop)
        later = threading.Timer(AGAIN, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()

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
        for number, handler in before.items():
            signal.signal(number, handler)


def asked_to_stop() -> type[KeyboardInterrupt] | None:
    """What the command was asked to end with, whatever an error that came since calls itself."""
    return _asked[0] if _asked else None
