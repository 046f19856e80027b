"""`icql bench speed` and `icql bench cost`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icql.algos.presets import PresetName
from icql.algos.registry import algorithms, get_algorithm
from icql.cli.options import Options, Result
from icql.errors import UserError
from icql.files import write_json
from icql.progress import Display
from icql.settings.contexts import KS, Engine
from icql.settings.run import Precision

if TYPE_CHECKING:
    from icql.data.transitions import Transitions

# column of our rows: (table of the paper, its title)
TABLES = {
    "ms_per_update": ("train_ms", "ms per update"),
    "gflops": ("gflops", "GFLOPs per update (matrix products)"),
    "memory_mb": ("memory_mb", "peak memory beyond the dataset, MB"),
}


@dataclass(frozen=True, kw_only=True)
class Measuring(Options):
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

    def files_written(self) -> Iterable[Path]:
        """The JSON."""
        return () if self.out is None else (self.out,)

    def cost(self, algo: str, data: Transitions, **changed: Any) -> Result:
        """What one update of an algorithm costs."""
        from icql.bench.speed import Effort, cost_of

        effort = Effort(self.seconds, self.repeats)
        options: Result = {"seeds": self.seeds, "precision": self.precision, "effort": effort}
        return cost_of(algo, data, **options, **changed)

    def written(self, result: Result) -> Result:
        """What was measured, also in a file where the options name one."""
        if self.out is not None:
            write_json(self.out, result)
        return result


@dataclass(frozen=True, kw_only=True)
class Speed(Measuring):
    """Time one update of every algorithm, sampling included, and retrieval.

    Made-up data on the device; medians over repeated runs after a warm-up, compilation apart.
    GFLOPs are those of the matrix products of one update; MB is peak memory beyond the dataset, as
    the compiled program says. One update of a method with a delayed policy (td3bc, icql-td3bc,
    rebrac, dmg) holds two critic steps. The paper's numbers (on its own machine) stand beside ours.
    """

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

    def execute(self) -> Result:
        """Measure and show."""
        changes = dict(_change(item) for item in self.settings)
        names = self.algos or tuple(algorithms())
        for name in names:
            get_algorithm(name)

        import jax

        from icql.bench import speed

        data, paper = speed.made_up_data(self.rows, self.obs, self.act), speed.paper_costs()
        engines: tuple[Engine, ...] = ("exact", "approximate")
        if jax.default_backend() != "cpu":
            engines = (*engines, "accelerator")
        rows, searches = list[Result](), list[Result]()
        with Display().work("measuring", len(names) + len(engines)) as work:
            for name in names:
                work.update(len(rows), name)
                cost = self.cost(name, data, preset=self.preset, settings=changes)
                rows.append({"algorithm": name, **cost, "paper": paper["algorithms"].get(name)})
            for engine in engines:
                work.update(len(rows) + len(searches), f"retrieval, {engine}")
                searches.append(speed.retrieval_cost(data, self.k, engine))
        result = {
            "device": speed.describe_device(),
            "preset": self.preset,
            "seeds": self.seeds,
            "precision": self.precision,
            "settings": changes,
            "data": {"rows": self.rows, "obs": self.obs, "act": self.act},
            "updates": rows,
            "retrieval": searches,
            "paper_source": paper["algorithms"]["source"],
        }
        self._show(result)
        return self.written(result)

    def _show(self, result: Result) -> None:
        device = result["device"]
        self.say(
            f"{device['platform']}, {device['kind']}; preset {result['preset']}, "
            f"{result['precision']}, {result['seeds']} seed(s), {result['data']['rows']:,} rows"
        )
        self.say(f"{'':54}{'paper:':>10}")
        self.say(
            f"{'method':<12}{'ms/update':>10}{'updates/s':>10}{'GFLOPs':>8}{'MB':>7}"
            f"{'compile s':>10}{'ms':>8}{'GFLOPs':>9}{'MB':>6}"
        )
        for row in result["updates"]:
            line = (
                f"{row['algorithm']:<12}{row['ms_per_update']:>10.3f}{row['updates_per_s']:>10.1f}"
                f"{row['gflops']:>8.2f}{row['memory_mb']:>7.1f}{row['compile_s']:>10.1f}"
            )
            if (paper := row["paper"]) is not None:
                line += f"{paper['train_ms']:>8.2f}{paper['gflops']:>9.2f}{paper['memory_mb']:>6}"
            self.say(line)
        self.say(f"{'retrieval':<12}{'queries/s':>10}{'recall':>10}{'seconds':>9}")
        for row in result["retrieval"]:
            self.say(
                f"{row['engine']:<12}{row['queries_per_s']:>10,.0f}{row['recall']:>10.4f}"
                f"{row['seconds']:>9.2f}"
            )
        if device["peak_bytes_in_use"] is not None:
            self.say(
                f"peak on the device, all of this: {device['peak_bytes_in_use'] / 1e6:,.0f} MB"
            )


@dataclass(frozen=True, kw_only=True)
class Cost(Measuring):
    """Regenerate the paper's cost tables of ICQL: time, GFLOPs and memory of one update.

    By context length K and layers L, at its other settings (batch 256, two critics), with the
    paper's numbers in brackets.
    """

    contexts: tuple[int, ...] = KS
    """Context lengths K."""
    layers: tuple[int, ...] = (10, 20, 30, 40)
    """Layers L."""

    def execute(self) -> Result:
        """Measure and show."""
        from icql.bench import speed

        data = speed.made_up_data(self.rows)
        grid = [(k, layers) for layers in self.layers for k in self.contexts]
        rows = list[Result]()
        with Display().work("measuring", len(grid)) as work:
            for k, layers in grid:
                work.update(len(rows), f"K = {k}, L = {layers}")
                cost = self.cost("icql", data, settings={"context.k": k, "local.layers": layers})
                rows.append({"k": k, "layers": layers, **cost})
        result = {
            "device": speed.describe_device(),
            "seeds": self.seeds,
            "precision": self.precision,
            "rows": self.rows,
            "costs": rows,
            "paper": {name: speed.paper_costs()[name] for name, _ in TABLES.values()},
        }
        self._show(result)
        return self.written(result)

    def _show(self, result: Result) -> None:
        device = result["device"]
        self.say(
            f"{device['platform']}, {device['kind']}; icql, {self.precision}, {self.seeds} seed(s)"
        )
        cells = {(row["layers"], row["k"]): row for row in result["costs"]}
        for column, (name, title) in TABLES.items():
            paper = result["paper"][name]
            self.say(f"\n{title} ({paper['source']})")
            self.say(f"{'L':>4}" + "".join(f"{f'K = {k}':>20}" for k in self.contexts))
            for layers in self.layers:
                line = f"{layers:>4}"
                for k in self.contexts:
                    theirs = paper.get(str(layers), {}).get(str(k))
                    beside = "" if theirs is None else f" ({theirs:g})"
                    line += f"{f'{cells[layers, k][column]:.3g}{beside}':>20}"
                self.say(line)


def _change(item: str) -> tuple[str, Any]:
    """Read `name=value`, the value as JSON where it is."""
    name, equals, value = item.partition("=")
    if not equals:
        raise UserError(f"{item!r} is not name=value.", where="--settings")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # no JSON, or nested without end
        return name, value
