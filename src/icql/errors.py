"""The exceptions that users see.

A :class:`UserError` says what is wrong, where, and what to do about it. The command line prints
it as one message and exits with code 2; the Python API lets it propagate.
"""

from __future__ import annotations

import signal
import unicodedata
from typing import Any


class UserError(Exception):
    """Something the user can fix.

    Args:
        what: the problem in one sentence.
        where: the file, row, column or setting that has it.
        fix: what to do next.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        fix = f" {self.fix}" if self.fix else ""
        return f"{where}{self.what}{fix}"


class Terminated(KeyboardInterrupt):
    """The system asked the process to end; the shell's word for it is 128 + SIGTERM."""

    exit_code = 128 + signal.SIGTERM


class PartlyFailed(Exception):
    """Some of several pieces of work failed and the others are done: exit code 1.

    Args:
        message: what failed.
        result: what came out, as `--json` prints it.
    """

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        self.result = result
        super().__init__(message)


class OutOfTime(KeyboardInterrupt):
    """Work stopped because its time was up, as an interruption does: all that is done is saved."""


def visible(text: str) -> str:
    """Text with escapes in place of what would steer a terminal, turn it round or not be seen.

    Names of files, columns and runs come from others.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(letter) for letter in text)


def _shown(letter: str) -> str:
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return ascii(letter)[1:-1] if hidden and letter not in "\n\t" else letter


def nearest(name: str, known: list[str]) -> str:
    """Say which of `known` comes closest to a mistyped `name`, and how to see them all."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(sorted(known))}."
