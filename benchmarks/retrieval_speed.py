"""Seconds, rows per second, recall and memory of building both neighbour tables.

    python benchmarks/retrieval_speed.py --rows 1000000 --dim 17 --k 20 --engine accelerator
    python benchmarks/retrieval_speed.py --rows 20000            # small enough for any machine

The data are noisy gaits: three harmonics of one drifting phase in every column, with white noise.
Recall counts, on a sample, the states that are no farther than the true k-th neighbour, which one
float64 pass over all states gives. Nothing is cached unless --cache names a folder.
"""

from __future__ import annotations

import json
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import tyro
from numpy.typing import NDArray

from icql.data.transitions import DataInfo, Transitions
from icql.retrieval import Neighbours, accelerator, build_neighbours
from icql.settings.data import ContextSettings, Engine, Exclude, Metric

SAMPLE = 200
PIECE = 2**14


@dataclass(frozen=True)
class Options:
    """What is measured; the defaults run anywhere in seconds."""

    rows: int = 20_000
    dim: int = 17
    k: int = 20
    engine: Engine = "auto"
    metric: Metric = "l2"
    exclude: Exclude = "none"
    """What contexts leave out; an episode is 1000 steps."""
    noise: float = 0.1
    """Standard deviation of the white noise; the gaits themselves are of size 1."""
    repeats: int = 1
    """Builds; the first one compiles. All times are given."""
    memory: int | None = None
    """Budget in bytes; needs --cache."""
    cache: Path | None = None
    """Where tables are kept; without it they stay in memory."""
    queries: int = accelerator.QUERIES
    """Queries of one device at once, on the accelerator."""
    tile: int = accelerator.TILE
    """States in one tile, on the accelerator."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON."""


def main() -> None:
    options = tyro.cli(Options)
    accelerator.QUERIES, accelerator.TILE = options.queries, options.tile
    data = gaits(options.rows, options.dim, options.noise)
    settings = ContextSettings(
        k=options.k, engine=options.engine, metric=options.metric, exclude=options.exclude
    )
    plain = options.metric == "l2" and options.exclude == "none"
    seconds = []
    for repeat in range(options.repeats):
        cache = None if options.cache is None else options.cache / f"{repeat}-{time.time_ns()}"
        start = time.perf_counter()
        tables = build_neighbours(data, settings, cache_dir=cache, memory=options.memory)
        seconds.append(round(time.perf_counter() - start, 3))
    result = {
        "rows": options.rows,
        "dim": options.dim,
        "k": options.k,
        "engine": tables.report.engine,
        "device": jax.devices()[0].device_kind,
        "seconds": seconds,
        "rows_per_second": round(options.rows / min(seconds)),
        "recall": round(recall(data, tables), 6) if plain else None,
        "report": asdict(tables.report),
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_peak_bytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(tables.report)
    for name, value in result.items():
        if name != "report":
            print(f"{name:18} {value}")


def gaits(rows: int, dim: int, noise: float) -> Transitions:
    """A walk of `rows` steps, cut into episodes of 1000."""
    rng = np.random.default_rng(0)
    phase = np.cumsum(0.1 + 0.02 * rng.normal(size=rows + 1))[:, None]
    size, shift = rng.normal(size=(3, dim)), rng.uniform(0, 2 * np.pi, (3, dim))
    path = np.empty((rows + 1, dim), np.float32)
    for piece in pieces(rows + 1):
        path[piece] = noise * rng.normal(size=path[piece].shape)

    def walk(piece: slice) -> None:
        for harmonic in range(3):
            angle = (harmonic + 1) * phase[piece] + shift[harmonic]
            path[piece] += (size[harmonic] * np.sin(angle)).astype(np.float32)

    with ThreadPoolExecutor() as pool:
        list(pool.map(walk, pieces(rows + 1)))
    none = np.zeros((rows, 1), np.float32)
    return Transitions(
        states=path[:-1],
        actions=none,
        rewards=none[:, 0],
        next_states=path[1:],
        next_actions=none,
        mask=none[:, 0] + 1,
        episode=np.arange(rows, dtype=np.int32) // 1000,
        step=np.arange(rows, dtype=np.int32) % 1000,
        info=DataInfo("gaits"),
    )


def recall(data: Transitions, tables: Neighbours) -> float:
    """Share of the context states of a sample that are among the true k nearest."""
    k = tables.state.shape[1]

    def of_one(row: int) -> float:
        away = _squared(data.states, data.states[row])
        near = tables.state[row]
        return float((away[near] <= np.partition(away, k - 1)[k - 1]).mean())

    sample = np.random.default_rng(1).choice(len(data), min(SAMPLE, len(data)), replace=False)
    with ThreadPoolExecutor() as pool:
        return float(np.mean(list(pool.map(of_one, sample))))


def _squared(states: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float64]:
    squared = np.empty(len(states))
    for piece in pieces(len(states)):
        difference = np.subtract(states[piece], query, dtype=np.float64)
        squared[piece] = np.einsum("nd,nd->n", difference, difference)
    return squared


def pieces(rows: int) -> list[slice]:
    """Slices of `PIECE` rows: ten million rows are never copied as float64 as a whole."""
    return [slice(i, min(i + PIECE, rows)) for i in range(0, rows, PIECE)]


if __name__ == "__main__":
    main()
