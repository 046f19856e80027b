"""`icql data COMMAND`: dispatch to one file per command."""

from __future__ import annotations

from typing import Any

from icql.cli.group import dispatch
from icql.data.datasets import kinds

COMMANDS = {
    "list": ("icql.cli.data_list", "tasks, and which of their datasets are on this machine"),
    "show": ("icql.cli.data_show", "counts, returns and score of a dataset"),
    "validate": ("icql.cli.data_validate", "look for mistakes in a dataset before training"),
    "coverage": ("icql.cli.data_coverage", "how dense the data is: is local estimation possible?"),
    "convert": ("icql.cli.data_convert", "write a dataset in another format"),
    "fetch": ("icql.cli.data_fetch", "fetch a D4RL or Minari dataset"),
    "collect": ("icql.cli.data_collect", "make a dataset with online SAC by D4RL's protocol"),
}

HELP = f"""\
usage: icql data COMMAND [OPTIONS]      (every command has --help; --json for machines)

{{commands}}

A dataset is a task's name, a file or folder ({kinds()}).
The columns of CSV and Parquet logs are named by a TOML file beside them, e.g. logs.csv.toml:
  observation = "obs_*"
  action = ["torque"]
  reward = "reward"
  episode = "run"
  time = "t"
  terminal = "failed"
"""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Run one command of `icql data`."""
    return dispatch("data", COMMANDS, HELP, argv)
