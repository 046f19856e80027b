"""Does a suite that is killed, or run by two processes at once, end with the same records?

    python benchmarks/killed_suite.py --tasks hopper-mini kitchen-complete-v0 door-human-v1 \\
        --algos bc td3bc iql rebrac dmg icql --seeds 3 --kills 3

Runs the suite once to its end, once with kills in between (SIGKILL, at random moments), once with
two runners on one folder, and compares every record but for times.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.bench.records import BenchFolder


@dataclass(frozen=True)
class Options:
    """What to run, and how often to kill it."""

    tasks: tuple[str, ...] = ("hopper-mini",)
    """Tasks with data at hand."""
    algos: tuple[str, ...] = ("bc", "td3bc")
    """Rows of the suite main, or other algorithms."""
    seeds: int = 2
    """Seeds side by side."""
    steps: int = 20
    """Updates."""
    kills: int = 3
    """How often to kill."""
    seed: int = 0
    """Of the moments."""
    whole: Path | None = None
    """Folder of the uninterrupted run: made where nothing is, and kept for the next time."""
    span: float | None = None
    """Seconds over which the kills are spread (none given: as long as the whole run took)."""


def start(options: Options, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "icql", "bench", "run", "main", "--preset", "quick"]
    command += ["--tasks", *options.tasks, "--algos", *options.algos]
    command += ["--seeds", str(options.seeds), "--steps", str(options.steps), "--episodes", "1"]
    return subprocess.Popen([*command, "--quiet", "--out", str(out)], stdout=subprocess.DEVNULL)


def outcomes(out: Path) -> dict[str, Any]:
    folder, found = BenchFolder.open(out), dict[str, Any]()
    for group in folder.groups()[0]:
        for seed, record in folder.records(group)[0].items():
            found[group.cell_key(seed)] = (record["cell"], record["outcome"])
    return found


def overhead(out: Path, wall: float) -> float:
    """Seconds that are not those of trainings, for each cell; with the start of the process."""
    folder, spent, cells = BenchFolder.open(out), 0.0, 0
    for group in folder.groups()[0]:
        records, _ = folder.records(group)
        programs = {tuple(r["run"]["together"]): r["run"] for r in records.values()}
        spent += sum(run["last_wall_seconds"] for run in programs.values())
        cells += len(records)
    return (wall - spent) / cells


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        killed, shared = (Path(place) / name for name in ("killed", "shared"))
        whole = options.whole or Path(place) / "whole"
        made, begin = not whole.exists(), time.perf_counter()
        assert start(options, whole).wait() == 0
        wall = time.perf_counter() - begin
        expected = outcomes(whole)
        print(f"uninterrupted: {len(expected)} records", flush=True)
        if made:
            beside = overhead(whole, wall)
            print(f"  in {wall:.1f} s, beside training {beside:.2f} s for each", flush=True)
        span = options.span or wall
        for number in range(options.kills):
            runner = start(options, killed)
            time.sleep(span * moments.uniform(0.2, 0.8) / max(1, options.kills - 1))
            runner.kill()
            runner.wait()
            done = len(list(killed.glob("records/*.json")))
            print(f"kill {number + 1}: {done} records", flush=True)
        assert start(options, killed).wait() == 0
        same = outcomes(killed) == expected
        print(f"killed {options.kills} times: same records: {same}", flush=True)
        runners = [start(options, shared) for _ in range(2)]
        assert [runner.wait() for runner in runners] == [0, 0]
        runs = len(list(shared.glob("runs/*/*")))
        print(f"two runners: same records: {outcomes(shared) == expected}, {runs} trainings")


if __name__ == "__main__":
    main()
