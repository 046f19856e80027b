"""The command line: parses, calls, prints. One file per command or group of commands."""

from icql.cli.main import main

__all__ = ["main"]
