"""A small log of Hopper's shape, made up; and one with names, units and bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from icql.data.transitions import Steps

EPISODE = 50
MAPPING = """\
observation = ["pressure", "flow"]
action = ["valve"]
reward = "profit"
episode = "shift"
action_bounds = {valve = [0, 100]}
units = {pressure = "Pa", valve = "%"}
"""


def made_steps(rows: int, seed: int = 0, columns: int = 11, actions: int = 3) -> Steps:
    """Random numbers in episodes of equal length, with true successors."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(rows, columns)).astype(np.float32)
    ends = np.arange(1, rows + 1) % EPISODE == 0
    following = np.concatenate([observations[1:], observations[-1:]])
    following[ends] = rng.normal(size=(int(ends.sum()), columns))
    return Steps(
        observations,
        rng.uniform(-1, 1, (rows, actions)).astype(np.float32),
        rng.normal(size=rows).astype(np.float32),
        ends & (np.cumsum(ends) % 2 == 0),
        ends & (np.cumsum(ends) % 2 == 1),
        following,
    )


def write_plant(path: Path, shifts: int = 4, rows: int = 15, seed: int = 0) -> None:
    """A table with units, and its mapping beside it."""
    rng, lines = np.random.default_rng(seed), ["shift,pressure,flow,valve,profit"]
    for shift in range(shifts):
        for _ in range(rows):
            pressure, flow, valve = rng.normal(2e5, 1e4), rng.normal(), rng.uniform(0, 100)
            lines.append(f"{shift},{pressure:.1f},{flow:.3f},{valve:.2f},{flow * valve:.3f}")
    path.write_text("\n".join(lines) + "\n")
    path.with_name(f"{path.name}.toml").write_text(MAPPING)
