"""`icql algos`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from icql.algos.presets import presets_of, resolve_preset
from icql.algos.registry import algorithms
from icql.cli.options import Options, Result
from icql.data.tasks import get_task


@dataclass(frozen=True, kw_only=True)
class Algos(Options):
    """List every algorithm with its presets and where their values come from."""

    task: str | None = None
    """Show the settings for this task."""

    def execute(self) -> Result:
        """List."""
        if self.task is not None:
            get_task(self.task)  # one that is not known has no settings of its own
        found = {}
        for name, entry in algorithms().items():
            presets = {
                preset: resolve_preset(name, preset, self.task) for preset in presets_of(name)
            }
            self.say(f"{name:<12} {entry.summary} ({entry.paper})")
            for source in presets["paper"].sources:
                self.say(f"{'':<12} · {source}")
            plain = {preset: asdict(values) for preset, values in presets.items()}
            found[name] = {"summary": entry.summary, "paper": entry.paper, "presets": plain}
        return {"task": self.task, "algorithms": found}
