"""Minari datasets, by id (in the local Minari folder) or by the path of a dataset's folder."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from icql.data.arrays import IN_MEMORY, Floats, Room, check_packed
from icql.data.choices import as_choices
from icql.data.formats.bounds import mapped
from icql.data.formats.d4rl import stored_bytes
from icql.data.formats.npz import check_chain
from icql.data.signals import Signals
from icql.data.tasks import Task, find_env_task, get_task
from icql.data.transitions import DataInfo, Source, Steps
from icql.errors import UserError
from icql.files import atomic_folder, file_hash, from_home
from icql.locks import queued
from icql.seals import read_sealed, write_sealed

PREFIX = "minari:"
ROOT = "MINARI_DATASETS_PATH"  # environment variable: where Minari keeps its datasets
OWN = "icql"  # key of a dataset's metadata: JSON, the task's name and what the numbers are
SEAL = "icql.json"  # in the folder of a dataset of ours
_ID = re.compile(r"[\w.-]+(/[\w.-]+)+-v\d+")


def is_minari(name: str) -> bool:
    """Whether a name is an id with a namespace, or the folder of a Minari dataset."""
    path = from_home(name)
    return (path / "data").is_dir() or (not path.exists() and _ID.fullmatch(name) is not None)


def read_minari(name: str | Path, task: Task | None = None, room: Room = IN_MEMORY) -> Source:
    """Read a Minari dataset with Box observations, and Box or Discrete actions, by id or folder.

    Minari keeps T+1 observations of an episode of T steps, so every step, the last included, has
    its true successor. An episode without an end mark was cut there. The steps are read into
    memory, whatever `room` is, if its budget allows that. A dataset that names its environment has
    the task of that environment, where there is one, and actions are mapped to [-1, 1] from the
    bounds of its action space.
    """
    source = str(name).removeprefix(PREFIX)
    minari, folder = _minari(source), from_home(source) / "data"
    _check_seal(folder if folder.is_dir() else _folder(source, source) / "data")
    try:
        dataset = minari.MinariDataset(folder) if folder.is_dir() else minari.load_dataset(source)
        for file in sorted(Path(dataset.storage.data_path).glob("*.hdf5")):
            check_packed(stored_bytes(file), file.stat().st_size, str(file))
        choices = _count(dataset.action_space)
        for kind in ("observation", "action"):
            space = getattr(dataset, f"{kind}_space")
            flat = len(getattr(space, "shape", None) or ()) == 1
            if not flat and (kind == "observation" or choices is None):
                raise UserError(
                    f"its {kind}s are {space}, but one row of numbers (a flat Box) is needed.",
                    where=source,
                    fix="Flatten them when the dataset is recorded.",
                )
        acts = dataset.action_space.shape[0] if choices is None else choices
        width = dataset.observation_space.shape[0] + acts + 1
        Room(memory=room.budget).check(int(dataset.total_steps) * width * 8, 0, source)
        steps, named = _steps(list(dataset.iterate_episodes()), dataset.action_space, source)
        own, env_id = _own(dataset.storage.metadata)
    except FileNotFoundError as error:
        raise UserError(
            "there is no such Minari dataset on this machine.",
            where=source,
            fix=f"Fetch it with `minari download {source}`, or check the id with `minari list`.",
        ) from error
    except (OSError, KeyError, ValueError, AssertionError) as error:
        raise UserError(
            f"it cannot be read as a Minari dataset ({error}).",
            where=source,
            fix="It may be incomplete or of another Minari version: fetch it again.",
        ) from error
    if task is None and own.get("task") is not None:
        task = get_task(str(own["task"]))
    if task is None and env_id is not None:
        task = find_env_task(env_id, source)
    signals = Signals.from_json(own.get("signals"), source) or named
    if not signals.fits(steps.observations.shape[1], steps.actions.shape[1]):
        raise UserError(f"`{OWN}` of its metadata names other columns.", where=source)
    info = DataInfo(source, source=f"{PREFIX}{source}", signals=signals)
    found = Source(steps, info, task)
    if choices is not None:
        return found
    return _bounded(found, dataset.action_space.low, dataset.action_space.high)


def write_minari(name: str | Path, log: Source, *, force: bool = False) -> None:
    """Write a log as a dataset of the local Minari folder, all or nothing.

    Minari keeps the successor of an episode's last step. Where it was not recorded, the last
    observation is repeated, which is what its transition is given here as well. It holds neither
    invalid rows nor successors inside an episode that are not its next rows. The task, and what the
    numbers are, lie in its metadata.
    """
    dataset_id = str(name).removeprefix(PREFIX)
    source = f"{PREFIX}{dataset_id}"
    minari, folder = _minari(source), _folder(dataset_id, source)
    if folder.exists() and not force:
        raise UserError("it exists already.", where=source, fix="Add --force to replace it.")
    steps = log.steps.checked(source).without_last_rule()
    if steps.valid is not None and not steps.valid.all():
        raise UserError(
            f"{int((~steps.valid).sum()):,} rows are marked invalid, and Minari has no such mark.",
            where=source,
            fix="Convert to .npz, .hdf5 or .parquet instead.",
        )
    if steps.next_observations is not None:
        check_chain(steps, source)
    unit = not (np.abs(steps.actions) > 1).any()
    buffer = import_module("minari.data_collector").EpisodeBuffer
    ends = np.append(steps.ends[:-1], True)  # Minari asks for an end of every episode
    following = steps.observations if steps.next_observations is None else steps.next_observations
    edges = [0, *(np.flatnonzero(ends) + 1).tolist()]
    episodes = [
        buffer(
            id=number,
            observations=np.concatenate([steps.observations[a:b], following[b - 1 : b]]),
            actions=steps.actions[a:b],
            rewards=steps.rewards[a:b],
            terminations=steps.terminals[a:b],
            truncations=ends[a:b] & ~steps.terminals[a:b],
        )
        for number, (a, b) in enumerate(pairwise(edges))
    ]
    try:
        with _replaced(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari asks for an author, a code link, scores
            minari.create_dataset_from_buffers(
                dataset_id,
                episodes,
                env=None,
                observation_space=_box(steps.observations, np.inf),
                action_space=_box(steps.actions, 1.0 if unit else np.inf),
                description=None if log.task is None else f"Task: {log.task.name}",
            ).storage.update_metadata(_notes(log))
    except (OSError, ValueError) as error:
        raise UserError(f"it cannot be written ({error}).", where=source) from error


def fetch_minari(dataset_id: str, tell: Callable[[str], None] | None = None) -> None:
    """Fetch a remote Minari dataset into the local Minari folder; `tell` hears who else does."""
    source = f"{PREFIX}{dataset_id}"
    minari, folder = _minari(source), _folder(dataset_id, source)
    said = cache(tell or (lambda _: None))  # once of each
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        with (
            queued(lock, lambda who: said(f"waiting for {who}, which fetches {source}")),
            redirect_stdout(sys.stderr),  # Minari talks; standard output is for results
        ):
            minari.download_dataset(dataset_id)
    except (OSError, KeyError, ValueError, ImportError) as error:
        raise UserError(
            f"it cannot be fetched ({error}).",
            where=source,
            fix="Check the id with `minari list remote`, and the connection.",
        ) from error


def _folder(dataset_id: str, source: str) -> Path:
    """The folder of a dataset; an id that is none could lead anywhere, so it is refused."""
    local = import_module("minari.storage.local")
    try:
        local.parse_dataset_id(dataset_id)
    except ValueError as error:
        raise UserError(f"this is no Minari id ({error}).", where=source) from error
    return Path(local.get_dataset_path(dataset_id))


def _seal(data: Path) -> None:
    """Put a hash of every file beside them: Minari's have no checksums."""
    hashes = {path.name: file_hash(path) for path in data.iterdir() if path.is_file()}
    write_sealed(data / SEAL, {"sha256": hashes})


def _check_seal(data: Path) -> None:
    """Refuse a dataset of ours whose files are not those that were written."""
    if not (data / SEAL).is_file():
        return  # somebody else's
    hashes = read_sealed(data / SEAL).get("sha256", {})
    for name, expected in hashes.items():
        if not (data / name).is_file() or file_hash(data / name) != expected:
            raise UserError(
                "was changed or is damaged: it does not match its hash.",
                where=str(data / name),
                fix=f"Write the dataset again; if you changed it yourself, remove {SEAL}.",
            )


@contextmanager
def _replaced(folder: Path) -> Iterator[None]:
    """Have Minari write elsewhere; the whole of it takes the place of an older dataset."""
    root = Path(import_module("minari.storage.datasets_root_dir").get_dataset_path(""))
    before = os.environ.get(ROOT)
    with atomic_folder(folder) as made:
        elsewhere = made.parent.parent / "minari"
        os.environ[ROOT] = str(elsewhere)
        try:
            yield
        finally:
            if before is None:
                del os.environ[ROOT]
            else:
                os.environ[ROOT] = before
        _seal(elsewhere / folder.relative_to(root) / "data")
        made.rmdir()
        (elsewhere / folder.relative_to(root)).rename(made)


def _box(rows: Floats, most: float) -> Any:
    return import_module("gymnasium.spaces").Box(-most, most, rows.shape[1:], np.float32)


def _notes(log: Source) -> dict[str, str]:
    """What Minari has no place for: our notes, and the environment where Gymnasium knows it."""
    own = {"task": log.task and log.task.name, "signals": log.info.signals.as_json()}
    notes = {OWN: json.dumps(own, sort_keys=True, ensure_ascii=False)}
    gymnasium = import_module("gymnasium")
    if log.task is not None and log.task.domain != "kitchen":  # which shows other observations
        # one that is not registered here is found by the task's name
        with suppress(gymnasium.error.Error, ModuleNotFoundError, ValueError):
            notes["env_spec"] = gymnasium.spec(log.task.env_id).to_json()
    return notes


def _own(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Our notes in a dataset's metadata, and the id of its environment, where it has them."""
    own, spec = (json.loads(metadata.get(key) or "{}") for key in (OWN, "env_spec"))
    if not isinstance(own, dict) or not isinstance(spec, dict):
        raise ValueError("its metadata holds no JSON objects")
    return own, spec.get("id")


def _count(space: Any) -> int | None:
    """How many choices a discrete space has; None: it is none."""
    discrete = import_module("gymnasium.spaces").Discrete
    return int(space.n) if isinstance(space, discrete) else None


def _bounded(source: Source, low: Floats, high: Floats) -> Source:
    """A log with actions in [-1, 1], mapped from the bounds of its action space if these differ.

    Bounds that are not finite say nothing, nor do those of a task that takes actions as they are.
    """
    finite = bool(np.isfinite(low).all() and np.isfinite(high).all() and (high > low).all())
    unit = bool((low == -1).all() and (high == 1).all())
    taken = source.task is not None and not source.task.unit_actions
    said = source.info.signals
    known = unit or not finite or taken or said.bounded or bool(said.choices)
    return source if known else mapped(source, low, high)


def _minari(source: str) -> Any:
    try:
        return import_module("minari")
    except ImportError as error:
        raise UserError(
            "Minari is needed for it and is not installed.",
            where=source,
            fix="pip install 'icql[minari]'",
        ) from error


def _steps(episodes: list[Any], space: Any, source: str) -> tuple[Steps, Signals]:
    if not episodes:
        raise UserError("there are no episodes in it.", where=source)
    for episode in episodes:
        if len(episode.observations) != len(episode) + 1:
            raise UserError(
                f"episode {episode.id} has {len(episode.observations)} observations for "
                f"{len(episode)} steps; one more than steps is needed.",
                where=source,
            )
    actions, rewards, terminals, timeouts = (
        np.concatenate([getattr(episode, name) for episode in episodes])
        for name in ("actions", "rewards", "terminations", "truncations")
    )
    signals = Signals()
    if (choices := _count(space)) is not None:
        actions, signals = as_choices(actions - int(space.start), IN_MEMORY, source, choices)
    last_rows = np.cumsum([len(episode) for episode in episodes]) - 1
    timeouts[last_rows] |= ~terminals[last_rows]
    here, following = (
        np.concatenate([episode.observations[part] for episode in episodes])
        for part in (slice(-1), slice(1, None))
    )
    steps = Steps(here, actions, rewards, terminals, timeouts, following).checked(source)
    return steps, signals
