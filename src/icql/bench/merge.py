"""Finished cells of several folders into one: made on other machines, or to be kept for good.

Records are named by what decides them, so they never collide; what was asked is joined. Run folders
stay where they are: a merged folder is all that reports need, and small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from icql.bench.analyses import analyses_of, critic_analysis_path, data_analysis_path
from icql.bench.records import BenchFolder, CellGroup
from icql.errors import UserError
from icql.seals import write_sealed


def merge(sources: Iterable[Path], out: Path) -> dict[str, Any]:
    """Copy every finished cell of `sources` into the folder `out`, which may hold some already.

    A cell that is there stays as it is. Returns how many were copied and found, which were found
    with another outcome, and which could not be read.

    Raises:
        UserError: a source is no benchmark folder, or `out` is one of them; nothing is copied.
    """
    folders = [BenchFolder.open(source) for source in sources]
    if not folders:
        raise UserError("name at least one benchmark folder.", where="icql bench merge")
    if out.resolve() in [folder.path.resolve() for folder in folders]:
        raise UserError("is merged into itself.", where=str(out), fix="Give another --out.")
    target = BenchFolder.make(out)
    copied, found, other, wrong = 0, 0, list[str](), list[str]()
    for folder in folders:
        groups, unread = folder.groups()
        wrong += [f"{folder.path}: {reason}" for reason in unread]
        for group in groups:
            records, damaged = folder.records(group)
            wrong += [f"{folder.path}: {reason}" for reason in damaged.values()]
            if not records:
                continue
            kept = _ask(target, group, records)
            there, _ = target.records(kept)
            for seed, record in records.items():
                if seed not in there:
                    content = {name: record[name] for name in ("outcome", "run")}
                    target.write_record(kept, seed, content)
                    copied += 1
                else:
                    found += 1
                    if there[seed]["outcome"] != record["outcome"]:
                        other.append(f"{group.label}, seed {seed} of {folder.path}")
            _copy_analyses(folder, target, group)
    return {
        "folder": str(out),
        "copied": copied,
        "found": found,
        "other_outcome": other,
        "damaged": wrong,
    }


def _ask(target: BenchFolder, group: CellGroup, records: Mapping[int, Any]) -> CellGroup:
    """Write down what the finished cells are; where their data lay on that machine is left out."""
    dataset = Path(group.dataset).name if Path(group.dataset).is_absolute() else group.dataset
    return target.ask(dataclasses.replace(group, seeds=tuple(sorted(records)), dataset=dataset))


def _copy_analyses(source: BenchFolder, target: BenchFolder, group: CellGroup) -> None:
    paths = data_analysis_path(target, group), critic_analysis_path(target, group)
    ours, theirs = analyses_of(target, group), analyses_of(source, group)
    for path, here, there in zip(paths, ours, theirs, strict=True):
        if here is None and there is not None:
            write_sealed(path, there)
