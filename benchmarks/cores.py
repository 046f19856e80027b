"""Does a run's result depend on the number of cores? The same trainings on one core and on more.

    python benchmarks/cores.py --cores 1 2

Each training is a process of its own that is bound to so many cores before JAX starts its threads.
Two runs are the same where the hashes of all their parameters are. docs/decisions.md has the table.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tyro

TINY: dict[str, Any] = {"policy.hidden": [16, 16], "batch_size": 32}
WIDE: dict[str, Any] = {"policy.hidden": [256, 256], "batch_size": 256}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bc, 16 units": ("bc", TINY),
    "iql, 16 units": ("iql", TINY | {"hidden": [16, 16]}),
    "icql, 16 units": ("icql", TINY),
    "bc, 256 units": ("bc", WIDE),
    "iql, 256 units": ("iql", WIDE | {"hidden": [256, 256]}),
    "icql, 256 units": ("icql", WIDE),
    "rebrac, 256 units": ("rebrac", WIDE | {"hidden": [256, 256]}),
}
CHILD = """
import json, os, sys
cores, algo, settings, steps, out = json.loads(sys.argv[1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import icql
found = icql.train(
    algo, steps=steps, settings=settings, run={"episodes": 0}, out=out, quiet=True
)
print(json.dumps(found["parameter_hash"]))
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """What to compare."""

    cores: tuple[int, ...] = (1, 2)
    """Numbers of cores."""
    steps: int = 300
    """Updates of each training."""
    only: str = ""
    """Only cases with this in their name."""


def main(options: Options) -> None:
    """Train every case on every number of cores, twice on the first, and print the hashes."""
    have = len(os.sched_getaffinity(0))
    if max(options.cores) > have:
        raise SystemExit(f"this process may use {have} cores only")
    print(f"{'':<20}" + "".join(f"{cores:>6} cores   " for cores in options.cores) + "same")
    for name, (algo, settings) in CASES.items():
        if options.only in name:
            hashes = [train(cores, algo, settings, options.steps) for cores in options.cores]
            again = train(options.cores[0], algo, settings, options.steps)
            same = "yes" if len(set(hashes)) == 1 else "no"
            same += "" if again == hashes[0] else ", nor twice on the same"
            line = "".join(f"{digest[:12]:>12}   " for digest in hashes)
            print(f"{name:<20}{line}{same}", flush=True)


def train(cores: int, algo: str, settings: dict[str, Any], steps: int) -> str:
    """The hash of all parameters after a training on so many cores."""
    with tempfile.TemporaryDirectory() as folder:
        asked = json.dumps([cores, algo, settings, steps, str(Path(folder) / "run")])
        done = subprocess.run(
            [sys.executable, "-c", CHILD, asked], stdout=subprocess.PIPE, text=True, check=True
        )
    return str(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
