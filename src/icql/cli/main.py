"""`icql COMMAND`: dispatch, help, and errors as one message with exit code 2."""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from icql._version import __version__
from icql.cli.limited import is_watched, limits, more_memory, watched
from icql.cli.saying import is_debugging, is_memory, remedy, speak_anyway
from icql.cli.stopping import asked_to_stop, last_to_leave, stopping_on_sigterm
from icql.errors import PartlyFailed, UserError, nearest, visible
from icql.files import check_file, check_writable


class Command(NamedTuple):
    """A command: the module in `icql.cli`, and the class in it, of its options."""

    summary: str
    options: str


class Group(NamedTuple):
    """Commands under one name, and the help that lists them."""

    summary: str
    help: str
    commands: Mapping[str, Command | Group]


DATA = """\
usage: icql data COMMAND [OPTIONS]      (every command has --help; --json for machines)

{commands}

A dataset is a task's name, a file or folder ({kinds}).
The columns of CSV and Parquet logs are named by a TOML file beside them, e.g. logs.csv.toml, which
'icql data init logs.csv' writes with guesses to be edited:
  observation = ["pressure", "mode", "running"]
  action = ["valve"]
  reward = "profit"
  episode = "shift"
  time = "timestamp"
  terminal = "failed"
  categories = ["mode"]
  gaps = "hold"
  action_bounds = {{valve = [0, 100]}}
Several files are named by a pattern, 'logs/*.csv'. docs/mapping.md has every key.
"""

BENCH = """\
usage: icql bench COMMAND [OPTIONS]      (every command has --help; --json for machines)

{commands}

A suite is a table of the paper, or one of our own: 'icql bench list' names them. What is finished
is never run again, and a run that was killed goes on with the same command (docs/benchmarks.md):
  icql bench run main --tasks hopper-mini --algos bc iql --preset quick --out bench
  icql bench report bench --out bench.html

speed and cost measure on made-up data of a given size. Nothing is downloaded.
"""

HELP = """\
icql: offline RL with local Q-functions inferred from retrieved transitions

usage: icql COMMAND [OPTIONS]      (every command has --help; --json for machines)

{commands}

A first run, minutes on two cores, no download:
  icql train --out runs/first
  icql evaluate runs/first --episodes 20

Your own data:
  icql data init logs.csv
  icql data validate logs.csv
  icql train --dataset logs.csv --out runs/logs
  icql judge runs/logs
  icql export runs/logs policy.onnx
"""

COMMANDS: dict[str, Command | Group] = {
    "train": Command("train a policy from logged data", "train:Train"),
    "evaluate": Command("score the policies of a run in their environment", "evaluate:Evaluate"),
    "compare": Command("final scores of several runs side by side", "compare:Compare"),
    "analyse": Command("what critics say of the same states, and how", "analyse:Analyse"),
    "judge": Command("is it better? what the log alone can say, with intervals", "judge:Judge"),
    "select": Command("choose among runs by the log alone", "judge:Select"),
    "inspect": Command(
        "a page to look at: states, values and what stands behind", "inspect:Inspect"
    ),
    "export": Command("a policy and its alarm as one ONNX file", "export:Export"),
    "serve": Command("answer requests with an exported policy, on this machine", "export:Serve"),
    "data": Group(
        "list, show, map, validate, convert, fetch and collect datasets",
        DATA,
        {
            "list": Command("tasks, and which of their datasets are on this machine", "data:List"),
            "show": Command("counts, returns and score of a dataset", "data:Facts"),
            "init": Command("write a mapping for a log, to be edited", "data:Init"),
            "validate": Command("look for mistakes in a dataset before training", "data:Validate"),
            "coverage": Command(
                "how dense the data is: is local estimation possible?", "data:Coverage"
            ),
            "convert": Command("write a dataset in another format", "data:Convert"),
            "fetch": Command("fetch a D4RL or Minari dataset", "obtain:Fetch"),
            "collect": Command(
                "make a dataset with online SAC by D4RL's protocol", "obtain:Collect"
            ),
        },
    ),
    "bench": Group(
        "the paper's tables: run, resume and report them; cost of updates",
        BENCH,
        {
            "list": Command("the suites: which table is made of what", "suite:ListSuites"),
            "run": Command("run what is not finished yet of a suite", "suite:RunSuite"),
            "status": Command("how far a benchmark folder has come", "suite:Status"),
            "report": Command("a page or tables of what was run", "suite:WriteReport"),
            "merge": Command("finished cells of several folders into one", "suite:Merge"),
            "speed": Command(
                "time, operations and memory of every algorithm's update", "bench:Speed"
            ),
            "cost": Command(
                "the paper's cost tables: ICQL by context length and layers", "bench:Cost"
            ),
        },
    ),
    "algos": Command("list algorithms, their settings and where those come from", "algos:Algos"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    speak_anyway()
    if argv is not None:  # in a process of somebody else's
        return _run(arguments)
    if is_watched():
        return watched(lambda: _run_alone(arguments), lambda error: _say(error, arguments))
    return _run_alone(arguments)


def _run_alone(arguments: list[str]) -> int:
    """Run a command that the process is there for: nobody else looks after its signals."""
    leave = last_to_leave()
    code = _run(arguments, own=True)
    if asked_to_stop():
        leave(code)
    return code


def _run(arguments: list[str], own: bool = False) -> int:
    if arguments[:1] in (["-V"], ["--version"]):
        print(f"icql {__version__}")
        return 0
    try:
        _check_characters(arguments)
        with stopping_on_sigterm(own):
            result = dispatch("icql", Group("", HELP, COMMANDS), arguments or ["--help"])
        if result is not None:
            print(json.dumps(result, allow_nan=False))
        return 0 if arguments else UserError.exit_code
    except PartlyFailed as failed:  # what was done is there, and so is what failed
        if "--json" in arguments:
            print(json.dumps(failed.result, allow_nan=False))
        print(visible(f"icql: error: {failed}"), file=sys.stderr)
        return 1
    except UserError as error:
        return _say(error, arguments)
    except KeyboardInterrupt as stop:  # it says how to go on
        print(visible(f"icql: interrupted. {stop}".rstrip()), file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:  # disks that are full or may not be written to, names too long …
        where = "" if error.filename is None else str(error.filename)
        reason = error.strerror or str(error) or type(error).__name__
        return _say(UserError(f"{reason}.", where=where, fix=remedy(error.errno)), arguments)
    except Exception as error:
        if not is_memory(error, bool(limits())):
            raise
        said = (str(error).splitlines() or [""])[0][:200] or "no more is to be had"
        short = UserError(f"memory does not suffice ({said}).", fix=more_memory())
        return _say(short, arguments)


def _say(error: UserError, arguments: Sequence[str]) -> int:
    """One message, for machines too; with ICQL_DEBUG=1 after the traceback of what is handled."""
    if is_debugging() and sys.exc_info()[0] is not None:
        traceback.print_exc()
    if "--json" in arguments:
        said = {"what": error.what, "where": error.where, "fix": error.fix}
        with contextlib.suppress(OSError):  # what cannot be heard does not hide what was wrong
            print(json.dumps({"error": said}), flush=True)
    print(visible(f"icql: error: {error}"), file=sys.stderr)
    return UserError.exit_code


def _check_characters(arguments: Sequence[str]) -> None:
    """Refuse what cannot be seen: it would end up in names of files and in what is printed."""
    for word in arguments:
        # a tab may be a separator
        if any(unicodedata.category(letter) == "Cc" and letter != "\t" for letter in word):
            raise UserError("has control characters in it.", where=ascii(word), fix="Type it anew.")


def dispatch(name: str, group: Group, argv: list[str]) -> dict[str, Any] | None:
    """Run the command of a group that `argv` begins with, or print the group's help."""
    command = argv[0] if argv else ""
    if command in ("-h", "--help"):
        lines = (f"  {word:<10} {entry.summary}" for word, entry in group.commands.items())
        words = {"commands": "\n".join(lines)}
        if "{kinds}" in group.help:  # the readers are imported only where they are listed
            words["kinds"] = import_module("icql.data.datasets").kinds()
        print(group.help.format(**words), end="")
        return None
    entry = group.commands.get(command)
    if entry is None:
        said = f"there is no command {command!r}." if argv else "say which command."
        raise UserError(said, where=name, fix=nearest(command, list(group.commands)))
    if isinstance(entry, Group):
        return dispatch(f"{name} {command}", entry, argv[1:])
    module, _, options = entry.options.partition(":")
    parse = getattr(import_module(f"icql.cli.{module}"), options).parse
    chosen = parse(f"{name} {command}", argv[1:])
    for file in chosen.files_written():  # tried before hours of work
        check_file(file)
    for folder in chosen.folders_written():
        check_writable(folder)
    try:
        result: dict[str, Any] = chosen.execute()
    except KeyboardInterrupt as stop:
        raise type(stop)(str(stop) or chosen.going_on()) from None
    except Exception:
        if (asked := asked_to_stop()) is None:
            raise
        raise asked(chosen.going_on()) from None
    return result if chosen.json else None
