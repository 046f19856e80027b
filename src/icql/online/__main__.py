"""`python -m icql.online hopper --out DIR`: train SAC by a recipe and keep what it made.

Needs no more than the networks and the simulator, so that it can run on a bare machine with an
accelerator. Everything else of the protocol can then be made from the snapshots anywhere.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from icql.data.formats.npz import write_npz
from icql.errors import UserError
from icql.files import write_json
from icql.online.learning import OnlineRun, Progress, train_online
from icql.online.protocol import RECIPES, get_recipe, medium_replay, split
from icql.training.versions import versions


def main() -> None:
    """Parse, train, write; a user's mistake ends with one message and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m icql.online", description=__doc__)
    parser.add_argument("task", help=f"recipe: {', '.join(RECIPES)}")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is kept")
    parser.add_argument("--work", type=Path, help="folder of the run (default: OUT/work)")
    parser.add_argument("--steps", type=int, help="environment steps (default: the recipe's)")
    parser.add_argument("--seed", type=int, help="seed (default: the recipe's)")
    given = parser.parse_args()
    try:
        recipe = get_recipe(given.task)
        settings = recipe.settings
        settings = replace(settings, steps=given.steps or settings.steps)
        settings = replace(settings, seed=settings.seed if given.seed is None else given.seed)
        work = given.work or given.out / "work"
        export(train_online(recipe.task, settings, work, progress=_show), recipe.name, given.out)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None


def export(run: OnlineRun, name: str, out: Path) -> None:
    """Write the log of evaluations, the snapshots, and the replay until medium in parts."""
    log = {
        "env": run.task.env_id,
        "settings": asdict(run.settings),
        "evaluations": [{**asdict(e), "return": e.mean} for e in run.evaluations],
        "medium": None if run.medium is None else asdict(run.medium),
        "versions": versions(),
    }
    write_json(out / f"{name}-run.json", log)
    kinds: tuple[Literal["expert", "final"], ...] = ("expert", "final")
    for kept in kinds:
        if run.snapshot(kept).exists():  # a run that is all warm-up has no expert
            shutil.copyfile(run.snapshot(kept), out / f"{name}-{kept}.safetensors")
    if run.medium is None:
        return
    shutil.copyfile(run.snapshot("medium"), out / f"{name}-medium.safetensors")
    for i, part in enumerate(split(medium_replay(run))):
        meta = {"task": run.task.name, "level": "medium-replay", "part": i, "run": log}
        write_npz(out / f"{name}-medium-replay.{i}.npz", part, meta)


def _show(p: Progress) -> None:
    score = f", return {p.evaluation.mean:,.0f} ({p.evaluation.score:.1f})" if p.evaluation else ""
    sys.stderr.write(
        f"{p.label}: {p.step:,}/{p.steps:,}, {p.steps_per_second:.0f} steps/s, "
        f"{p.seconds_left / 60:.1f} min left{score}\n"
    )
    sys.stderr.flush()


if __name__ == "__main__":
    main()
