"""`icql data convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.data.convert import write_dataset
from icql.data.sources import load_dataset, load_steps
from icql.progress import Display

DESCRIPTION = """Write a dataset in another format.

The destination's name says which: .npz, .hdf5 (D4RL's layout), .parquet, or minari:ID. What was
written is read again and compared: 'identical' says whether it gives the same transitions."""


@dataclass(frozen=True)
class Convert:
    """The options of `icql data convert`."""

    source: tyro.conf.Positional[str]
    """Name, file, or minari:ID."""
    destination: tyro.conf.Positional[str]
    """File to write, or minari:ID."""
    task: str | None = None
    """Task of the table; by default what the data says."""
    columns: Path | None = None
    """Mapping file of a CSV or Parquet log; by default the one beside it."""
    force: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the destination if it exists."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, convert, compare, print."""
    options = tyro.cli(Convert, prog="icql data convert", description=DESCRIPTION, args=argv)
    display = Display()
    source = load_steps(options.source, task=options.task, columns=options.columns)
    before = source.transitions()
    write_dataset(source, options.destination, force=options.force)
    task = None if source.task is None else source.task.name
    after = load_dataset(options.destination, task=task)
    identical = after.content_hash() == before.content_hash()
    for warning in before.info.warnings:
        display.say(warning)
    if not identical:
        display.say(
            f"{options.destination} gives {len(after):,} transitions instead of {len(before):,}: "
            "its format has other rules at the end of the data."
        )
    if options.json:
        return {
            "source": options.source,
            "destination": options.destination,
            "task": task,
            "transitions": len(after),
            "data_hash": after.content_hash(),
            "identical": identical,
            "warnings": list(before.info.warnings),
        }
    print(f"{options.destination}: {len(after):,} transitions")
    return None
