"""What reports show beside scores: written once where a cell ends, small, and never in its way.

analyses/data-HASH.json   of data: a map of some states, outcomes, distances of neighbours
analyses/KEY.json         of a group with critics: their values of the same states, Q̂ by layer

`icql.analysis.brief` computes them. Scores do not wait for them: what fails is written down as
such, and a report says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icql.bench.records import BenchFolder, CellGroup, Damaged, read_sealed
from icql.progress import Display
from icql.seals import write_sealed


def data_analysis_path(folder: BenchFolder, group: CellGroup) -> Path:
    """Where the analysis of a group's data is."""
    return folder.path / "analyses" / f"data-{group.data_hash[:32]}.json"


def critic_analysis_path(folder: BenchFolder, group: CellGroup) -> Path:
    """Where the analysis of a group's critics is."""
    return folder.path / "analyses" / f"{group.key}.json"


def analyse(folder: BenchFolder, group: CellGroup, run: Path, display: Display) -> None:
    """Analyse the data and the critics of a finished run, unless that was done before."""
    from icql.training.run_folder import RunFolder
    from icql.training.trained import data_of, has_critic

    of_data, of_critics = data_analysis_path(folder, group), critic_analysis_path(folder, group)
    try:
        critics = has_critic(run) and _read(of_critics) is None
        if not critics and _read(of_data) is not None:
            return
        from icql.analysis.brief import brief_of_data, brief_of_run

        data = data_of(RunFolder.open(run))
        if _read(of_data) is None:
            write_sealed(of_data, brief_of_data(data))
        if critics:
            found = brief_of_run(run, data) or {}
            write_sealed(of_critics, {"seed": group_seed(run), **found})
    except Exception as error:  # pictures: a score is not lost for their sake
        display.say(f"warning: {group.label} could not be analysed: {error}")
        write_sealed(of_critics, {"error": str(error) or type(error).__name__})


def group_seed(run: Path) -> int:
    """The first seed of a run folder, which is called FIRST-LAST."""
    return int(run.name.partition("-")[0])


def analyses_of(
    folder: BenchFolder, group: CellGroup
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """What was found of a group's data and of its critics; None where there is nothing."""
    return _read(data_analysis_path(folder, group)), _read(critic_analysis_path(folder, group))


def _read(path: Path) -> dict[str, Any] | None:
    """A damaged analysis is none: it is made again with the next run of its suite that trains."""
    with contextlib.suppress(Damaged):
        return read_sealed(path)
    return None
