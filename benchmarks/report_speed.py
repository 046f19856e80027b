"""How long the report of a large benchmark takes, and how large it is: made-up records.

    python benchmarks/report_speed.py --seeds 10

The scores are random numbers around the published ones; nothing is trained.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from icql.algos.presets import resolve_preset
from icql.bench.analyses import critic_analysis_path, data_analysis_path
from icql.bench.published import published
from icql.bench.records import Asked, BenchFolder, CellGroup
from icql.bench.report import gather, write_report
from icql.bench.suites import get_suite
from icql.seals import digest, plain, write_sealed

SUITES = ("extended", "retrieval")
POINTS = 20  # of a learning curve
VERSIONS = {"icql": "0", "jax": "0", "device": "gpu: made-up"}
CLONING = ("bc", "dt", "radt")  # without critics: nothing of them is analysed
STATES, LAYERS = 300, 20


@dataclass(frozen=True)
class Options:
    """How much to make up."""

    seeds: int = 10
    """Seeds of each of 234 groups."""
    repeats: int = 3
    """Timed reports, of which the fastest counts."""


def made_up_folder(
    path: Path, *, suites: tuple[str, ...] = SUITES, seeds: int = 10, steps: int | None = None
) -> BenchFolder:
    """Write a folder with a record for every cell of these suites, as if all had been run."""
    folder, rng = BenchFolder.make(path), np.random.default_rng(0)
    for name in suites:
        suite = get_suite(name)
        for task in suite.tasks:
            for row in suite.rows:
                preset = resolve_preset(row.algo, suite.preset, task)
                run = plain(dataclasses.asdict(preset.run))
                run |= {"steps": steps or run["steps"]}
                group = CellGroup(
                    algo=row.algo,
                    task=task,
                    data_hash=digest(task),
                    settings=plain(dataclasses.asdict(preset.settings)) | dict(row.settings),
                    run=run,
                    preset=suite.preset,
                    dataset=task,
                    changes=dict(row.settings),
                    seeds=tuple(range(seeds)),
                    asked=(Asked(name, row.id, row.name, task, preset.run.steps),),
                )
                folder.ask(group)
                write_analyses(folder, group, rng)
                known = published(name, row.id, task)
                centre = known[0].mean if known else 50.0
                for seed in group.seeds:
                    folder.write_record(group, seed, _record(group, centre, rng))
    return folder


def write_analyses(folder: BenchFolder, group: CellGroup, rng: np.random.Generator) -> None:
    """As large as those of real runs (`icql.analysis.brief`)."""

    def numbers(*shape: int) -> Any:
        return np.round(rng.normal(size=shape), 3).tolist()

    path = data_analysis_path(folder, group)
    if not path.exists():
        distances = [
            {"k": k, "all": [k / 2, k, 2 * k], "other_episodes": [k, 2 * k, 3 * k]}
            for k in (1, 2, 5, 10, 20, 40)
        ]
        made = {"name": group.task, "rows": STATES, "plane": numbers(STATES, 2)}
        made |= {"outcome": numbers(STATES), "action_spread": 0.357, "deviations_last": 0.12}
        made |= {"space": "raw", "step": 1.0, "distances": distances}
        write_sealed(path, made)
    if group.algo not in CLONING:
        layers = np.sort(rng.normal(size=(LAYERS, 3)), axis=1)[:, [1, 0, 2]].round(3).tolist()
        local = layers if group.algo.startswith("icql") else None
        said = {"seed": 0, "values": numbers(STATES), "rank": numbers(len(group.seeds))}
        write_sealed(critic_analysis_path(folder, group), said | {"layers": local})


def _record(group: CellGroup, centre: float, rng: np.random.Generator) -> dict[str, Any]:
    final = centre + rng.normal(0, 5)
    steps = np.linspace(0, group.run["steps"], POINTS + 1)[1:]
    scores = final * (1 - np.exp(-5 * steps / steps[-1])) + rng.normal(0, 2, POINTS)
    curve = [[int(a), float(b)] for a, b in zip(steps, scores, strict=True)]
    best = max(curve, key=lambda point: point[1])
    return {
        "outcome": {
            "score": curve[-1][1],
            "returns": [curve[-1][1]] * group.run["episodes"],
            "best": {"step": best[0], "score": best[1]},
            "curve": curve,
            "behaviour_score": centre / 2,
            "warnings": [],
            "parameter_hash": "0" * 64,
        },
        "run": {
            "together": list(group.seeds),
            "preset": group.preset,
            "dataset": group.dataset,
            "resumed_at": [],
            "seconds": 100.0,
            "updates_per_second": group.run["steps"] / 100.0,
            "last_wall_seconds": 120.0,
            "versions": VERSIONS,
            "time": "2026-01-01T00:00:00Z",
        },
    }


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    with tempfile.TemporaryDirectory() as place:
        folder = made_up_folder(Path(place) / "bench", seeds=options.seeds)
        for suffix in (".html", ".md", ".tex"):
            out, taken, cpu = Path(place) / f"report{suffix}", [], time.process_time()
            for _ in range(options.repeats):
                begin = time.perf_counter()
                report = gather(folder)
                write_report(report, out)
                taken.append(time.perf_counter() - begin)
            cpu = (time.process_time() - cpu) / options.repeats  # the same on a busy machine
            cells, size = report.counts()["cells"], out.stat().st_size / 1e6
            print(
                f"{suffix:<6} {cells:,} cells  {min(taken):.2f} s  {cpu:.2f} CPU s  {size:.2f} MB"
            )


if __name__ == "__main__":
    main()
