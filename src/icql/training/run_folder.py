"""A run folder: everything about one run, in files anyone can open.

run.json               what was asked: algorithm, settings, seeds, versions; the data's hash, names,
                       units and bounds
space.npz              what distances of contexts are measured by, unless on raw columns
metrics.jsonl          one JSON object per row, with a check: training metrics and evaluations
tensorboard/           the same for TensorBoard
checkpoints/           Orbax checkpoints of the full training state, each with a seal of its arrays
policy.safetensors     final policies of all seeds, with their state normaliser
critic.safetensors     final critics of all seeds
graph.safetensors      what the retrieval graph says of every row: q, v, returns, weights
result.json            final scores, apart from the best seen; per-episode returns
lock                   who trains in it now; nobody, where no process holds it
judge.json             what `icql judge` last said of the policies, if it was asked
plots/                 pictures
inspect.html           a page to look at, if `icql inspect RUN --page` wrote it
README.md              what this is and what can be done with it
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from icql.data.signals import Signals
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.files import append, atomic, from_home, read_json, write_json
from icql.locks import held, holder
from icql.progress import Display
from icql.seals import DIGEST, agrees, digest, read_sealed, sealed, write_sealed
from icql.settings.grid import Member
from icql.training.callbacks import Begun, Callback, TensorBoard
from icql.training.machine import changes

FORMAT = 2
LOCK = "lock"
SUM = b', "crc": "'  # before the checksum at the end of a line of metrics
PLAN = ("algo", "task", "preset", "settings", "run", "seeds", "grid")  # what decides the outcome


class RunFolder:
    """Paths and small files of one run; the results are there only once it is finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "run.json"
        self.space_path = path / "space.npz"
        self.metrics_path = path / "metrics.jsonl"
        self.policy_path = path / "policy.safetensors"
        self.critic_path = path / "critic.safetensors"
        self.graph_path = path / "graph.safetensors"
        self.result_path = path / "result.json"
        self.judge_path = path / "judge.json"
        self.page_path = path / "inspect.html"
        self.readme_path = path / "README.md"
        self.plots = path / "plots"
        self.checkpoints = path / "checkpoints"

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a path where something is already: nothing is ever overwritten."""
        if path.exists() and (not path.is_dir() or any(x.name != LOCK for x in path.iterdir())):
            raise UserError(
                "already exists and is not empty.",
                where=str(path),
                fix="Give another --out, or --resume to go on with the run in it.",
            )

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunFolder:
        """Start a new run in a folder that does not exist yet, or is empty."""
        cls.check_free(path)
        folder = cls(path)
        whole = {"format": FORMAT, **manifest, "seal": _seal(manifest)}
        write_sealed(folder.manifest_path, whole)
        return folder

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Be the only process that trains in this folder; one that died owns nothing any more."""
        with held(self.path / LOCK) as mine:
            if not mine:
                raise UserError(
                    f"{holder(self.path / LOCK) or 'another process'} is training in it.",
                    where=str(self.path),
                    fix="Wait until it is done, or give another --out.",
                )
            yield

    def record(
        self, *, dataset: str, columns: str | None, steps: int, place: Mapping[str, str]
    ) -> dict[str, list[str]]:
        """Write down what a resumed run may change: its data's place, its length, its machine.

        `place` are versions and the machine. Returns what changed of them since it was last run.
        """
        manifest = self.manifest
        before = manifest["versions"] | manifest.get("machine", {})
        for move in self.moves:
            before |= {name: new for name, (_, new) in move.items()}
        if changed := changes(before, place):
            manifest["moves"] = [*self.moves, changed]
        # the rest stays as it was written: a newer version would add settings that are new
        run = manifest["run"] | {"steps": steps}
        manifest |= {"dataset": dataset, "columns": columns, "run": run}
        if "seal" in manifest:
            manifest["seal"] = _seal(manifest)
        write_json(self.manifest_path, sealed(manifest) if DIGEST in manifest else manifest)
        return changed

    @property
    def moves(self) -> list[dict[str, list[str]]]:
        """What changed of versions and machine whenever it was resumed elsewhere: [old, new]."""
        return list(self.manifest.get("moves", ()))

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open an existing run."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise UserError(
                "there is no such run folder.",
                where=str(path),
                fix="Train one with: icql train --out DIR",
            )
        if not folder.manifest_path.is_file():
            raise UserError(
                "is not a run folder: it has no run.json.",
                where=str(path),
                fix="Name the folder that 'icql train' printed.",
            )
        if folder.manifest.get("format") != FORMAT:
            raise UserError(
                f"was written in format {folder.manifest.get('format')}, this version reads "
                f"{FORMAT}.",
                where=str(folder.manifest_path),
            )
        folder.check_seal()
        return folder

    def check_seal(self) -> None:
        """Refuse a plan that is not the one that was written; runs made before have no seal."""
        manifest = self.manifest
        if "seal" in manifest and manifest["seal"] != _seal(manifest):
            raise UserError(
                f"was edited after the run was begun: one of {', '.join(PLAN)} is another.",
                where=str(self.manifest_path),
                fix="Put back what was there; other settings need a run of their own.",
            )
        if self.is_sealed and not agrees(manifest):
            raise UserError(
                "was changed or is damaged: it does not match its digest.",
                where=str(self.manifest_path),
                fix="Put back what was there. Where the data lies now is said with --dataset.",
            )

    @property
    def is_sealed(self) -> bool:
        """Whether every file carries a digest; those of runs made before do not."""
        return DIGEST in self.manifest

    @property
    def identity(self) -> str | None:
        """What tells the files of this run from those of others; None: a run made before."""
        if not self.is_sealed:
            return None
        return digest([self.plan_digest, self.manifest["data_hash"]])

    @property
    def sum_start(self) -> int:
        """Where the checksums of metrics begin, so that no other run's lines have them."""
        whose = self.identity if self.manifest_path.is_file() else None
        return zlib.crc32((whose or "").encode())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Keep what came out of the run."""
        write_sealed(self.result_path, {**result, "of": self._name(self.result_path)})

    def result(self) -> dict[str, Any]:
        """What came out of the run.

        Raises:
            UserError: the run is not finished, or this is not what was written.
        """
        if not self.result_path.is_file():
            raise UserError(
                "the run is not finished.", where=str(self.path), fix="Go on with --resume."
            )
        return self._own(self.result_path, "Go on with --resume: it is then written anew.")

    def write_judged(self, report: Mapping[str, Any]) -> None:
        """Keep what `icql judge` said."""
        write_sealed(self.judge_path, {**report, "of": self._name(self.judge_path)})

    def judged(self) -> dict[str, Any] | None:
        """What `icql judge` said last; None if it was not asked."""
        if not self.judge_path.is_file():
            return None
        return self._own(self.judge_path, "Ask again: icql judge RUN")

    def _own(self, path: Path, fix: str) -> dict[str, Any]:
        """A document of this very run, as it was written."""
        content = read_sealed(path, needed=self.is_sealed, fix=fix)
        if content.pop("of", None) != self._name(path):
            raise UserError("is that of another run.", where=str(path), fix=fix)
        return content

    def _name(self, path: Path) -> str | None:
        """What tells a file of this run from its others and from those of other runs."""
        return None if self.identity is None else f"{self.identity} {path.name}"

    @property
    def plan_digest(self) -> str | None:
        """Digest of what every update follows from; a run may get longer, so without its length."""
        manifest = self.manifest
        if "seal" not in manifest:
            return None
        run = {name: value for name, value in manifest["run"].items() if name != "steps"}
        return _seal(manifest | {"run": run})

    @property
    def manifest(self) -> dict[str, Any]:
        """What was asked."""
        content = read_json(self.manifest_path)
        if not isinstance(content, dict):
            raise UserError("is not a JSON object.", where=str(self.manifest_path))
        return content

    @property
    def signals(self) -> Signals:
        """Names, units and bounds of the data's numbers; runs made before they were kept: none."""
        return Signals.from_json(self.manifest.get("signals"), str(self.manifest_path))

    @contextmanager
    def missing(self, dataset: str | Path) -> Iterator[None]:
        """Say how to name the run's data where reading fails because it is not in its place."""
        try:
            yield
        except UserError as error:
            path = from_home(dataset)
            is_file = bool(path.suffix) or path.is_absolute()  # else a name of D4RL's or Minari's
            if not is_file or any(path.parent.glob(path.name)):
                raise
            raise UserError(
                f"its data is not at {dataset}.",
                where=str(self.path),
                fix="Say where it is now with --dataset FILE, in Python dataset=…; it is known by "
                f"its hash ({self.manifest['data_hash'][:12]}).",
            ) from error

    def check_data(self, data: Transitions) -> None:
        """Refuse data that the run was not made on; where it lies does not matter."""
        before, now = self.manifest["data_hash"], data.content_hash()
        if before != now:
            raise UserError(
                f"the run was made on other data (hash {before[:12]}, this is {now[:12]}).",
                where=data.info.source or data.info.name,
                fix="Name the right file with --dataset, in Python dataset=….",
            )
        told, found = self.signals, data.info.signals
        if told and found and told != found:  # a copy that says nothing is not wrong
            raise UserError(
                "it has the run's numbers, but under other names, units, bounds or categories.",
                where=data.info.source or data.info.name,
                fix="Put back the mapping that the run was made with (run.json has it, under "
                "`signals`), or name the right file with --dataset.",
            )

    def check_space(self, found: str) -> None:
        """Refuse a space of contexts that is not the one which the run was begun with."""
        expected = self.manifest.get("space")
        if expected is not None and expected != found:
            raise UserError(
                "is not what the run was trained with: it was changed, or is that of another run.",
                where=str(self.space_path),
                fix="Put back the run's own file, or take it away: it is then found again.",
            )

    def rows(self, warn: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
        """Every row of metrics but for damaged ones, of which `warn` is told (None: people are).

        A last line cut off by a kill is passed over.
        """
        if not self.metrics_path.is_file():
            return
        *lines, rest = self.metrics_path.read_bytes().split(b"\n")
        summed = any(SUM in line for line in lines)  # those of runs made before are not
        start, damaged = self.sum_start if summed else None, []
        for number, line in enumerate(lines, start=1):
            try:
                yield _row(line, start)
            except (ValueError, AttributeError, RecursionError):
                damaged.append(str(number))
        with suppress(ValueError, AttributeError, RecursionError):
            yield _row(rest, start)
        if damaged:
            which = f"line{'s' * (len(damaged) > 1)} {', '.join(damaged)}"
            said = f"{self.metrics_path}: {which} damaged and passed over; updates do not need it."
            (warn or Display().say)(f"warning: {said}")


def _seal(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of what decides the outcome, as JSON has it."""
    plan = {name: manifest.get(name) for name in PLAN}
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def _line(row: Mapping[str, Any], start: int) -> str:
    """A row as it is written: with a checksum of the rest of its line."""
    text = json.dumps(row)
    return f'{text[:-1]}, "crc": "{zlib.crc32(text.encode(), start):08x}"}}\n'


def _row(line: bytes, start: int | None) -> dict[str, Any]:
    """What a line says; a ValueError or AttributeError where it is not what was written.

    `start` is where checksums begin; None: lines have none.
    """
    if start is not None:
        text, mark, crc = line.rpartition(SUM)
        line = text + b"}"
        if not mark or crc != b'%08x"}' % zlib.crc32(line, start):
            raise ValueError("it does not match its checksum")
    row: dict[str, Any] = json.loads(line)
    if not {"step", "kind"} <= row.keys():
        raise ValueError("no step or no kind")
    return row


class MetricLog:
    """Writes rows to `metrics.jsonl` and tells callbacks, member by member, from `step` on.

    Rows after `step` are forgotten: a resumed run writes them again.
    """

    def __init__(
        self,
        folder: RunFolder,
        members: Sequence[Member],
        step: int,
        *,
        callbacks: Sequence[Callback] = (),
        warn: Callable[[str], None] | None = None,
    ) -> None:
        kept = [row for row in folder.rows(warn) if row["step"] <= step]
        with atomic(folder.metrics_path) as temporary:
            temporary.write_text("".join(_line(row, folder.sum_start) for row in kept))
        self._path, self._start = folder.metrics_path, folder.sum_start
        self._tags = [member.label.replace(", ", "/").replace(" ", "") for member in members]
        self._told: list[Callback] = []
        self._result: Mapping[str, Any] | None = None
        for callback in (TensorBoard(warn or Display().say), *callbacks):
            callback.on_start(Begun(folder.path, folder.manifest, step))
            self._told.append(callback)

    def write(self, step: int, kind: str, values: Mapping[str, Any], **more: float) -> None:
        """Append one row, whole or not at all; callbacks get what is one number per member."""
        single = {
            f"{kind}/{name}/{tag}": float(number)
            for name, numbers in values.items()
            if np.ndim(numbers) == 1
            for tag, number in zip(self._tags, numbers, strict=True)
        }
        plain = {name: np.asarray(x, np.float64).tolist() for name, x in values.items()}
        append(self._path, _line({"step": step, "kind": kind, **more, **plain}, self._start))
        for callback in self._told if single else ():
            callback.on_metrics(step, single)

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run has come to its end: callbacks are told its result when the log is closed."""
        self._result = result

    def close(self) -> None:
        """Tell every callback that it is over."""
        with ExitStack() as each:  # all of them, whatever one of them raises
            for callback in self._told:
                each.callback(callback.on_end, self._result)
