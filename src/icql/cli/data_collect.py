"""`icql data collect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.cli.data_shared import Options, bars
from icql.errors import UserError
from icql.files import read_json
from icql.online import Level, Progress, collect

DESCRIPTION = """Make a dataset with online SAC by D4RL's protocol.

medium is the policy at a third of expert performance, medium-replay everything seen until then.
Writes RECIPE-LEVEL.npz and its provenance. A call that was stopped goes on where it stopped; all
levels of one recipe and seed share one training run, whose final critic is the Q oracle."""


@dataclass(frozen=True, kw_only=True)
class Collect(Options):
    """The options of `icql data collect`."""

    recipe: tyro.conf.Positional[str]
    """hopper, walker2d or halfcheetah."""
    out: Path
    """Folder of the dataset."""
    level: Level = "medium-replay"
    """Which dataset."""
    steps: int | None = None
    """Environment steps of SAC; by default the recipe's."""
    seed: int | None = None
    """Seed; by default the recipe's."""
    transitions: int | None = None
    """Steps that each sampled policy contributes; by default the recipe's."""
    work: Path | None = None
    """Folder of the training run; by default in --out."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, collect, print."""
    options = tyro.cli(Collect, prog="icql data collect", description=DESCRIPTION, args=argv)
    for name in ("steps", "transitions"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError("must be at least 1.", where=f"--{name}")
    with bars() as show:

        def progress(now: Progress) -> None:
            note = f"{now.steps_per_second:,.0f}/s"
            if now.evaluation is not None:
                note += f", return {now.evaluation.mean:,.0f}"
            show(now.label, now.step, now.steps, note)

        path = collect(
            options.recipe,
            options.level,
            options.out,
            work=options.work,
            steps=options.steps,
            seed=options.seed,
            transitions=options.transitions,
            progress=progress,
        )
    provenance = read_json(path.with_suffix(".json"))
    if options.json:
        return {"path": str(path), **provenance}
    score = provenance["normalized_score"]["mean"]
    print(f"{path}: {provenance['steps']:,} steps, mean score {score:.1f}")
    return None
