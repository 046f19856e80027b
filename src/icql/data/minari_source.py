"""Minari datasets, by id (in the local Minari folder) or by the path of a dataset's folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from icql.data import checks
from icql.data.transitions import Steps
from icql.errors import UserError


def read_minari(dataset_id_or_path: str | Path) -> Steps:
    """Read a Minari dataset with Box observations and actions.

    Minari keeps T+1 observations of an episode of T steps, so every step, the last included, has
    its true successor. An episode without an end mark was cut there.

    Raises:
        UserError: if Minari is not installed, or the dataset is missing, damaged, of another kind
            of space, or too large for this machine's memory.
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
    checks.check_size(int(dataset.total_steps) * width * 8, source)
    try:
        episodes = list(dataset.iterate_episodes())
        return _steps(episodes, source)
    except (OSError, KeyError, ValueError, AssertionError) as error:
        raise _damaged(source, error) from error


def _open(source: str) -> Any:
    try:
        minari = import_module("minari")
    except ImportError as error:
        raise UserError(
            "Minari is needed to read it and is not installed.",
            where=source,
            fix="pip install 'icql[minari]'",
        ) from error
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
