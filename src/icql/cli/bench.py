"""`icql bench COMMAND`: dispatch to one file per command."""

from __future__ import annotations

from typing import Any

from icql.cli.group import dispatch

COMMANDS = {
    "speed": ("icql.cli.bench_speed", "time, operations and memory of every algorithm's update"),
    "cost": ("icql.cli.bench_cost", "the paper's cost tables: ICQL by context length and layers"),
}

HELP = """\
usage: icql bench COMMAND [OPTIONS]      (every command has --help; --json for machines)

{commands}

Made-up data of a given size, nothing is downloaded; the paper's numbers stand beside ours.
"""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Run one command of `icql bench`."""
    return dispatch("bench", COMMANDS, HELP, argv)
