"""Waiting for a lock whose file goes with it."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

from icql.locks import queued


def test_the_lock_of_a_file_that_is_gone_is_not_the_lock(tmp_path: Path) -> None:
    """Who waited for the first holder gets the lock of its file, which a third no longer sees."""
    path, told, entered = tmp_path / "lock", threading.Semaphore(0), threading.Event()

    def wait() -> None:
        with queued(path, lambda _: told.release()):
            entered.set()

    with path.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert told.acquire(timeout=10)
        path.unlink()
        third = path.open("w")
        fcntl.flock(third, fcntl.LOCK_EX)
    with third:  # the first has let go
        while told.acquire(blocking=False):
            """What was said of the first."""
        assert told.acquire(timeout=10)  # it waits for the third
        assert not entered.is_set()
    waiting.join(10)
    assert entered.is_set()
    assert not path.exists()
