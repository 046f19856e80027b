"""`icql bench speed`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.algos.presets import PresetName
from icql.algos.registry import algorithms, get_algorithm
from icql.errors import UserError
from icql.files import write_json
from icql.progress import Display
from icql.settings.data import Engine
from icql.settings.run import Precision

DESCRIPTION = """Time one update of every algorithm, sampling included, and retrieval.

Made-up data on the device; medians over repeated runs after a warm-up, compilation apart. GFLOPs
are those of the matrix products of one update; MB is peak memory beyond the dataset, as the
compiled program says. One update of a method with a delayed policy (td3bc, icql-td3bc, rebrac,
dmg) holds two critic steps. The paper's numbers (on its own machine) stand beside ours."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """The options that measurements share."""

    seeds: int = 1
    """Seeds side by side; costs are of one update of all."""
    rows: int = 20_000
    """Transitions of the made-up data (17 observations, 6 actions, unless said otherwise)."""
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


@dataclass(frozen=True, kw_only=True)
class Speed(Measuring):
    """The options of `icql bench speed`."""

    algos: tuple[str, ...] = ()
    """Algorithms (none given: all)."""
    preset: PresetName = "paper"
    """Whose settings."""
    obs: int = 17
    """Dimension of observations."""
    act: int = 6
    """Dimension of actions."""
    k: int = 20
    """Context length of the timed retrieval."""
    settings: tuple[str, ...] = ()
    """Changes of settings for every algorithm that is timed, e.g. local.layers=10."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, measure, print."""
    options = tyro.cli(Speed, prog="icql bench speed", description=DESCRIPTION, args=argv)
    changes = dict(_change(item) for item in options.settings)
    names = options.algos or tuple(algorithms())
    for name in names:
        get_algorithm(name)

    import jax

    from icql.bench import speed

    data = speed.made_up_data(options.rows, options.obs, options.act)
    effort, paper = speed.Effort(options.seconds, options.repeats), speed.paper_costs()
    engines: tuple[Engine, ...] = ("exact", "approximate")
    if jax.default_backend() != "cpu":
        engines = (*engines, "accelerator")
    rows, searches = list[dict[str, Any]](), list[dict[str, Any]]()
    with Display().work("measuring", len(names) + len(engines)) as work:
        for name in names:
            work.update(len(rows), name)
            cost = speed.cost_of(
                name,
                data,
                preset=options.preset,
                seeds=options.seeds,
                settings=changes,
                precision=options.precision,
                effort=effort,
            )
            theirs = paper["algorithms"].get(name)
            rows.append({"algorithm": name, **cost.as_json(), "paper": theirs})
        for engine in engines:
            work.update(len(rows) + len(searches), f"retrieval, {engine}")
            searches.append(speed.retrieval_cost(data, options.k, engine))
    result = {
        "device": speed.describe_device(),
        "preset": options.preset,
        "seeds": options.seeds,
        "precision": options.precision,
        "settings": changes,
        "data": {"rows": options.rows, "obs": options.obs, "act": options.act},
        "updates": rows,
        "retrieval": searches,
        "paper_source": paper["algorithms"]["source"],
    }
    return report(options, result, _print)


def report(
    options: Measuring, result: dict[str, Any], show: Callable[[dict[str, Any]], None]
) -> dict[str, Any] | None:
    """Write, return or show what was measured, as the options ask."""
    if options.out is not None:
        write_json(options.out, result)
    if options.json:
        return result
    show(result)
    return None


def _change(item: str) -> tuple[str, Any]:
    """Read `name=value`, the value as JSON where it is."""
    name, equals, value = item.partition("=")
    if not equals:
        raise UserError(f"{item!r} is not name=value.", where="--settings")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _print(result: dict[str, Any]) -> None:
    device = result["device"]
    print(
        f"{device['platform']}, {device['kind']}; preset {result['preset']}, "
        f"{result['precision']}, {result['seeds']} seed(s), {result['data']['rows']:,} rows"
    )
    print(f"{'':54}{'paper:':>10}")
    print(
        f"{'method':<12}{'ms/update':>10}{'updates/s':>10}{'GFLOPs':>8}{'MB':>7}{'compile s':>10}"
        f"{'ms':>8}{'GFLOPs':>9}{'MB':>6}"
    )
    for row in result["updates"]:
        line = (
            f"{row['algorithm']:<12}{row['ms_per_update']:>10.3f}{row['updates_per_s']:>10.1f}"
            f"{row['gflops']:>8.2f}{row['memory_mb']:>7.1f}{row['compile_s']:>10.1f}"
        )
        if (paper := row["paper"]) is not None:
            line += f"{paper['train_ms']:>8.2f}{paper['gflops']:>9.2f}{paper['memory_mb']:>6}"
        print(line)
    print(f"{'retrieval':<12}{'queries/s':>10}{'recall':>10}{'seconds':>9}")
    for row in result["retrieval"]:
        print(
            f"{row['engine']:<12}{row['queries_per_s']:>10,.0f}{row['recall']:>10.4f}"
            f"{row['seconds']:>9.2f}"
        )
    if device["peak_bytes_in_use"] is not None:
        print(f"peak on the device, all of this: {device['peak_bytes_in_use'] / 1e6:,.0f} MB")
