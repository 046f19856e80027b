"""`icql bench cost`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tyro

from icql.cli.bench_speed import Measuring, report
from icql.progress import Display

DESCRIPTION = """Regenerate the paper's cost tables of ICQL: time, GFLOPs and memory of one update.

By context length K and layers L, at its other settings (batch 256, two critics), with the paper's
numbers in brackets."""

# column of our rows: (table of the paper, its title)
TABLES = {
    "ms_per_update": ("train_ms", "ms per update"),
    "gflops": ("gflops", "GFLOPs per update (matrix products)"),
    "memory_mb": ("memory_mb", "peak memory beyond the dataset, MB"),
}


@dataclass(frozen=True, kw_only=True)
class Cost(Measuring):
    """The options of `icql bench cost`."""

    contexts: tuple[int, ...] = (10, 20, 30, 40)
    """Context lengths K."""
    layers: tuple[int, ...] = (10, 20, 30, 40)
    """Layers L."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, measure, print."""
    options = tyro.cli(Cost, prog="icql bench cost", description=DESCRIPTION, args=argv)

    from icql.bench import speed

    data, effort = speed.made_up_data(options.rows), speed.Effort(options.seconds, options.repeats)
    grid = [(k, layers) for layers in options.layers for k in options.contexts]
    rows: list[dict[str, Any]] = []
    with Display().work("measuring", len(grid)) as work:
        for k, layers in grid:
            work.update(len(rows), f"K = {k}, L = {layers}")
            cost = speed.cost_of(
                "icql",
                data,
                seeds=options.seeds,
                settings={"context.k": k, "local.layers": layers},
                precision=options.precision,
                effort=effort,
            )
            rows.append({"k": k, "layers": layers, **cost.as_json()})
    result = {
        "device": speed.describe_device(),
        "seeds": options.seeds,
        "precision": options.precision,
        "rows": options.rows,
        "costs": rows,
        "paper": {name: speed.paper_costs()[name] for name, _ in TABLES.values()},
    }
    return report(options, result, lambda result: _print(options, result))


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
