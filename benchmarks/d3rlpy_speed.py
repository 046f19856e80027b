"""IQL here against d3rlpy's IQL: milliseconds per update on the same CPU, sampling included.

    python benchmarks/d3rlpy_speed.py --d3rlpy-python ENV/bin/python [--precision bfloat16]

d3rlpy lives in an environment of its own (`python -m venv ENV`, then `ENV/bin/pip install
d3rlpy==2.8.1`). Both get the same made-up data (100,000 transitions, 17 observations, 6 actions),
networks of 256 × 256, two critics and batches of 256. They run as child processes, one after the
other in turns; the first run of each child warms up, and the median of all others counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

ROWS, EPISODE, OBS, ACT, BATCH, HIDDEN = 100_000, 1000, 17, 6, 256, (256, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d3rlpy-python", type=Path, help="interpreter that has d3rlpy")
    parser.add_argument("--updates", type=int, default=300, help="updates of one timed run")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of a child process")
    parser.add_argument("--rounds", type=int, default=2, help="child processes of each")
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of our matrix products; d3rlpy's are float32",
    )
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    parser.add_argument("--child", choices=("icql", "d3rlpy"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        run = icql_updates(given.precision) if given.child == "icql" else d3rlpy_updates()
        print(json.dumps(timed(run, given.updates, given.runs)))
        return
    if given.d3rlpy_python is None:
        parser.error("--d3rlpy-python is needed")
    interpreters = {"icql": sys.executable, "d3rlpy": str(given.d3rlpy_python)}
    times: dict[str, list[float]] = {name: [] for name in interpreters}
    load = os.getloadavg()[0]
    for _ in range(given.rounds):
        for name, interpreter in interpreters.items():
            size = ["--updates", str(given.updates), "--runs", str(given.runs)]
            command = [interpreter, __file__, "--child", name, *size]
            command += ["--precision", given.precision]
            environment = {**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
            found = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            )
            times[name] += json.loads(found.stdout.splitlines()[-1])
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {
        "ms_per_update": medians,
        "all_ms": times,
        "times_faster": medians["d3rlpy"] / medians["icql"],
        "precision": given.precision,
        "cpus": os.cpu_count(),
        "load_before": load,
    }
    print(f"{'':<10}{'ms/update':>10}{'fastest':>10}{'slowest':>10}")
    for name, values in times.items():
        print(f"{name:<10}{medians[name]:>10.2f}{min(values):>10.2f}{max(values):>10.2f}")
    print(f"{result['times_faster']:.2f} times faster; load before: {load:.2f}")
    text = json.dumps(result)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


def timed(run: Callable[[int], None], updates: int, runs: int) -> list[float]:
    """Milliseconds per update of each run; the first run warms up and is left out."""
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        run(updates)
        times.append(1e3 * (time.perf_counter() - begin) / updates)
    return times[1:]


def made_up() -> dict[str, np.ndarray]:
    """Smooth random walks in episodes of 1000 steps."""
    rng = np.random.default_rng(0)
    return {
        "states": np.cumsum(0.1 * rng.normal(size=(ROWS + 1, OBS)), axis=0).astype(np.float32),
        "actions": rng.uniform(-0.99, 0.99, size=(ROWS + 1, ACT)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "ends": (np.arange(ROWS) % EPISODE == EPISODE - 1).astype(np.float32),
    }


def icql_updates(precision: Literal["float32", "bfloat16"]) -> Callable[[int], None]:
    """A function that makes a number of updates of our IQL."""
    from icql.algos.base import Spec
    from icql.algos.iql import IQL
    from icql.data.transitions import DataInfo, Transitions
    from icql.settings.algorithms import IQLSettings
    from icql.settings.shared import PolicySettings
    from icql.training.device import fit_normaliser, to_device
    from icql.training.loop import Loop

    arrays = made_up()
    rows = np.arange(ROWS, dtype=np.int32)
    data = Transitions(
        states=arrays["states"][:-1],
        actions=arrays["actions"][:-1],
        rewards=arrays["rewards"],
        next_states=arrays["states"][1:],
        next_actions=arrays["actions"][1:],
        mask=np.ones(ROWS, np.float32),
        episode=rows // EPISODE,
        step=rows % EPISODE,
        info=DataInfo("made-up"),
    )
    settings = IQLSettings(
        hidden=HIDDEN, policy=PolicySettings(hidden=HIDDEN, cosine=True), batch_size=BATCH
    )
    on_device = to_device(data, fit_normaliser(data, settings.data), None)
    algorithm = IQL(settings, Spec(OBS, ACT, 1_000_000, precision=precision))
    loop = Loop(algorithm, on_device, [0])
    states, step = loop.init(), 0

    def run(updates: int) -> None:
        nonlocal states, step
        states, _ = loop.advance(states, step, updates)  # waits for the metrics
        step += updates

    return run


def d3rlpy_updates() -> Callable[[int], None]:
    """A function that makes a number of updates of d3rlpy's IQL, as its `fit` makes them."""
    import d3rlpy  # type: ignore[import-not-found]

    arrays = made_up()
    dataset = d3rlpy.dataset.MDPDataset(
        arrays["states"][:-1],
        arrays["actions"][:-1],
        arrays["rewards"],
        np.zeros(ROWS, np.float32),
        arrays["ends"],
    )
    encoder = d3rlpy.models.encoders.VectorEncoderFactory(list(HIDDEN))
    config = d3rlpy.algos.IQLConfig(
        batch_size=BATCH,
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        value_encoder_factory=encoder,
    )
    iql = config.create(device="cpu:0")
    iql.build_with_dataset(dataset)

    def run(updates: int) -> None:
        for _ in range(updates):
            iql.update(dataset.sample_transition_batch(BATCH))

    return run


if __name__ == "__main__":
    main()
