"""`icql data collect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.errors import UserError
from icql.files import read_json
from icql.online import Level, Progress, collect
from icql.progress import Display, Work

DESCRIPTION = """Make a dataset with online SAC by D4RL's protocol.

medium is the policy at a third of expert performance, medium-replay everything seen until then.
Writes RECIPE-LEVEL.npz and its provenance. A call that was stopped goes on where it stopped; all
levels of one recipe and seed share one training run, whose final critic is the Q oracle."""


@dataclass(frozen=True)
class Collect:
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
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, collect, print."""
    options = tyro.cli(Collect, prog="icql data collect", description=DESCRIPTION, args=argv)
    for name in ("steps", "transitions"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError("must be at least 1.", where=f"--{name}")
    shown = _Shown(Display())
    try:
        path = collect(
            options.recipe,
            options.level,
            options.out,
            work=options.work,
            steps=options.steps,
            seed=options.seed,
            transitions=options.transitions,
            progress=shown.progress,
        )
    finally:
        shown.close()
    provenance = read_json(path.with_suffix(".json"))
    if options.json:
        return {"path": str(path), **provenance}
    score = provenance["normalized_score"]["mean"]
    print(f"{path}: {provenance['steps']:,} steps, mean score {score:.1f}")
    return None


class _Shown:
    """One bar per piece of work: training, then each policy that is sampled."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._label = ""
        self._work: Work | None = None

    def progress(self, now: Progress) -> None:
        """Show how far the current piece of work has got."""
        if self._work is None or now.label != self._label:
            self.close()
            self._label, self._work = now.label, self._display.work(now.label, now.steps)
            self._work.__enter__()
            self._work.start_at(now.step)
        note = f"{now.steps_per_second:,.0f}/s"
        if now.evaluation is not None:
            note += f", return {now.evaluation.mean:,.0f}"
        self._work.update(now.step, note)

    def close(self) -> None:
        """End the display of the current piece of work."""
        if self._work is not None:
            self._work.__exit__(None, None, None)
            self._work = None
