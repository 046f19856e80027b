"""What every command is: options that are parsed, then executed."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tyro

from icql.cli.reading import read_options
from icql.errors import visible

Flag = tyro.conf.FlagCreatePairsOff[bool]
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options(ABC):
    """The options of a command; its docstring is the help."""

    json: Flag = False
    """Print one JSON object on standard output."""

    @classmethod
    def parse(cls, prog: str, argv: list[str]) -> Self:
        """Read the options from the command line."""
        return read_options(cls, argv, prog=prog, description=inspect.getdoc(cls))

    def say(self, line: str) -> None:
        """Print a line, unless `--json` asks for the result alone."""
        if not self.json:
            print(visible(line))

    def files_written(self) -> Iterable[Path]:
        """The files that it writes: whether they can be is tried before any work is done."""
        return ()

    def folders_written(self) -> Iterable[Path]:
        """The folders that it writes into, likewise."""
        return ()

    def going_on(self) -> str:
        """What to do when it was interrupted, unless `execute` knows better."""
        return "Whatever was written is whole; the same command begins anew."

    @abstractmethod
    def execute(self) -> Result:
        """Do it and say what came out; return what `--json` prints."""
