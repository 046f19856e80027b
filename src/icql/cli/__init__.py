"""The command line: parses, calls, prints. One file per command."""

from icql.cli.main import main

__all__ = ["main"]
