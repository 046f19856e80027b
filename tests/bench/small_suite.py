"""A suite that takes seconds: cloning and IQL with tiny networks on the pendulum.

Run as a script it is a runner of its own, to be killed: small_suite.py DATA OUT, or on the workers
of a Ray cluster, which know the embedded data alone: small_suite.py hopper-mini OUT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pendulum
from icql.bench.records import BenchFolder
from icql.bench.runner import Request, run_suite
from icql.bench.suites import Row, Suite
from icql.progress import Display

TINY = {"batch_size": 8, "policy.hidden": [8, 8]}
SUITE = Suite(
    id="small",
    title="Small suite",
    preset="quick",
    tasks=("pendulum-test",),
    rows=(
        Row(id="bc", name="BC", algo="bc", settings=TINY),
        Row(id="iql", name="IQL", algo="iql", settings={**TINY, "hidden": [8, 8]}),
    ),
)
RUN = {
    "steps": 200,
    "evaluate_every": 100,
    "checkpoint_every": 20,
    "log_every": 100,
    "episodes": 1,
}
ON_RAY = {"tasks": ("hopper-mini",), "datasets": {}, "run": RUN | {"steps": 300}}


def request(data: Path, **changes: Any) -> Request:
    pendulum.register()
    asked: dict[str, Any] = {"seeds": 2, "run": RUN, "datasets": {"pendulum-test": str(data)}}
    return Request(**({"suite": SUITE} | asked | changes))


def run(data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return run_suite(request(data, **changes), out, Display(quiet=True))


def outcomes(out: Path) -> dict[str, Any]:
    """What every record says, but for times: by the name of its file."""
    folder = BenchFolder.open(out)
    found = {}
    for group in folder.groups()[0]:
        for seed, record in folder.records(group)[0].items():
            found[group.cell_key(seed)] = (record["cell"], record["outcome"])
    return found


if __name__ == "__main__":
    data, out = map(Path, sys.argv[1:])
    if str(data) == "hopper-mini":
        from icql.bench.on_ray import OnRay

        run_suite(request(data, **ON_RAY), out, Display(), OnRay())
    else:
        run(data, out)
