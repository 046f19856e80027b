"""Minari datasets, by id (in the local Minari folder) or by the path of a dataset's folder."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from icql.data import checks
from icql.data.npz import check_chain
from icql.data.room import IN_MEMORY, Room
from icql.data.tasks import Task
from icql.data.transitions import Bools, Floats, Steps
from icql.errors import UserError


def read_minari(dataset_id_or_path: str | Path, room: Room = IN_MEMORY) -> Steps:
    """Read a Minari dataset with Box observations and actions.

    Minari keeps T+1 observations of an episode of T steps, so every step, the last included, has
    its true successor. An episode without an end mark was cut there. The steps are read into
    memory, whatever `room` is, if its budget allows that.

    Raises:
        UserError: if Minari is not installed, or the dataset is missing, damaged, of another kind
            of space, or too large for the budget.
    """
    source = str(dataset_id_or_path)
    dataset = _open(source)
    for kind, space in (
        ("observations", dataset.observation_space),
        ("actions", dataset.action_space),
    ):
        if len(getattr(space, "shape", None) or ()) != 1:
            raise UserError(
                f"its {kind} are {space}, but one row of numbers (a flat Box) is needed.",
                where=source,
                fix="Flatten them when the dataset is recorded.",
            )
    width = dataset.observation_space.shape[0] + dataset.action_space.shape[0] + 1
    checks.check_size(int(dataset.total_steps) * width * 8, source, room.budget)
    try:
        episodes = list(dataset.iterate_episodes())
        return _steps(episodes, source)
    except (OSError, KeyError, ValueError, AssertionError) as error:
        raise _damaged(source, error) from error


def write_minari(
    dataset_id: str, steps: Steps, task: Task | None = None, *, force: bool = False
) -> None:
    """Write steps as a dataset of the local Minari folder, all or nothing.

    Minari keeps the successor of an episode's last step. Where it was not recorded, the last
    observation is repeated, which is what its transition is given here as well.
    `steps.drop_last` has no place: see `icql.data.convert.without_last_rule`.

    Raises:
        UserError: if Minari is not installed, the id is malformed or, without `force`, taken, rows
            are marked invalid, or successors inside an episode are not its next rows.
    """
    source = f"minari:{dataset_id}"
    minari, folder = _minari(source), _folder(dataset_id, source)
    if folder.exists() and not force:
        raise UserError("it exists already.", where=source, fix="Add --force to replace it.")
    steps = steps.checked(source)
    if steps.valid is not None and not steps.valid.all():
        raise UserError(
            f"{int((~steps.valid).sum()):,} rows are marked invalid, and Minari has no such mark.",
            where=source,
            fix="Convert to .npz, .hdf5 or .parquet instead.",
        )
    if steps.next_observations is not None:
        check_chain(steps, source)
    buffer = import_module("minari.data_collector").EpisodeBuffer
    episodes = [
        buffer(
            id=number,
            observations=np.concatenate([steps.observations[rows], final]),
            actions=steps.actions[rows],
            rewards=steps.rewards[rows],
            terminations=steps.terminals[rows],
            truncations=_cut(steps.terminals[rows]),
        )
        for number, (rows, final) in enumerate(_episodes(steps))
    ]
    try:
        with _replaced(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari asks for an author, a code link, scores
            minari.create_dataset_from_buffers(
                dataset_id,
                episodes,
                env=None,
                observation_space=_box(steps.observations),
                action_space=_box(steps.actions),
                description=None if task is None else f"Task: {task.name}",
            )
    except (OSError, ValueError) as error:
        raise UserError(f"it cannot be written ({error}).", where=source) from error


def fetch_minari(dataset_id: str) -> None:
    """Fetch a remote Minari dataset into the local Minari folder.

    Raises:
        UserError: if Minari is not installed, or the server does not have or send the dataset.
    """
    source = f"minari:{dataset_id}"
    minari = _minari(source)
    try:
        with redirect_stdout(sys.stderr):  # Minari talks; standard output is for results
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


@contextmanager
def _replaced(folder: Path) -> Iterator[None]:
    """Set an older dataset aside; if the body fails it comes back and nothing else stays."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    if folder.exists():
        folder.rename(aside)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if aside.exists():
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _episodes(steps: Steps) -> Iterator[tuple[slice, Floats]]:
    """Rows (T) of each episode, and the observation (1, obs) that follows its last one."""
    following = steps.observations if steps.next_observations is None else steps.next_observations
    ends = (steps.terminals | steps.timeouts).copy()
    ends[-1] = True
    start = 0
    for end in np.flatnonzero(ends).tolist():
        yield slice(start, end + 1), following[end : end + 1]
        start = end + 1


def _cut(terminals: Bools) -> Bools:
    """Truncation marks of one episode: its last step, unless that ended the task."""
    marks = np.zeros_like(terminals)
    marks[-1] = not terminals[-1]
    return marks


def _box(rows: Floats) -> Any:
    return import_module("gymnasium.spaces").Box(-np.inf, np.inf, rows.shape[1:], np.float32)


def _minari(source: str) -> Any:
    try:
        return import_module("minari")
    except ImportError as error:
        raise UserError(
            "Minari is needed for it and is not installed.",
            where=source,
            fix="pip install 'icql[minari]'",
        ) from error


def _open(source: str) -> Any:
    minari = _minari(source)
    folder = Path(source).expanduser() / "data"
    try:
        return minari.MinariDataset(folder) if folder.is_dir() else minari.load_dataset(source)
    except FileNotFoundError as error:
        raise UserError(
            "there is no such Minari dataset on this machine.",
            where=source,
            fix=f"Fetch it with `minari download {source}`, or check the id with `minari list`.",
        ) from error
    except (OSError, KeyError, ValueError, AssertionError) as error:
        raise _damaged(source, error) from error


def _steps(episodes: list[Any], source: str) -> Steps:
    if not episodes:
        raise UserError("there are no episodes in it.", where=source)
    for episode in episodes:
        if len(episode.observations) != len(episode) + 1:
            raise UserError(
                f"episode {episode.id} has {len(episode.observations)} observations for "
                f"{len(episode)} steps; one more than steps is needed.",
                where=source,
            )
    terminals = np.concatenate([episode.terminations for episode in episodes])
    timeouts = np.concatenate([episode.truncations for episode in episodes])
    last_rows = np.cumsum([len(episode) for episode in episodes]) - 1
    timeouts[last_rows] |= ~terminals[last_rows]
    return Steps(
        np.concatenate([episode.observations[:-1] for episode in episodes]),
        np.concatenate([episode.actions for episode in episodes]),
        np.concatenate([episode.rewards for episode in episodes]),
        terminals,
        timeouts,
        np.concatenate([episode.observations[1:] for episode in episodes]),
    ).checked(source)


def _damaged(source: str, error: BaseException) -> UserError:
    return UserError(
        f"it cannot be read as a Minari dataset ({error}).",
        where=source,
        fix="It may be incomplete or of another Minari version: fetch it again.",
    )
