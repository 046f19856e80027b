"""Memory that is limited (`ulimit -v`, `ulimit -d`): too little of it is one message here as well.

Libraries in C++ that get no memory or no thread end the process themselves, each in its own way,
before Python can say a word. Where there is such a limit the command is therefore run in a child,
made before any of them is imported, and the parent says what became of it. Elsewhere, there is one
process; `ICQL_SUPERVISE=1` asks for two (a container whose kernel kills what grows too large), `0`
for one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from icql.cli.saying import is_debugging, is_memory, remedy
from icql.errors import UserError
from icql.files import listeners, sweep

if sys.platform != "win32":
    import resource

# sent by people and machines to whom they know of: the parent
_PASSED = {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"}
# how libraries end a process, and the kernel one that is too large
_FATAL = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
_SHORT = 112  # exit code of a child that has no memory to say so
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def limits() -> str:
    """The limits of memory that this process has, in words; empty without any."""
    if sys.platform == "win32":
        return ""
    kinds = {"-v": resource.RLIMIT_AS, "-d": resource.RLIMIT_DATA}
    found = {option: resource.getrlimit(kind)[0] for option, kind in kinds.items()}
    said = [f"ulimit {x} allows {n / 1e9:.2f} GB" for x, n in found.items() if n >= 0]
    return " and ".join(said)


def is_watched() -> bool:
    """Whether the command has to be watched."""
    asked = os.environ.get("ICQL_SUPERVISE", "")
    return sys.platform == "linux" and asked != "0" and bool(asked or limits())


def more_memory() -> str:
    """What to do where memory does not suffice."""
    said = f"Here, {limits()}." if limits() else ""
    return f"{remedy(errno.ENOMEM)} {said}".rstrip()


def watched(work: Callable[[], int], say: Callable[[UserError], int]) -> int:
    """Do the work in a child; returns its exit code, or that of what `say` makes of its death."""
    passed = {signal.Signals[name] for name in _PASSED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed | {signal.SIGCHLD})
    ended, end = os.pipe()
    noise, places = os.memfd_create("noise"), os.memfd_create("places")
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # no room for two
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return work()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(ended)
        _die_with(parent)
        listeners.append(lambda folder, made: _note(places, folder, made))
        if not is_debugging():
            _quieten(noise)
        return _reported(work, end)
    os.close(end)
    code = _waited(child, passed)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with open(ended, "rb") as file:
        reported = file.read()
    if reported and code < 0:  # all was done: it died while it was cleared away
        code = int(reported)
    if not reported:
        _tidy(places)
        if code < 0 and signal.Signals(-code).name not in _FATAL:
            signal.signal(-code, signal.SIG_DFL)  # as whoever sent it sees it without a parent
            os.kill(os.getpid(), -code)
        return say(_death(code))
    if code != UserError.exit_code:  # that comes with a sentence
        _passed_on(noise)
    return code


def _reported(work: Callable[[], int], end: int) -> int:
    """The exit code of the work, which the parent hears too: of what died, it hears nothing."""
    code = 1
    try:
        code = work()
        return code
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
        raise
    except BaseException as error:
        if is_memory(error, limited=True):  # not even for a sentence
            os._exit(_SHORT)
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os.write(end, str(code).encode())


def _waited(child: int, passed: set[signal.Signals]) -> int:
    """Wait for the child; signals to this process are for it."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        got = signal.sigwaitinfo(passed | {signal.SIGCHLD})
        # what the terminal sends (a code above 0) reaches all of its processes
        if got.si_signo != signal.SIGCHLD and got.si_code <= 0:
            os.kill(child, got.si_signo)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process with its parent, who alone is known to others."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # a system without
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _quieten(noise: int) -> None:
    """Send to `noise` what libraries write to standard error; Python goes on writing to it.

    Tracebacks that nobody handled are noise too: threads and modules in C++ leave them behind.
    """
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.fileno() != 2:
            return
        own = os.dup(2)
        sys.stderr.flush()
        sys.stderr = open(  # noqa: SIM115  as long as the process
            own, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace"
        )
        os.dup2(noise, 2)
        loud = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.excepthook = lambda *error: traceback.print_exception(*error, file=loud)
        threading.excepthook = lambda said: traceback.print_exception(
            said.exc_type, said.exc_value, said.exc_traceback, file=loud
        )


def _passed_on(noise: int) -> None:
    """Write what libraries said to standard error."""
    with contextlib.suppress(OSError):
        os.write(2, _read(noise))


def _read(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    return b"".join(iter(lambda: os.read(file, 2**16), b""))


def _note(places: int, folder: Path, made: list[Path]) -> None:
    """Remember a folder that is written in, and those that were made for it, innermost first."""
    marked = [
        b"i" + os.fsencode(folder.absolute()),
        *(b"m" + os.fsencode(x.absolute()) for x in made),
    ]
    os.write(places, b"".join(name + b"\0" for name in marked))


def _tidy(places: int) -> None:
    """Take away what a process that died was writing, and folders in which then nothing lies."""
    for name in dict.fromkeys(_read(places).split(b"\0")[:-1]):
        folder = Path(os.fsdecode(name[1:]))
        sweep(folder)
        if name[:1] == b"m":
            with contextlib.suppress(OSError):
                folder.rmdir()


def _death(code: int) -> UserError:
    if code == _SHORT:
        return UserError("memory does not suffice.", fix=more_memory())
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    who = "the system" if how == "SIGKILL" else "a library"
    return UserError(
        f"{who} ended the process ({how}), as happens where memory does not suffice.",
        fix=more_memory(),
    )
