"""What the system refuses, in words that say what to do about it."""

from __future__ import annotations

import errno
import os
import sys

DEBUG = "ICQL_DEBUG=1 shows where in the program."
_READ = "Look who may read and write there, or name another place."
REMEDIES = {
    errno.ENOSPC: "Make room there, or name another place.",
    errno.EDQUOT: "Make room there, or name another place.",
    errno.EFBIG: "Files may not get this large there (see ulimit -f): name another place.",
    errno.EROFS: "Name a place that can be written to.",
    errno.EACCES: _READ,
    errno.EPERM: _READ,
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ELOOP: "Links lead in a circle there: name the file itself.",
    errno.EMFILE: "Let it open more files: ulimit -n 1024.",
    errno.ENFILE: "The whole system has too many files open: end other programs.",
    errno.ENOMEM: "Give it more memory, or less to do: fewer rows, seeds or states.",
}


def remedy(number: int | None) -> str:
    """What to do about an error of the system, by its number."""
    return REMEDIES.get(number or 0, DEBUG)


def is_memory(error: BaseException | None, limited: bool = False) -> bool:
    """Whether memory did not suffice, as XLA, the loader of modules and threads say it too.

    Where it is `limited`, a module in C++ that did not come up is one that got none.
    """
    if error is None or isinstance(error, MemoryError):
        return error is not None
    xla = type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError")
    words = ["failed to map segment", "allocate memory", "can't start new thread", "bad_alloc"]
    words += ["RESOURCE_EXHAUSTED"] * xla + ["while initializing the extension"] * limited
    before = error.__cause__ or error.__context__
    return any(word in str(error) for word in words) or is_memory(before, limited)


def is_debugging() -> bool:
    """Whether all is to be shown that may help to find a mistake in the program."""
    return os.environ.get("ICQL_DEBUG", "0") not in ("", "0")


def speak_anyway() -> None:
    """Let no terminal end a command: characters that it does not know are written as escapes.

    Where output is closed, libraries that look at it find what takes all and shows nothing.
    """
    nowhere = os.devnull
    sys.stdout = sys.stdout or open(nowhere, "w")  # noqa: SIM115  as long as the process
    sys.stderr = sys.stderr or open(nowhere, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
