"""Tiny runs to inspect, on a log whose names a careless page would run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import icql

EVIL = "<script>alert(1)</script>"
COLUMNS = ("pressure", EVIL, "price")
EPISODES, LENGTH = 12, 20
LOG = """\
observation = ["pressure", '<script>alert(1)</script>', "price"]
action = ["heater", "pump"]
reward = "profit"
episode = "shift"
time = "minute"
units = {pressure = "Pa", heater = "kW"}
action_bounds = {heater = [40, 90], pump = [0, 100]}
"""
SMALL: dict[str, dict[str, Any]] = {
    "icql": {
        "batch_size": 16,
        "hidden": [8],
        "policy.hidden": [8],
        "context.k": 4,
        "local.layers": 3,
        "local.features": 6,
    },
    "icql-graph": {"policy.hidden": [8], "draw.compared": 8, "draw.neighbours": 30},
    "iql": {"batch_size": 8, "hidden": [4], "policy.hidden": [4]},
    "bc": {"batch_size": 8, "policy.hidden": [4]},
}


def write_log(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["pressure,<script>alert(1)</script>,price,heater,pump,profit,shift,minute"]
    for shift in range(EPISODES):
        state = rng.normal(size=3)
        for minute in range(LENGTH):
            heater, pump = rng.uniform(40, 90), rng.uniform(0, 100)
            told = [*state, heater, pump, -abs(state[0]), shift, minute]
            lines.append(",".join(f"{x:.6g}" for x in told))
            state = 0.9 * state + 0.3 * rng.normal(size=3)
    path.write_text("\n".join(lines) + "\n")
    path.with_name(path.name + ".toml").write_text(LOG)
    return path


def train(algo: str, log: Path, out: Path, seeds: int = 1) -> Path:
    icql.train(
        algo,
        dataset=str(log),
        steps=2,
        seeds=seeds,
        out=out,
        settings=SMALL[algo],
        run={"episodes": 0},
        quiet=True,
    )
    return out
