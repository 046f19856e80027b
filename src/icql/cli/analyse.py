"""`icql analyse`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from icql.cli.options import Options, Result


@dataclass(frozen=True, kw_only=True)
class Analyse(Options):
    """The paper's analyses: what critics say of the same states, and how they come to it.

    Draws maps of the states coloured by each critic's values, the values against an oracle's
    (SAC's, kept by `icql data collect`) or else against the logged outcomes, Q̂ after every layer
    and statistics of C. Correlations are of each training seed; their mean is shown.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Finished runs with critics, on the same data."""
    out: Path
    """Folder for the pictures."""
    oracle: Path | None = None
    """A snapshot of SAC (.safetensors)."""
    states: int = 2_000
    """Logged pairs that the critics are asked about, evenly spread."""
    dataset: str | None = None
    """Where the data is now, if not where it was when the runs were made."""

    def folders_written(self) -> Iterable[Path]:
        """That of the pictures."""
        return (self.out,)

    def execute(self) -> Result:
        """Ask, tell and draw."""
        from icql.analysis.drawn import draw_values
        from icql.analysis.values import agreement, values_of

        values = values_of(self.runs, count=self.states, oracle=self.oracle, dataset=self.dataset)
        name, truth = values.truth
        self.say(f"{values.name}: {len(values.rows):,} pairs, compared with {name}")
        said = []
        for critic in values.critics:
            found = agreement(critic.values, truth)
            r, rho = (float(np.mean(found[key])) for key in ("pearson", "spearman"))
            seeds = f"{len(critic.values)} seed(s)"
            self.say(f"  {critic.label:<28} r {r:6.2f}   rank {rho:6.2f}   {seeds}")
            c = None if critic.c is None else {key: x.tolist() for key, x in critic.c.items()}
            said.append({"label": critic.label, "run": critic.run, **found, "c": c})
        drawn = [str(path) for path in draw_values(values, self.out)]
        self.say(f"pictures: {', '.join(drawn)}")
        return {"pairs": len(values.rows), "against": name, "critics": said, "pictures": drawn}
