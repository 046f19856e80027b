"""`icql data convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.data.convert import make_store, write_dataset
from icql.data.room import read_size
from icql.data.sources import load_dataset, load_steps
from icql.data.store import is_store, verify_store
from icql.errors import UserError
from icql.progress import Display

DESCRIPTION = """Write a dataset in another format.

The destination's name says which: .npz, .hdf5 (D4RL's layout), .parquet, minari:ID, or .icql. What
was written is read again and compared: 'identical' says whether it gives the same transitions.

NAME.icql is a store: transitions in plain NPY files that training maps into memory, so that they
may be many times larger than it. HDF5, NPZ, CSV and Parquet are read, validated and written block
by block; --memory is what that may take."""


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
    memory: str | None = None
    """Memory to make a store with, e.g. 500MB; by default half of the machine's. Pages of mapped
    files are the system's cache and do not count; some bytes a row are needed."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, convert, compare, print."""
    options = tyro.cli(Convert, prog="icql data convert", description=DESCRIPTION, args=argv)
    display = Display()
    if is_store(options.destination):
        return _make_store(options, display)
    if options.memory is not None:
        raise UserError("only stores (.icql) are made with a budget.", where="--memory")
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


def _make_store(options: Convert, display: Display) -> dict[str, Any] | None:
    data = make_store(
        options.source,
        options.destination,
        task=options.task,
        columns=options.columns,
        force=options.force,
        memory=None if options.memory is None else read_size(options.memory, where="--memory"),
    )
    findings = [finding.message for finding in verify_store(data)]  # reads what was written
    for warning in (*data.info.warnings, *findings):
        display.say(warning)
    if options.json:
        return {
            "source": options.source,
            "destination": options.destination,
            "task": data.info.task,
            "transitions": len(data),
            "data_hash": data.content_hash(),
            "identical": True,
            "warnings": [*data.info.warnings, *findings],
        }
    print(f"{options.destination}: {len(data):,} transitions")
    return None
