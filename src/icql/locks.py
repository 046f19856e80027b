"""One process at a time: a lock on a file, which the system lets go of when its process dies."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from icql.errors import UserError

if sys.platform == "win32":
    import msvcrt

    def _take(file: IO[str]) -> None:
        file.seek(2**30)  # beyond what is written: holders stay readable
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

    def _release(file: IO[str]) -> None:
        file.seek(2**30)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _take(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


PAUSE = 0.05  # seconds between two tries
PATIENCE = 0.3  # whoever merely looks holds a lock for less


@contextlib.contextmanager
def held(path: Path, patience: float = PATIENCE) -> Iterator[bool]:
    """Try to hold the lock `path` for a while; yields whether it was got.

    Its file stays: removing it would let two processes hold locks on two files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        got = _tried(file, patience)
        try:
            if got:
                _sign(file)
            yield got
        finally:
            if got:
                file.truncate(0)
                _release(file)


@contextlib.contextmanager
def queued(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock `path`, once nobody else does; `tell` hears, at every try, who does.

    For work whose result both want, so that its lock's file goes with the lock: who gets it looks
    whether it is still the file of that name. Where files cannot be locked nobody waits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+") as file:
            try:
                got = _tried(file, PATIENCE)
            except UserError:
                got = None
            if got is None:
                yield
                return
            if not got:
                tell(_signed(file))
            elif _is_at(file, path):
                _sign(file)
                try:
                    yield
                finally:
                    file.truncate(0)
                    with contextlib.suppress(OSError):  # Windows keeps files that are open
                        path.unlink()
                    _release(file)
                return


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def holder(path: Path) -> str | None:
    """Who holds the lock now, e.g. `process 4711 on host`; None if nobody does."""
    if not path.is_file():
        return None
    with path.open("a+") as file:
        if _tried(file, 0.0):
            _release(file)
            return None
        return _signed(file)


def _signed(file: IO[str]) -> str:
    """Who holds a lock that is held."""
    file.seek(0)
    try:
        said = json.loads(file.read())
        return f"process {said['pid']} on {said['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _tried(file: IO[str], patience: float) -> bool:
    end = time.monotonic() + patience
    while True:
        try:
            _take(file)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(PAUSE)
        except OSError as error:  # not held by anybody: it cannot be
            raise UserError(
                f"files cannot be locked here ({error.strerror}).",
                where=file.name,
                fix="Give an --out on a file system that has locks.",
            ) from error


def _sign(file: IO[str]) -> None:
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    file.flush()
