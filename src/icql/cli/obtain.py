"""`icql data fetch` and `icql data collect`: data that is not here yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tyro

from icql.cli.options import Flag, Options, Result
from icql.data.download import fetch, url_of
from icql.data.formats.minari_source import PREFIX, fetch_minari
from icql.errors import UserError
from icql.files import read_json
from icql.progress import Display
from icql.settings.contexts import Level


@dataclass(frozen=True, kw_only=True)
class Fetch(Options):
    """Fetch a D4RL dataset into the user's cache, or a Minari dataset into Minari's.

    A fetch that broke off goes on where it stopped. ICQL_D4RL_URL names a mirror, ICQL_CACHE
    another folder.
    """

    name: tyro.conf.Positional[str]
    """D4RL name, e.g. hopper-medium-v2, or minari:ID."""
    sha256: str | None = None
    """What the file must hash to."""
    force: Flag = False
    """Fetch it even if it is there."""

    def going_on(self) -> str:
        """What came of a D4RL file is kept."""
        if self.name.startswith(PREFIX):
            return super().going_on()
        return "The same command goes on where it stopped."

    def execute(self) -> Result:
        """Fetch, with a bar."""
        name = self.name
        if name.startswith(PREFIX):
            if self.sha256 is not None:
                raise UserError("Minari datasets have no checksum to compare.", where="--sha256")
            fetch_minari(name.removeprefix(PREFIX), Display().say)
            result: Result = {"name": name, "path": None}
        else:
            url = url_of(name)
            display = Display()
            with display.works() as show:
                path = fetch(
                    name,
                    sha256=self.sha256,
                    force=self.force,
                    tell=display.say,
                    progress=lambda done, of: show(f"kB of {name}", done // 1000, of // 1000, ""),
                )
            result = {"name": name, "path": str(path), "url": url, "bytes": path.stat().st_size}
        self.say(result["path"] or name)
        return result


@dataclass(frozen=True, kw_only=True)
class Collect(Options):
    """Make a dataset with online SAC by D4RL's protocol.

    medium is the policy at a third of expert performance, medium-replay everything seen until then.
    Writes RECIPE-LEVEL.npz and its provenance. A call that was stopped goes on where it stopped;
    all levels of one recipe and seed share one training run, whose final critic is the Q oracle.
    """

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

    def going_on(self) -> str:
        """There are checkpoints."""
        return "The same command goes on where it stopped."

    def folders_written(self) -> Iterable[Path]:
        """Those of the dataset and of the training."""
        return (self.out,) if self.work is None else (self.out, self.work)

    def execute(self) -> Result:
        """Collect, with bars."""
        for name, value in (("steps", self.steps), ("transitions", self.transitions)):
            if value is not None and value < 1:
                raise UserError("must be at least 1.", where=f"--{name}")

        from icql.online import collect

        with Display().works() as show:
            path = collect(
                self.recipe,
                self.level,
                self.out,
                work=self.work,
                steps=self.steps,
                seed=self.seed,
                transitions=self.transitions,
                progress=show,
            )
        provenance = read_json(path.with_suffix(".json"))
        score = provenance["normalized_score"]["mean"]
        self.say(f"{path}: {provenance['steps']:,} steps, mean score {score:.1f}")
        return {"path": str(path), **provenance}
