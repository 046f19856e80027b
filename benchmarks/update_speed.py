"""Time of one update of every algorithm, sampling included, at its paper preset.

    python benchmarks/update_speed.py [--algos icql iql …] [--seeds 1] [--json FILE]

Walker2d's sizes (17 observations, 6 actions), data on the device, medians over chunks after
warm-up; compilation apart. The paper's numbers (tab. all_time_flop_mem) stand beside ours.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro

from icql.algos.base import Spec
from icql.algos.registry import ALGORITHMS, make_algorithm, override, resolve_preset
from icql.data.transitions import DataInfo, Transitions
from icql.retrieval import build_neighbours
from icql.training.device import fit_normaliser, to_device
from icql.training.loop import Loop

PAPER_MS = {
    "td3bc": 7.23, "iql": 10.52, "cql": 47.57, "dt": 68.42, "radt": 121.02, "rebrac": 13.91,
    "dmg": 32.33, "fql": 19.63, "qc": 21.60, "icql": 70.73,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What to time."""

    algos: tuple[str, ...] = ()
    """Algorithms (none: all that learn offline)."""
    preset: str = "paper"
    rows: int = 20_000
    seeds: int = 1
    seconds: float = 2.0
    """Time per measured chunk, about."""
    settings: tuple[str, ...] = ()
    """Changes to the settings where they exist, e.g. local.layers=10."""
    json: Path | None = None


def main() -> None:
    options = tyro.cli(Options)
    data = made_up_data(options.rows)
    changes = dict(parse(item) for item in options.settings)
    device = jax.devices()[0]
    print(
        f"{device.platform} {device.device_kind}, preset {options.preset}, {options.seeds} seed(s)"
    )
    print(f"{'algorithm':<14}{'ms/update':>11}{'updates/s':>11}{'compile s':>11}{'paper ms':>10}")
    results = []
    for name in options.algos or [n for n in ALGORITHMS if n != "sac"]:
        preset = resolve_preset(name, options.preset, "walker2d-medium-v2")  # type: ignore[arg-type]
        settings = override(preset.settings, changes)
        algorithm = make_algorithm(name, settings, Spec(17, 6, 1_000_000))
        context = algorithm.needs.context
        neighbours = None if context is None else build_neighbours(data, context)
        device_data = to_device(data, fit_normaliser(data, settings.data), neighbours)
        loop = Loop(algorithm, device_data, range(options.seeds))
        row = measure(loop, options.seconds)
        results.append({"algorithm": name, **row, "paper_ms": PAPER_MS.get(name)})
        paper = f"{PAPER_MS[name]:>10.2f}" if name in PAPER_MS else f"{'':>10}"
        print(
            f"{name:<14}{row['ms']:>11.3f}{1e3 / row['ms']:>11.0f}{row['compile_s']:>11.1f}{paper}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(
            json.dumps({"device": device.device_kind, "rows": results}, indent=2)
        )


def measure(loop: Loop, seconds: float) -> dict[str, float]:
    """Median milliseconds per update over five chunks, and the seconds compilation took."""
    states, step = loop.init(), 0

    def run(updates: int) -> float:
        nonlocal states, step
        begin = time.perf_counter()
        states, _ = loop.advance(states, step, updates)  # fetches the metrics: synchronous
        step += updates
        return time.perf_counter() - begin

    compile_s = run(1)
    run(2)
    chunk = max(2, int(seconds / max(run(5) / 5, 1e-6)))
    times = [run(chunk) / chunk for _ in range(5)]
    return {"ms": 1e3 * statistics.median(times), "compile_s": compile_s}


def made_up_data(rows: int) -> Transitions:
    """Smooth random walks with Walker2d's sizes; values do not matter for time."""
    rng = np.random.default_rng(0)
    states = np.cumsum(rng.normal(size=(rows + 1, 17)) * 0.1, axis=0).astype(np.float32)
    actions = rng.uniform(-1, 1, size=(rows + 1, 6)).astype(np.float32)
    episode = np.arange(rows, dtype=np.int32) // 1000
    return Transitions(
        states[:-1],
        actions[:-1],
        rng.normal(size=rows).astype(np.float32),
        states[1:],
        actions[1:],
        np.ones(rows, np.float32),
        episode,
        np.arange(rows, dtype=np.int32) % 1000,
        DataInfo("made-up", episode_returns=(0.0, 1000.0), episode_lengths=(1000, 1000)),
    )


def parse(item: str) -> tuple[str, object]:
    """Read `name=value`, the value as JSON where it is."""
    name, _, value = item.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


if __name__ == "__main__":
    main()
