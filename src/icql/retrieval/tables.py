"""The neighbour tables of a dataset: the contexts of every s and every s', computed once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval import cache
from icql.retrieval.build import Dataset, fill, fill_randomly
from icql.retrieval.draft import Draft, StoredDraft
from icql.retrieval.index import Progress
from icql.retrieval.nearest import resolve_engine
from icql.retrieval.plan import plan
from icql.retrieval.report import SearchReport
from icql.retrieval.search import check_available, check_rewards, check_rows, silent
from icql.retrieval.strategies import wanted
from icql.settings.data import ContextSettings


@dataclass(frozen=True)
class Neighbours:
    """Rows of the context Ω_s of each transition's s, and of the context Ω_s' of its s'.

    From the cache they are read-only mapped files. `key` is a hash of the data and the settings.
    """

    state: NDArray[np.int32]  # (N, k), nearest first
    next_state: NDArray[np.int32]  # (N, k), nearest first
    report: SearchReport
    key: str = ""


def build_neighbours(
    transitions: Transitions,
    settings: ContextSettings,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
) -> Neighbours:
    """Retrieve the contexts Ω_s and Ω_s' of every transition from the dataset itself.

    The database is the dataset's states; the queries are its states and its next states. Without
    `include_self` a transition is left out of the context of its own s.

    With a cache, tables are kept by the content of data and settings, a build that is broken off
    goes on where it stopped, and exact tables of a dataset that this one begins with are extended.

    Args:
        transitions: the dataset; its arrays may be mapped files far larger than `memory`.
        settings: metric, strategy, k.
        cache_dir: where tables are kept; None: nowhere.
        progress: called block by block with a label and the share done of what is left to do.
        memory: bytes that the search may take (mapped files do not count); None: no limit. The
            tables themselves must then be files, in the cache. Exact tables do not depend on it.

    Raises:
        UserError: if the data, the settings or the cache cannot be used, or `memory` is too small.
    """
    return _build(transitions, settings, None, cache_dir, progress or silent, memory)


def append_neighbours(
    old: Neighbours,
    transitions: Transitions,
    settings: ContextSettings,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
) -> Neighbours:
    """Extend the tables of a dataset to one with more episodes at its end.

    Only what changes is computed: the old rows are compared with the new ones, the new rows with
    all. Exact tables equal those of `build_neighbours`. Contexts by reward or at random can change
    altogether by new rows and are built anew.

    Args:
        old: tables of the first rows of `transitions`, built with the same settings.
        transitions: the longer dataset.
        settings: as those of `old`.
        cache_dir, progress, memory: as of `build_neighbours`.

    Raises:
        UserError: if `old` are not the tables of these first rows with these settings.
    """
    return _build(transitions, settings, old, cache_dir, progress or silent, memory)


def _build(
    transitions: Transitions,
    settings: ContextSettings,
    old: Neighbours | None,
    cache_dir: Path | None,
    progress: Progress,
    memory: int | None,
) -> Neighbours:
    engine = resolve_engine(settings.engine, len(transitions))
    [identity] = cache.identify(transitions, settings, engine, [len(transitions)])
    if old is not None:
        _check_old(old, transitions, settings, engine)
    if cache_dir is not None and (found := _cached(cache_dir, identity)) is not None:
        return found
    if memory is not None and cache_dir is None:
        raise UserError(
            "with a limit the tables must be files.", where="memory", fix="Give a cache folder."
        )
    data = _checked(transitions, settings)
    if old is not None and len(old.state) == len(transitions):
        return old
    if settings.strategy != "similar":
        old = None
    elif old is None and cache_dir is not None and engine != "approximate":
        old = _earlier(cache_dir, transitions, settings, engine)
    try:
        return _compute(data, settings, engine, old, identity, cache_dir, progress, memory)
    except UserError:
        # Another process may have finished the same tables and taken the draft with it.
        if cache_dir is not None and (found := _cached(cache_dir, identity)) is not None:
            return found
        raise


def _compute(
    data: Dataset,
    settings: ContextSettings,
    engine: str,
    old: Neighbours | None,
    identity: cache.Identity,
    cache_dir: Path | None,
    progress: Progress,
    memory: int | None,
) -> Neighbours:
    start = time.monotonic()
    rows, columns = data.states.shape
    known = 0 if old is None else len(old.state)
    pieces = plan(
        rows,
        known,
        columns,
        wanted(settings, not settings.include_self, rows),
        memory,
        cosine=settings.metric == "cosine",
        whole_blocks=engine == "accelerator",
    )
    draft = (
        Draft(pieces, settings.k)
        if cache_dir is None
        else StoredDraft(cache_dir, identity.key, pieces, settings.k)
    )
    if settings.strategy == "random":
        engine = "random"
        fill_randomly(draft, data, settings, pieces, progress)
    else:
        tables = None if old is None else (old.state, old.next_state)
        fill(draft, data, settings, engine, pieces, tables, progress)
    mean = np.sum([draft.finished[block.start] for block in pieces.blocks], axis=0) / rows
    worst = min(draft.calibrations.values(), key=lambda found: found.recall, default=None)
    report = SearchReport(
        engine=engine,
        states=rows,
        queries=2 * rows,
        recall=1.0 if worst is None else worst.recall,
        sample=0 if worst is None else worst.sample,
        probes=max((found.probes for found in draft.calibrations.values()), default=0),
        seconds=time.monotonic() - start,
        mean_distance=tuple(mean[0].tolist()),
        next_mean_distance=tuple(mean[1].tolist()),
    )
    return Neighbours(*draft.publish(identity, report), report, identity.key)


def _cached(cache_dir: Path, identity: cache.Identity) -> Neighbours | None:
    found = cache.load(cache_dir, identity.key)
    if found is None:
        return None
    state, next_state, report = found
    return Neighbours(state, next_state, replace(report, cached=True), identity.key)


def _earlier(
    cache_dir: Path, transitions: Transitions, settings: ContextSettings, engine: str
) -> Neighbours | None:
    found = cache.earlier(cache_dir, transitions, settings, engine)
    return None if found is None else Neighbours(*found[1], found[0].key)


def _check_old(
    old: Neighbours, transitions: Transitions, settings: ContextSettings, engine: str
) -> None:
    rows = len(old.state)
    if rows <= len(transitions):
        [expected] = cache.identify(transitions, settings, engine, [rows])
        if expected.key == old.key:
            return
    raise UserError(
        f"are not the tables of the first {rows:,} rows of this data with these settings.",
        where="old",
        fix="Build the tables anew.",
    )


def _checked(transitions: Transitions, settings: ContextSettings) -> Dataset:
    rows, source = len(transitions), transitions.info.source or transitions.info.name
    states = check_rows(transitions.states, f"{source}: states")
    next_states = check_rows(transitions.next_states, f"{source}: next_states")
    own = np.zeros((1, 0 if settings.include_self else 1), np.int64)
    check_available(settings.k, rows, own, where="context.k")
    by_reward = settings.strategy == "high_reward"
    rewards = check_rewards(transitions.rewards, rows) if by_reward else None
    return Dataset(states, next_states, rewards)
