"""Finished cells of several folders into one: made on other machines, or to be kept for good.

Records are named by what decides them, so they never collide; what was asked is joined. A group
that failed comes along with its error: a table without those that diverged would flatter the
others. Run folders stay where they are: a merged folder is all that reports need, and small.
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
    with another outcome, which failed, and which could not be read.

    Raises:
        UserError: a source is no benchmark folder, or `out` is one of them; nothing is copied.
    """
    folders = [BenchFolder.open(source) for source in sources]
    if not folders:
        raise UserError("name at least one benchmark folder.", where="icql bench merge")
    if out.resolve() in [folder.path.resolve() for folder in folders]:
        raise UserError("is merged into itself.", where=str(out), fix="Give another --out.")
    target = BenchFolder.make(out)
    copied, found, other, failed, wrong = 0, 0, list[str](), list[str](), list[str]()
    for folder in folders:
        groups, unread = folder.groups()
        wrong += [f"{folder.path}: {reason}" for reason in unread]
        for group in groups:
            records, damaged = folder.records(group)
            wrong += [f"{folder.path}: {reason}" for reason in damaged.values()]
            failure = folder.failure(group) if len(records) < len(group.seeds) else None
            if not records and failure is None:
                continue
            kept = _ask(target, group, records if failure is None else group.seeds)
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
            if len(target.records(kept)[0]) == len(kept.seeds):
                target.failure_path(kept.key).unlink(missing_ok=True)  # it failed before
            elif failure is not None:
                _copy_failure(target, kept, failure)
                failed.append(f"{group.label}: {failure['error']}")
    return {
        "folder": str(out),
        "copied": copied,
        "found": found,
        "other_outcome": other,
        "failed": failed,
        "damaged": wrong,
    }


def _ask(target: BenchFolder, group: CellGroup, seeds: Iterable[int]) -> CellGroup:
    """Write down what these cells are; where their data lay on that machine is left out."""
    dataset = Path(group.dataset).name if Path(group.dataset).is_absolute() else group.dataset
    return target.ask(dataclasses.replace(group, seeds=tuple(sorted(seeds)), dataset=dataset))


def _copy_failure(target: BenchFolder, group: CellGroup, failure: Mapping[str, Any]) -> None:
    """Write down why a group failed; in which files of that machine is left out."""
    told = {name: value for name, value in failure.items() if name != "trace"}
    write_sealed(target.failure_path(group.key), told)


def _copy_analyses(source: BenchFolder, target: BenchFolder, group: CellGroup) -> None:
    paths = data_analysis_path(target, group), critic_analysis_path(target, group)
    ours, theirs = analyses_of(target, group), analyses_of(source, group)
    for path, here, there in zip(paths, ours, theirs, strict=True):
        if here is None and there is not None:
            write_sealed(path, there)
