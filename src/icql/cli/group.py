"""Commands with commands of their own, such as `icql data list`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from icql.errors import UserError, nearest

# command: (module with a `run(argv) -> result | None`, one line of help)
Commands = dict[str, tuple[str, str]]


def dispatch(group: str, commands: Commands, help_: str, argv: list[str]) -> dict[str, Any] | None:
    """Run the command that `argv` begins with, or print `help_` with {commands} listed."""
    if argv and argv[0] in ("-h", "--help"):
        lines = (f"  {name:<10} {summary}" for name, (_, summary) in commands.items())
        print(help_.format(commands="\n".join(lines)), end="")
        return None
    command = argv[0] if argv else ""
    if command not in commands:
        said = f"there is no command {command!r}." if argv else "say which command."
        raise UserError(said, where=f"icql {group}", fix=nearest(command, list(commands)))
    result: dict[str, Any] | None = import_module(commands[command][0]).run(argv[1:])
    return result
