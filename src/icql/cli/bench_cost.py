"""`icql bench cost`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.bench.speed import Effort, cost_of, describe_device, made_up_data, paper_costs
from icql.files import write_json
from icql.progress import Display
from icql.settings.run import Precision

DESCRIPTION = """Regenerate the paper's cost tables of ICQL: time, GFLOPs and memory of one update.

By context length K and layers L, at its other settings (batch 256, two critics), with the paper's
numbers in brackets."""

# column of our rows: (table of the paper, its title)
TABLES = {
    "ms_per_update": ("train_ms", "ms per update"),
    "gflops": ("gflops", "GFLOPs per update (matrix products)"),
    "memory_mb": ("memory_mb", "peak memory beyond the dataset, MB"),
}


@dataclass(frozen=True)
class Cost:
    """The options of `icql bench cost`."""

    contexts: tuple[int, ...] = (10, 20, 30, 40)
    """Context lengths K."""
    layers: tuple[int, ...] = (10, 20, 30, 40)
    """Layers L."""
    seeds: int = 1
    """Seeds side by side; costs are of one update of all."""
    rows: int = 20_000
    """Transitions of the made-up data (17 observations, 6 actions)."""
    precision: Precision = "float32"
    """Of the matrix products (see 'icql train --help')."""
    seconds: float = 1.0
    """Length of one timed run, about."""
    repeats: int = 5
    """Timed runs, of which the median counts."""
    out: Path | None = None
    """Also write the JSON to this file."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, measure, print."""
    options = tyro.cli(Cost, prog="icql bench cost", description=DESCRIPTION, args=argv)
    data, effort = made_up_data(options.rows), Effort(options.seconds, options.repeats)
    grid = [(k, layers) for layers in options.layers for k in options.contexts]
    rows: list[dict[str, Any]] = []
    with Display().work("measuring", len(grid)) as work:
        for k, layers in grid:
            work.update(len(rows), f"K = {k}, L = {layers}")
            changes = {"context.k": k, "local.layers": layers}
            cost = cost_of(
                "icql",
                data,
                seeds=options.seeds,
                settings=changes,
                precision=options.precision,
                effort=effort,
            )
            rows.append({"k": k, "layers": layers, **cost.as_json()})
    paper = {name: paper_costs()[name] for name, _ in TABLES.values()}
    result = {
        "device": describe_device(),
        "seeds": options.seeds,
        "precision": options.precision,
        "rows": options.rows,
        "costs": rows,
        "paper": paper,
    }
    if options.out is not None:
        write_json(options.out, result)
    if options.json:
        return result
    _print(options, result)
    return None


def _print(options: Cost, result: dict[str, Any]) -> None:
    device = result["device"]
    print(
        f"{device['platform']}, {device['kind']}; icql, {options.precision}, "
        f"{options.seeds} seed(s)"
    )
    cells = {(row["layers"], row["k"]): row for row in result["costs"]}
    for column, (name, title) in TABLES.items():
        paper = result["paper"][name]
        print(f"\n{title} ({paper['source']})")
        print(f"{'L':>4}" + "".join(f"{f'K = {k}':>20}" for k in options.contexts))
        for layers in options.layers:
            line = f"{layers:>4}"
            for k in options.contexts:
                theirs = paper.get(str(layers), {}).get(str(k))
                beside = "" if theirs is None else f" ({theirs:g})"
                line += f"{f'{cells[layers, k][column]:.3g}{beside}':>20}"
            print(line)
