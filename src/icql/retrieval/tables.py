"""The neighbour tables of a dataset: the contexts of every s and every s', computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.retrieval import cache
from icql.retrieval.index import Progress
from icql.retrieval.report import SearchReport
from icql.retrieval.search import check_available, check_rewards, check_rows, silent
from icql.retrieval.settings import ContextSettings
from icql.retrieval.strategies import contexts


@dataclass(frozen=True)
class Neighbours:
    """Rows of the context Ω_s of each transition's s, and of the context Ω_s' of its s'."""

    state: NDArray[np.int32]  # (N, k), nearest first
    next_state: NDArray[np.int32]  # (N, k), nearest first
    report: SearchReport


def build_neighbours(
    transitions: Transitions,
    settings: ContextSettings,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Neighbours:
    """Retrieve the contexts Ω_s and Ω_s' of every transition from the dataset itself.

    The database is the dataset's states; the queries are its states and its next states. Without
    `include_self` a transition is left out of the context of its own s.

    Args:
        transitions: the dataset.
        settings: metric, strategy, k.
        cache_dir: where tables are kept by the content of data and settings; None: nowhere.
        progress: called block by block with a label and the share done.
    """
    key = cache.key(transitions, settings)
    if cache_dir is not None and (found := cache.load(cache_dir, key)) is not None:
        state, next_state, report = found
        return Neighbours(state, next_state, replace(report, cached=True))

    rows, source = len(transitions), transitions.info.source or transitions.info.name
    states = check_rows(transitions.states, f"{source}: states")
    next_states = check_rows(transitions.next_states, f"{source}: next_states")
    exclude = np.empty((2 * rows, 0), np.int64)
    if not settings.include_self:
        exclude = np.concatenate((np.arange(rows), np.full(rows, -1)))[:, None]
    check_available(settings.k, rows, exclude, where="context.k")
    by_reward = settings.strategy == "high_reward"
    rewards = check_rewards(transitions.rewards, rows) if by_reward else None
    # One search for both: most next states are the state of the following row.
    queries = np.concatenate((states, next_states))
    ids, distances, report = contexts(
        states, queries, rewards, exclude, settings, progress or silent
    )
    tables = ids.astype(np.int32)
    report = replace(
        report,
        mean_distance=tuple(distances[:rows].mean(axis=0).tolist()),
        next_mean_distance=tuple(distances[rows:].mean(axis=0).tolist()),
    )
    if cache_dir is not None:
        cache.store(cache_dir, key, tables[:rows], tables[rows:], report)
    return Neighbours(tables[:rows], tables[rows:], report)
