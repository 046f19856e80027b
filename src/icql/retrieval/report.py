"""What a search did: engine, recall and cost, for the log, the run folder and plots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchReport:
    """How neighbours were found. `recall` is measured on `sample` queries (exact: 1 by proof)."""

    engine: str  # exact, accelerator (exact too), approximate or random
    states: int
    queries: int
    recall: float = 1.0
    sample: int = 0
    probes: int = 0  # cells looked at per query, where approximate
    seconds: float = 0.0
    mean_distance: tuple[float, ...] = ()  # of the 1st … k-th context state from s
    next_mean_distance: tuple[float, ...] = ()  # the same from s'
    cached: bool = False

    def __str__(self) -> str:
        how = {
            "exact": "exact",
            "accelerator": "exact on the accelerator",
            "random": "random",
            "approximate": f"approximate ({self.probes} cells), recall "
            f"{self.recall:.4f} against {self.sample} exact queries",
        }[self.engine]
        cost = "from the cache" if self.cached else f"{self.seconds:.1f} s"
        return f"{how}, {self.queries:,} queries in {self.states:,} states, {cost}"
