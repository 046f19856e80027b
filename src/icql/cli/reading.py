"""Options from a command line: what cannot be read is one message, as all other errors are."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

from icql.errors import UserError

T = TypeVar("T")
NEAR = 0.65  # of 1: how alike two names are before one is offered for the other


class _Said(io.StringIO):
    """What tyro prints, with the same frames whatever the terminal can show."""

    encoding = "utf-8"


def read_options(
    form: type[T],
    argv: list[str],
    *,
    prog: str,
    known_elsewhere: Callable[[str], str] = lambda option: "",
    **more: Any,
) -> T:
    """The options that `argv` gives; whatever tyro would say in a frame is a :class:`UserError`.

    `known_elsewhere` says where there is an option of that name, if it is not here.
    """
    more["prog"] = prog
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            chosen, left = tyro.cli(form, args=argv, return_unknown_args=True, **more)
    except SystemExit as stop:
        if not stop.code:  # the help was asked for
            raise
        what = first_part(_said(form, argv, more)).removesuffix("(required)")
        raise UserError(f"{what.rstrip(' .')}.", fix=_more(prog)) from None
    if left:
        raise _unknown(left[0], argv, _said(form, ["--help"], more), prog, known_elsewhere)
    return chosen


def _said(form: type[Any], argv: list[str], more: dict[str, Any]) -> str:
    """What tyro prints of a command line before it exits."""
    said = _Said()
    quiet = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
    with contextlib.suppress(SystemExit), quiet[0], quiet[1]:
        tyro.cli(form, args=argv, return_unknown_args=True, **more)
    return said.getvalue()


def first_part(framed: str) -> str:
    """What stands above the first rule in a frame, as one line."""
    inside = re.findall(r"^│ (.*?) *│$", framed, re.MULTILINE)
    rule = next((at for at, line in enumerate(inside) if line.startswith("──")), len(inside))
    return " ".join(" ".join(inside[:rule]).split())


def names_in(help_: str) -> list[str]:
    """The names of all options: what begins a line of the help, without its dashes."""
    begins = re.findall(r"^│ (?:-\w, )?(--\S+(?: --\S+)*)", help_, re.MULTILINE)
    return [name.strip("-,") for begin in begins for name in begin.split()]


def _unknown(
    word: str, argv: list[str], help_: str, prog: str, known_elsewhere: Callable[[str], str]
) -> UserError:
    """What to do about a word that no option takes."""
    names = names_in(help_)
    if not word.startswith("-"):
        option, value = ["", "", *argv][argv.index(word) :][:2]
        if re.search(rf"^│ (?:-\w, )?{re.escape(option)} [A-Z{{]", help_, re.MULTILINE):
            what = f"no option takes {word!r}: {option} takes one value, here {value!r}."
            return UserError(what, where=prog, fix=_more(prog))
        data = "dataset" in names and os.path.exists(word)
        fix = f"Data is named so: --dataset {word}. " if data else ""
        return UserError(f"no option takes {word!r}.", where=prog, fix=f"{fix}{_more(prog)}")
    option = word.partition("=")[0]
    name = option.lstrip("-")
    # settings have a section in front of their name, which is easily forgotten
    near = [known for known in names if known.endswith(f".{name}")]
    elsewhere = "" if near else known_elsewhere(name)
    near = near or difflib.get_close_matches(name, names, n=2, cutoff=NEAR)
    asked = f"Did you mean --{' or --'.join(near)}? " if near else ""
    fix = f"{elsewhere or asked}{_more(prog)}"
    return UserError(f"there is no option {option!r}.", where=prog, fix=fix)


def _more(prog: str) -> str:
    return f"All options: {prog} --help"
