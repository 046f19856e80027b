"""A benchmark folder: what was asked, and a record of every cell that is finished.

bench.json            the format of the folder
groups/KEY.json       what was asked: an algorithm on a task with settings, which rows it is, seeds
records/KEY.json      one finished cell: a group with one seed
analyses/             what reports show beside scores (`icql.bench.analyses`)
failures/KEY.json     why a group failed the last time
runs/KEY/FIRST-LAST/  run folders (`icql.training.run_folder`), seeds side by side; beside them, in
                      FIRST-LAST.resumed.json, after which updates they were resumed
locks/KEY             who works on a group now

Files are whole or absent, and carry a digest of their own content: a damaged one is never believed.
A cell's key is a hash of all that decides its outcome, so that finished cells are found whatever
suite asks for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icql import seals
from icql.errors import UserError
from icql.files import read_json, write_json
from icql.locks import held
from icql.seals import digest, plain, write_sealed

FORMAT = 1
REPAIR = (
    f'Write {{"format": {FORMAT}}} into it if this icql made the folder; records have digests of '
    "their own."
)
LONG = 60.0  # seconds to wait for another process that writes down what is asked


class Damaged(Exception):
    """A file that is there and does not hold what was written."""


@dataclass(frozen=True)
class Asked:
    """A place in a suite's table that a group stands for."""

    suite: str
    row: str
    name: str  # of the row
    task: str  # of the column: a task, or task@data
    full_steps: int  # updates under the suite's own preset: fewer are short


@dataclass(frozen=True, kw_only=True)
class CellGroup:
    """Cells that differ in their seed alone, and are trained side by side."""

    algo: str
    task: str
    data_hash: str
    settings: Mapping[str, Any]
    run: Mapping[str, Any]
    preset: str
    dataset: str
    changes: Mapping[str, Any]  # of the preset's settings
    seeds: tuple[int, ...]
    asked: tuple[Asked, ...]

    @property
    def what(self) -> dict[str, Any]:
        """All that decides the outcome but the seed; where the data lies does not."""
        return {
            "format": FORMAT,
            "algo": self.algo,
            "task": self.task,
            "data_hash": self.data_hash,
            "settings": plain(self.settings),
            "run": plain(self.run),
        }

    @property
    def key(self) -> str:
        """Name of the group."""
        return digest(self.what)[:32]

    def cell(self, seed: int) -> dict[str, Any]:
        """All that decides the outcome of one cell."""
        return self.what | {"seed": seed}

    def cell_key(self, seed: int) -> str:
        """Name of one cell's record."""
        return digest(self.cell(seed))[:32]

    @property
    def label(self) -> str:
        """The group in words."""
        return f"{self.asked[0].name} on {self.asked[0].task}"

    def joined(self, other: CellGroup) -> CellGroup:
        """This group with the seeds and places of another of the same key as well."""
        # of the same place what this one says counts: a name or a length may have changed since
        places: dict[tuple[str, str, str], Asked] = {}
        for one in (*self.asked, *other.asked):
            places.setdefault((one.suite, one.row, one.task), one)
        seeds = tuple(sorted({*self.seeds, *other.seeds}))
        return dataclasses.replace(self, asked=tuple(places.values()), seeds=seeds)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> CellGroup:
        """Return the group that a file describes."""
        values = {field.name: content[field.name] for field in dataclasses.fields(cls)}
        values["asked"] = tuple(Asked(**place) for place in values["asked"])
        return cls(**values | {"seeds": tuple(values["seeds"])})


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return what was written; None if nothing is there.

    Raises:
        Damaged: what is there is not what was written.
    """
    if not path.exists():
        return None
    try:
        return seals.read_sealed(path)
    except (UserError, OSError) as error:
        raise Damaged(f"{path.name} cannot be believed ({error})") from None


class BenchFolder:
    """Paths and files of one benchmark folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "bench.json"

    @classmethod
    def open(cls, path: Path) -> BenchFolder:
        """Open a folder that is there."""
        folder = cls(path)
        if not folder.manifest_path.is_file():
            if (path / "groups").is_dir():
                raise UserError("is missing.", where=str(folder.manifest_path), fix=REPAIR)
            there = "is not a benchmark folder" if path.exists() else "there is no such folder"
            raise UserError(
                f"{there}.", where=str(path), fix="Make one with: icql bench run SUITE --out DIR"
            )
        try:
            manifest = read_json(folder.manifest_path)
        except UserError as error:
            raise UserError(error.what, where=error.where, fix=REPAIR) from None
        found = manifest.get("format") if isinstance(manifest, dict) else None
        if found != FORMAT:
            raise UserError(
                f"the folder has format {found}, this version of icql reads {FORMAT}.",
                where=str(path),
                fix="Read it with the version that wrote it, or give another --out.",
            )
        return folder

    @classmethod
    def make(cls, path: Path) -> BenchFolder:
        """Open a folder, or make it where nothing is."""
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise UserError("is not a folder.", where=str(path), fix="Give another --out.")
        # a kill may have left nothing but the temporary file of the manifest
        begun = path.is_dir() and any(not p.name.startswith(".bench.json") for p in path.iterdir())
        if not begun and not folder.manifest_path.exists():
            write_json(folder.manifest_path, {"format": FORMAT})
        elif not folder.manifest_path.exists() and not (path / "groups").is_dir():
            raise UserError(
                "is not empty and not a benchmark folder.",
                where=str(path),
                fix="Give another --out.",
            )
        return cls.open(path)

    def group_path(self, key: str) -> Path:
        """Where it is written what a group is."""
        return self.path / "groups" / f"{key}.json"

    def record_path(self, key: str) -> Path:
        """Where a cell's record is, once it is finished."""
        return self.path / "records" / f"{key}.json"

    def failure_path(self, key: str) -> Path:
        """Where it is written why a group failed."""
        return self.path / "failures" / f"{key}.json"

    def lock_path(self, key: str) -> Path:
        """What whoever works on a group holds."""
        return self.path / "locks" / key

    def runs_path(self, key: str) -> Path:
        """Where the run folders of a group are."""
        return self.path / "runs" / key

    def ask(self, group: CellGroup) -> CellGroup:
        """Write down that a group is wanted, beside what was wanted before; returns both."""
        path = self.group_path(group.key)
        with held(self.lock_path("asking"), LONG) as mine:
            if not mine:
                raise UserError("another process holds it for too long.", where=str(self.path))
            with contextlib.suppress(Damaged, KeyError, TypeError):  # then it is written anew
                if (before := read_sealed(path)) is not None:
                    known = CellGroup.read(before)
                    group = group.joined(known) if known.key == group.key else group
            write_sealed(path, dataclasses.asdict(group))
        return group

    def groups(self) -> tuple[list[CellGroup], list[str]]:
        """All groups that were asked for, and what is wrong with files that say so."""
        found, wrong = [], []
        for path in sorted((self.path / "groups").glob("*.json")):
            try:
                content = read_sealed(path)
                group = None if content is None else CellGroup.read(content)
            except (Damaged, KeyError, TypeError) as error:
                wrong.append(f"groups/{path.name}: {error}; run its suite again.")
                continue
            if group is not None and group.key == path.stem:
                found.append(group)
            else:
                wrong.append(f"groups/{path.name} is not named by its key; run its suite again.")
        named = {group.cell_key(seed) for group in found for seed in group.seeds}
        there = {path.stem for path in (self.path / "records").glob("*.json")}
        if lost := len(there - named):
            wrong.append(
                f"{lost} of {len(there)} records belong to no group that groups/ holds: they are "
                "not counted. Copy groups/ along, or run their suite again."
            )
        return found, wrong

    def record(self, group: CellGroup, seed: int) -> dict[str, Any] | None:
        """Return the record of a finished cell; None if there is none.

        Raises:
            Damaged: the record cannot be believed.
        """
        content = read_sealed(self.record_path(group.cell_key(seed)))
        if content is not None and content.get("cell") != group.cell(seed):
            raise Damaged(f"{group.cell_key(seed)}.json is the record of another cell")
        return content

    def write_record(self, group: CellGroup, seed: int, content: Mapping[str, Any]) -> None:
        """Write the record of a finished cell."""
        record = {"cell": group.cell(seed), **content}
        write_sealed(self.record_path(group.cell_key(seed)), record)

    def records(self, group: CellGroup) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """The records of a group by seed, and of which seeds they are damaged, and how."""
        found, wrong = dict[int, dict[str, Any]](), dict[int, str]()
        for seed in group.seeds:
            try:
                if (content := self.record(group, seed)) is not None:
                    found[seed] = content
            except Damaged as error:
                wrong[seed] = str(error)
        return found, wrong

    def failure(self, group: CellGroup) -> dict[str, Any] | None:
        """Why a group failed the last time; None if it did not."""
        try:
            content = read_sealed(self.failure_path(group.key))
            if content is not None and (
                content.get("group", group.key) != group.key or "error" not in content
            ):
                raise Damaged(f"{group.key}.json is not about this group")
            return content
        except Damaged as error:
            return {"error": f"its failure was recorded, but {error}.", "kind": "Damaged"}

    def begun(self, key: str) -> Iterator[tuple[range, Path]]:
        """The seeds of every run folder of a group, and where it is."""
        for path in sorted(self.runs_path(key).glob("*-*")):
            first, _, last = path.name.partition("-")
            if first.isdigit() and last.isdigit() and path.is_dir():
                yield range(int(first), int(last) + 1), path
