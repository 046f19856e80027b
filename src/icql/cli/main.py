"""`icql COMMAND`: dispatch, help, and errors as one message with exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from icql._version import __version__
from icql.errors import UserError, nearest

# command: (module with a `run(argv) -> result | None`, one line of help)
COMMANDS = {
    "train": ("icql.cli.train", "train a policy from logged data"),
    "evaluate": ("icql.cli.evaluate", "score the policies of a run in their environment"),
    "data": ("icql.cli.data", "list, show, validate, convert, fetch and collect datasets"),
    "bench": ("icql.cli.bench", "time, operations and memory beside the paper's cost tables"),
    "algos": ("icql.cli.algos", "list algorithms, their settings and where those come from"),
}

HELP = """\
icql: offline RL with local Q-functions inferred from retrieved transitions

usage: icql COMMAND [OPTIONS]      (every command has --help; --json for machines)

{commands}

A first run, about three minutes on two cores, no download:
  icql train --out runs/first
  icql evaluate runs/first --episodes 20

Your own data:
  icql train --dataset kitchen-complete-v0.hdf5 --preset paper --seeds 5
  icql train --dataset logs.npz --critic local --local.layers 8
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = (f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
        print(HELP.format(commands="\n".join(lines)), end="")
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"icql {__version__}")
        return 0
    try:
        return _run(arguments[0], arguments[1:])
    except UserError as error:
        if "--json" in arguments:
            print(
                json.dumps({"error": {"what": error.what, "where": error.where, "fix": error.fix}})
            )
        print(f"icql: error: {error}", file=sys.stderr)
        return UserError.exit_code
    except KeyboardInterrupt:
        resumes = " 'icql train --resume --out RUN' goes on." if arguments[0] == "train" else ""
        print(f"icql: interrupted.{resumes}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _run(command: str, rest: list[str]) -> int:
    if command not in COMMANDS:
        raise UserError(f"there is no command {command!r}.", fix=nearest(command, list(COMMANDS)))
    run: Callable[[list[str]], Any] = import_module(COMMANDS[command][0]).run
    result = run(rest)
    if result is not None:
        print(json.dumps(result, allow_nan=False))
    return 0
