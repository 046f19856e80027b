"""Time, operations and memory of one update of an algorithm, and of retrieval, on made-up data.

Times are medians over repeated runs after a warm-up, with sampling included and compilation apart.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np

from icql.algos.base import Algorithm, Spec
from icql.algos.presets import PresetName, resolve_preset
from icql.algos.registry import make_algorithm
from icql.bench.flops import count_flops
from icql.bench.published import paper_costs as paper_costs
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.retrieval import build_neighbours
from icql.settings.change import override
from icql.settings.contexts import ContextSettings, Engine
from icql.settings.fields import Count, Positive, Settings
from icql.settings.run import Precision
from icql.training.device import DeviceData, fit_normaliser, to_device
from icql.training.loop import Loop, memory_of

TASK = "walker2d-medium-expert-v2"  # whose settings the paper's cost table is for
EPISODE = 1000  # steps of a made-up episode


@dataclass(frozen=True)
class Effort(Settings):
    """How long to measure."""

    seconds: Positive = 1.0  # of one timed run, about
    repeats: Count = 5


def made_up_data(rows: int, observation_dim: int = 17, action_dim: int = 6) -> Transitions:
    """Smooth random walks in episodes of 1000 steps; the sizes of Walker2d by default."""
    if rows < EPISODE:
        raise UserError(f"must be at least {EPISODE}, one episode.", where="rows")
    if min(observation_dim, action_dim) < 1:
        raise UserError("must be at least 1.", where="dimensions")
    rng = np.random.default_rng(0)
    steps = 0.1 * rng.normal(size=(rows + 1, observation_dim))
    states = np.cumsum(steps, axis=0).astype(np.float32)
    actions = rng.uniform(-1, 1, size=(rows + 1, action_dim)).astype(np.float32)
    return Transitions(
        states=states[:-1],
        actions=actions[:-1],
        rewards=rng.normal(size=rows).astype(np.float32),
        next_states=states[1:],
        next_actions=actions[1:],
        mask=np.ones(rows, np.float32),
        episode=np.arange(rows, dtype=np.int32) // EPISODE,
        step=np.arange(rows, dtype=np.int32) % EPISODE,
        info=DataInfo("made-up", episode_returns=(0.0, 1000.0), episode_lengths=(EPISODE,) * 2),
    )


def cost_of(
    algo: str,
    data: Transitions,
    *,
    preset: PresetName = "paper",
    seeds: int = 1,
    settings: dict[str, Any] | None = None,
    precision: Precision = "float32",
    effort: Effort | None = None,
) -> dict[str, float]:
    """Measure one update of an algorithm under a preset, with `settings` changed."""
    if seeds < 1:
        raise UserError("must be at least 1.", where="seeds")
    chosen = override(resolve_preset(algo, preset, TASK).settings, settings or {})
    spec = Spec(data.observation_dim, data.action_dim, 1_000_000, precision=precision)
    algorithm = make_algorithm(algo, chosen, spec)
    needs = algorithm.needs
    neighbours = None if needs.context is None else build_neighbours(data, needs.context)
    normaliser = fit_normaliser(data, chosen.data)
    device_data = to_device(data, normaliser, neighbours, length=needs.length)
    return measure_update(Loop(algorithm, device_data, range(seeds)), effort or Effort())


def measure_update(loop: Loop, effort: Effort) -> dict[str, float]:
    """Compile, warm up, time: what one update of all seeds costs, memory in MB (10⁶ bytes).

    The operations are those of matrix products alone.
    """
    states, step = loop.init(), 0
    begin = time.perf_counter()
    memory = memory_of(loop, states)  # compiles
    compile_s = time.perf_counter() - begin

    def run(updates: int) -> float:
        nonlocal states, step
        begin = time.perf_counter()
        states, _ = loop.advance(states, step, updates)  # fetches the metrics: synchronous
        step += updates
        return (time.perf_counter() - begin) / updates

    run(1)
    chunk = 1
    while (taken := chunk * run(chunk)) < effort.seconds / 4:  # until a run is long enough to judge
        chunk *= 4
    chunk = max(1, round(chunk * effort.seconds / taken))
    ms = 1e3 * statistics.median(run(chunk) for _ in range(effort.repeats))
    assert isinstance(loop.data, DeviceData)  # made-up data is never streamed
    flops = len(loop.keys) * flops_of_update(loop.algorithm, loop.data)
    return {
        "ms_per_update": ms,
        "updates_per_s": 1e3 / ms,
        "gflops": flops / 1e9,
        "memory_mb": memory.beyond_data / 1e6,
        "data_mb": memory.data / 1e6,
        "compile_s": compile_s,
    }


def flops_of_update(algorithm: Algorithm[Any], data: DeviceData) -> int:
    """Operations of the matrix products in one update of one seed."""
    key = jax.random.key(0)
    rows = algorithm.settings.batch_size * algorithm.needs.batches
    state = eqx.filter_eval_shape(algorithm.init, key)
    batch = eqx.filter_eval_shape(lambda data, key: data.sample(key, rows), data, key)
    return count_flops(algorithm.update, state, batch, key)


def retrieval_cost(data: Transitions, k: int, engine: Engine) -> dict[str, Any]:
    """Build the tables of both s and s' with one engine: queries per second and recall."""
    report = build_neighbours(data, ContextSettings(k=k, engine=engine)).report
    return {
        "engine": report.engine,
        "rows": report.states,
        "k": k,
        "seconds": report.seconds,
        "queries_per_s": report.queries / report.seconds,
        "recall": report.recall,
    }


def describe_device() -> dict[str, Any]:
    """What was measured on, and the most memory it held so far where it says so."""
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "peak_bytes_in_use": stats.get("peak_bytes_in_use"),
    }
