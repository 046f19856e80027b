"""`icql data convert`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tyro

from icql.cli.data_shared import DatasetOptions, Flag
from icql.data.arrays import read_size
from icql.data.datasets import convert, kinds
from icql.progress import Display

DESCRIPTION = f"""Write a dataset in another format.

The destination's name says which: {kinds(written=True)}.
HDF5 has D4RL's layout. What was written is read again and compared: 'identical' says whether it
gives the same transitions.

NAME.icql is a store: transitions in plain NPY files that training maps into memory, so that they
may be many times larger than it. HDF5, NPZ, CSV and Parquet are read, validated and written block
by block; --memory is what that may take."""


@dataclass(frozen=True, kw_only=True)
class Convert(DatasetOptions):
    """The options of `icql data convert`."""

    destination: tyro.conf.Positional[str]
    """File or store to write, or minari:ID."""
    force: Flag = False
    """Replace the destination if it exists."""
    memory: str | None = None
    """Memory to make a store with, e.g. 500MB; by default half of the machine's. Pages of mapped
    files are the system's cache and do not count; some bytes a row are needed."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, convert, compare, print."""
    options = tyro.cli(Convert, prog="icql data convert", description=DESCRIPTION, args=argv)
    done = convert(
        options.dataset,
        options.destination,
        task=options.task,
        columns=options.columns,
        force=options.force,
        memory=None if options.memory is None else read_size(options.memory, where="--memory"),
    )
    for warning in done["warnings"]:
        Display().say(warning)
    if options.json:
        return done
    print(f"{options.destination}: {done['transitions']:,} transitions")
    return None
