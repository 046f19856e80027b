"""D4RL's kitchen-mixed from the demonstrations of kitchen-partial: other tasks are paid.

    python benchmarks/kitchen_mixed.py --out mixed/kitchen-mixed-v0.hdf5

D4RL's two sets have as many rows and episodes, and are made of the same demonstrations: which four
tasks are paid, and the goal that is shown beside the state, is all that differs. Rewards follow by
D4RL's rule from the objects of a state. The same rule has to give the rewards that the source has
for its own tasks, or nothing is written. No demonstration fulfils all four tasks of kitchen-mixed.
The file can be trained on with `ICQL_D4RL_DIR=mixed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import tyro

from icql.data.datasets import find_d4rl
from icql.data.tasks import get_task
from icql.evaluation.environments import make_env
from icql.files import atomic
from kitchen_playback import fulfilled

SOURCE, MADE = "kitchen-partial-v0", "kitchen-mixed-v0"
GOAL = 30  # columns of the state from here on are the goal


@dataclass(frozen=True)
class Options:
    """Where the file goes."""

    out: Path
    """HDF5 file to make."""


def main(options: Options) -> None:
    found = find_d4rl(SOURCE)
    if found is None:
        raise SystemExit(f"no data of {SOURCE}: icql data fetch {SOURCE}")
    with h5py.File(found) as log:
        columns = {name: column[:] for name, column in log.items()}
    states, logged = columns["observations"], columns["rewards"]
    known = np.isfinite(logged)
    if not np.array_equal(fulfilled(SOURCE, states)[known], logged[known]):
        raise SystemExit(f"{found}: its rewards are not those of D4RL's rule")
    rewards = np.where(known, fulfilled(MADE, states), np.nan).astype(np.float32)
    goal = make_env(get_task(MADE)).reset(seed=0)[0][GOAL:]
    columns |= {"observations": np.hstack([states[:, :GOAL], np.tile(goal, (len(states), 1))])}
    columns["observations"] = columns["observations"].astype(np.float32)
    columns["rewards"] = rewards
    with atomic(options.out) as temporary, h5py.File(temporary, "w") as file:
        for name, column in columns.items():
            file[name] = column
    ends = np.flatnonzero(columns["terminals"])
    counts = np.unique(rewards[ends][known[ends]].astype(int), return_counts=True)
    told = ", ".join(f"{number} with {count} of 4" for count, number in zip(*counts, strict=True))
    print(f"{len(rewards):,} rows; demonstrations that end with so many tasks: {told}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
