"""`icql data coverage`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from icql.cli.data_shared import DatasetOptions
from icql.data import load_dataset
from icql.data.pictures import png
from icql.files import atomic, write_json
from icql.progress import Display
from icql.retrieval.coverage import KS, QUERIES, coverage, draw_coverage

DESCRIPTION = """Say whether the data is dense enough for local estimates.

Measures how far the k nearest states are: overall, by region of the state map, and for held-out
episodes (neighbours from other episodes only). With --out DIR, DIR/coverage.png and
DIR/coverage.json are written."""


@dataclass(frozen=True, kw_only=True)
class CoverageOptions(DatasetOptions):
    """The options of `icql data coverage`."""

    k: tuple[int, ...] = KS
    """Context sizes."""
    queries: int = QUERIES
    """How many states are looked at; their neighbours are sought in all of the data."""
    seed: int = 0
    """Seed of that sample."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write picture and numbers into this folder."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, measure, print."""
    prog = "icql data coverage"
    options = tyro.cli(CoverageOptions, prog=prog, description=DESCRIPTION, args=argv)
    data = load_dataset(options.dataset, task=options.task, columns=options.columns)
    with Display().work("coverage, %", 100) as work:
        found = coverage(
            data,
            options.k,
            queries=options.queries,
            seed=options.seed,
            progress=lambda label, done: work.update(int(100 * done), label),
        )
    result = found.as_json()
    if options.out is not None:
        result["picture"] = str(options.out / "coverage.png")
        with atomic(options.out / "coverage.png") as temporary:
            temporary.write_bytes(png(draw_coverage(found)))
        write_json(options.out / "coverage.json", result)
    if options.json:
        return result
    print(f"{found.name}: {found.verdict()}")
    print("   k   nearest (median)   of other episodes   in steps   own episode   isolated")
    for row in result["neighbours"]:
        print(
            f"{row['k']:>4}   {_cell(row['distance']['p50']):>16}   "
            f"{_cell(row['held_out']['p50']):>17}   {_cell(row['held_out_in_steps']['p50']):>8}   "
            f"{row['own_episode']:>11.0%}   {row['isolated']:>8.0%}"
        )
    if options.out is not None:
        print(f"written: {options.out / 'coverage.png'}, {options.out / 'coverage.json'}")
    return None


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
