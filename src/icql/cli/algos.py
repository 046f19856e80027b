"""`icql algos`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from icql.algos.presets import PRESETS, resolve_preset
from icql.algos.registry import algorithms
from icql.cli.options import Options, Result


@dataclass(frozen=True, kw_only=True)
class Algos(Options):
    """List every algorithm with its presets and where their values come from."""

    task: str | None = None
    """Show the settings for this task."""

    def execute(self) -> Result | None:
        """List."""
        if self.json:
            return {
                "task": self.task,
                "algorithms": {name: self._all(name) for name in algorithms()},
            }
        for name, entry in algorithms().items():
            print(f"{name:<12} {entry.summary} ({entry.paper})")
            for source in resolve_preset(name, "paper", self.task).sources:
                print(f"{'':<12} · {source}")
        return None

    def _all(self, name: str) -> Result:
        entry = algorithms()[name]
        presets = {preset: asdict(resolve_preset(name, preset, self.task)) for preset in PRESETS}
        return {"summary": entry.summary, "paper": entry.paper, "presets": presets}
