"""SIGTERM ends a command as Ctrl-C does: clusters and services send it to have the machine back."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from icql.errors import Terminated


@contextlib.contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Raise `Terminated` once: what is being written is then tidied up without further ado."""

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only there signals are caught
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
