"""The local critic's options side by side: final scores with their intervals over seeds.

    python benchmarks/critic_ablation.py --task kitchen-complete-v0 --preset paper --steps 100000 \\
        --seeds 5 --episodes 20 --out runs/critic-ablation

Every variant changes one thing of the preset, or closes several holes at once; the seeds of one
(and, with --grid, settings that can vary within a program) are trained in one compiled program. A
variant that diverges says so in its row. After a kill the same command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

import icql
from icql.algos.presets import PresetName
from icql.evaluation.scores import summary
from icql.files import write_json
from icql.settings.grid import read_grid, say_settings

RIDGE = {"local.module": "ridge", "local.normalise": "unit"}
TD = {
    "local.initial": "learned",
    "local.normalise": "unit",
    "local.c_scale": 64.0,  # C = I, or what the bound leaves of it: steps as large as unit φ allows
    "local.spectral_bound": 1.0,
}
OWN = {"context.exclude": "episode"}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "global": {"critic": "global"},
    "w0": {"local.initial": "learned"},
    "shift": {"data.reward_shift": None},  # given by --reward-shift
    "unit": {"local.normalise": "unit"},
    "layer": {"local.normalise": "layer"},
    "bound-c": {"local.spectral_bound": 1.0},
    "xavier": {"local.c_start": "xavier", "local.c_scale": 1.0},  # gain 0.1 / L
    "printed-sign": {"value": "policy", "expectile_sign": "q-y"},
    "cosine": {"context.metric": "cosine"},
    "others": OWN,  # contexts of other episodes only
    "closed": {**TD, **OWN},
    "ridge-own-row": RIDGE,
    "ridge": {**RIDGE, **OWN},
}


@dataclass(frozen=True)
class Options:
    """What to compare, on what."""

    algo: str = "icql"
    """icql, icql-td3bc, or another algorithm with a local critic by its settings."""
    task: str | None = None
    """Task of the table; by default the one of the data."""
    dataset: str | None = None
    """Data set by name or file; by default the task's own, or hopper-mini."""
    preset: PresetName = "quick"
    """quick or paper."""
    steps: int = 20_000
    """Updates."""
    seeds: int = 5
    """Seeds of each variant."""
    episodes: int = 20
    """Episodes of the final evaluation, per seed."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """Which variants."""
    reward_shift: float = -0.04
    """Of the variant `shift`; −4 at Kitchen's reward scale of 0.01."""
    settings: tuple[str, ...] = ()
    """Changes for all variants, each as name=value, such as batch_size=64."""
    grid: tuple[str, ...] = ()
    """Settings to vary within each variant's program, such as beta=1,3,10."""
    out: Path = field(default_factory=lambda: Path("runs/critic-ablation"))
    """Where the runs go, one folder each."""


def main(options: Options) -> None:
    rows: list[dict[str, Any]] = []
    if unknown := sorted(set(options.variants) - set(VARIANTS)):
        raise SystemExit(f"no variant {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
    data = options.dataset or options.task or "hopper-mini"
    print(f"{options.algo} on {data}, preset {options.preset}, {options.steps:,} updates")
    heads = f"{'95 % interval':<18} {'seeds':>5} {'episodes':>8} {'updates/s':>9}"
    print(f"{'variant':<28} {'score':>7}  {heads}")
    for name in options.variants:
        for row in trained(name, options):
            rows.append(row)
            print(said(row), flush=True)
    write_json(options.out / "table.json", {"steps": options.steps, "rows": rows})


def trained(name: str, options: Options) -> Iterator[dict[str, Any]]:
    """Train a variant, and yield a row for each place of its grid."""
    out = options.out / name
    changes = {
        **{key: _value(value) for key, _, value in (s.partition("=") for s in options.settings)},
        **{k: options.reward_shift if v is None else v for k, v in VARIANTS[name].items()},
    }
    try:
        result = icql.train(
            options.algo,
            task=options.task,
            dataset=options.dataset,
            preset=options.preset,
            steps=options.steps,
            seeds=options.seeds,
            settings=changes,
            grid=read_grid(options.grid) or None,  # type: ignore[arg-type]
            run={"episodes": options.episodes, "evaluate_every": options.steps},
            out=out,
            resume=out.exists(),
            quiet=True,
        )
    except icql.UserError as refused:  # diverged, or no option of this algorithm
        yield {"variant": name, "settings": {}, "failed": str(refused).splitlines()[0]}
        return
    if result["score"] is None:
        raise SystemExit("the data has no task, so there is nothing to score: give --task.")
    for scores in result["score"].get("combinations", [result["score"]]):
        yield {
            "variant": name,
            "settings": scores.get("settings", {}),
            "per_seed": scores["per_seed"],
            **summary(scores["per_seed"]),
            "episodes": len(scores["returns"][0]),
            "updates_per_second": result["updates_per_second"],
            "warnings": result["warnings"],
        }


def said(row: dict[str, Any]) -> str:
    """A row of the table; `!` where values were above what rewards can add up to."""
    label = f"{row['variant']} {say_settings(row['settings'])}".strip()
    if "failed" in row:
        return f"{label:<28} {row['failed']}"
    ci = row["ci95"]
    interval = "one seed" if ci is None else f"{ci[0]:.1f} to {ci[1]:.1f}"
    speed = row["updates_per_second"] or float("nan")  # not known of a run that was finished before
    mark = " !" if row["warnings"] else ""
    return (
        f"{label:<28} {row['mean']:7.1f}  {interval:<18} {row['n']:>5} {row['episodes']:>8} "
        f"{speed:>9.0f}{mark}"
    )


def _value(text: str) -> Any:
    """A setting as written: a number, a list of whole numbers, true, false or a word."""
    if text in ("true", "false"):
        return text == "true"
    if "," in text:
        return [int(part) for part in text.split(",")]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
