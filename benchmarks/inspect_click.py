"""How long a click on `icql inspect` waits at a million states (made up), without HTTP.

python benchmarks/inspect_click.py [--rows 1000000] [--columns 17] [--clicks 30]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

import icql
from icql.data.formats.npz import write_npz
from icql.data.transitions import Steps
from icql.evidence import alarm
from icql.inspecting.view import View
from icql.progress import Display


def make_log(path: Path, rows: int, columns: int, length: int = 200) -> Path:
    """Random walks of `length` steps each."""
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(rows // length, length, columns)).astype(np.float32)
    states = np.cumsum(0.3 * steps, axis=1).reshape(-1, columns)
    ends = np.arange(len(states)) % length == length - 1
    actions = rng.uniform(-1, 1, (len(states), 3)).astype(np.float32)
    rewards = states[:, 0].copy()
    write_npz(path, Steps(states, actions, rewards, np.zeros_like(ends), ends))
    return path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=17)
    parser.add_argument("--clicks", type=int, default=30)
    parser.add_argument("--algo", default="icql")
    asked = parser.parse_args()
    alarm.SCORED = 500  # its limit is found sooner; a click takes as long
    small = {"batch_size": 16, "hidden": [64, 64], "policy.hidden": [64, 64]}
    with tempfile.TemporaryDirectory() as place:
        log = make_log(Path(place) / "log.npz", asked.rows, asked.columns)
        run = Path(place) / "run"
        icql.train(
            asked.algo,
            dataset=str(log),
            steps=1,
            out=run,
            settings=small,
            run={"episodes": 0},
            quiet=True,
        )
        begin = time.perf_counter()
        view = View([run], dataset=None, rate=0.05, display=Display())
        view.row(0)
        view.state(np.asarray(view.data.states[:1]))
        prepared = time.perf_counter() - begin
        rng, clicks, pasted = np.random.default_rng(1), [], []
        for row in rng.integers(len(view.data), size=asked.clicks):
            begin = time.perf_counter()
            view.row(int(row))
            clicks.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            view.state(np.asarray(view.data.states[[row]]) + np.float32(0.01))
            pasted.append(time.perf_counter() - begin)
        told = {
            "rows": len(view.data),
            "prepared_s": round(prepared, 1),
            "click_ms": {q: round(1e3 * float(np.quantile(clicks, q)), 1) for q in (0.5, 0.95)},
            "pasted_ms": {q: round(1e3 * float(np.quantile(pasted, q)), 1) for q in (0.5, 0.95)},
        }
        print(json.dumps(told))


if __name__ == "__main__":
    main()
