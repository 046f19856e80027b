"""The neighbour tables of a dataset: the contexts of every s and every s', computed once.

Every block of rows is compared with every part of the dataset.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from icql.data.arrays import blocks
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval import cache
from icql.retrieval.approximate import Calibration
from icql.retrieval.cache import Draft, Neighbours, SearchReport
from icql.retrieval.index import ROOM, Progress
from icql.retrieval.metric import (
    Ids,
    Points,
    Rows,
    Space,
    check_rows,
    distances,
    fit_space,
    fitted_space,
    nearest_first,
)
from icql.retrieval.retriever import Nearest, Retriever, resolve_engine, sample_rows, silent
from icql.settings.contexts import ContextSettings, SpaceName

BLOCK = 64_000  # rows whose contexts are found at once: a few seconds of work that may be lost
FIXED = 16_000_000  # bytes of one block of faiss's matrix products
WHOLE = 8  # times `ROOM`, to have room for the candidates of a block's queries
LEAST = 512  # rows; every block is a multiple of it
AHEAD = 3  # blocks that are worked on at once where there is an accelerator
FITTING = 0.2  # share of the work that learning features is said to be
T = TypeVar("T")


def build_neighbours(
    transitions: Transitions,
    settings: ContextSettings,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
    old: Neighbours | None = None,
    space: Space | None = None,
) -> Neighbours:
    """Retrieve the contexts Ω_s and Ω_s' of every transition from the dataset itself.

    The database is the dataset's states; the queries are its states and its next states.

    With a cache, tables are kept by the content of data and settings, a build that is broken off
    goes on where it stopped, and exact tables of a dataset that this one begins with are extended.

    Args:
        transitions: the dataset; its arrays may be mapped files far larger than `memory`.
        settings: metric, strategy, k, what is left out.
        cache_dir: where tables are kept; None: nowhere.
        progress: called block by block with a label and the share done of what is left to do.
        memory: bytes that the search may take (mapped files do not count); None: no limit. The
            tables themselves must then be files, in the cache. Exact tables do not depend on it.
        old: tables of the first rows of `transitions` with the same settings, to be extended: the
            old rows are compared with the new ones, the new rows with all. Exact tables equal
            those built anew. Contexts by reward or at random can change altogether by new rows
            and are built anew; so are those in a space which the new rows have changed.
        space: where distances are measured, such as that of earlier tables, which can then be
            extended; None: what `settings.space` makes of this data (`find_space`).

    Raises:
        UserError: if the data, the settings or the cache cannot be used, `memory` is too small, or
            `old` are other tables.
    """
    engine, told = resolve_engine(settings, len(transitions)), progress or silent
    fitting = FITTING if space is None and settings.space == "learned" else 0.0
    if space is None:
        space = find_space(
            transitions,
            settings,
            cache_dir=cache_dir,
            progress=lambda label, share: told(label, fitting * share),
        )
    [identity] = cache.identify(transitions, settings, engine, [len(transitions)], space)
    if old is not None and not _fits(old, transitions, settings, engine, space):
        old = None
    if cache_dir is not None and (found := cache.load(cache_dir, identity.key)) is not None:
        return replace(found, space=space)
    if memory is not None and cache_dir is None:
        raise UserError(
            "with a limit the tables must be files.", where="memory", fix="Give a cache folder."
        )
    built = partial(_built, transitions, settings, identity, engine, memory, old, space)
    if cache_dir is None:
        return built(None, partial(_after, told, fitting))
    with cache.building(cache_dir, identity.key, partial(_wait, told, fitting)):
        if (found := cache.load(cache_dir, identity.key)) is not None:  # by who was first
            return replace(found, space=space)
        return built(cache_dir, partial(_after, told, fitting))


def _wait(told: Progress, done: float, who: str) -> None:
    told(f"waiting for {who}, which builds the same tables", done)


def _built(
    transitions: Transitions,
    settings: ContextSettings,
    identity: cache.Identity,
    engine: str,
    memory: int | None,
    old: Neighbours | None,
    space: Space,
    cache_dir: Path | None,
    search: Progress,
) -> Neighbours:
    """Tables that are not in the cache; arguments as in `build_neighbours`."""
    source = f"{transitions.info.source or transitions.info.name}: "
    rewards, episode = transitions.rewards, transitions.episode
    retriever = Retriever(
        transitions.states, rewards, settings, episode=episode, space=space, source=source
    )
    check_rows(transitions.next_states, f"{source}next_states")
    if old is not None and len(old.state) == len(transitions):
        return old
    if settings.strategy != "similar":
        old = None
    elif old is None and cache_dir is not None and engine != "approximate":
        old = cache.earlier(cache_dir, transitions, settings, engine, space)
    schedule = plan_work(retriever, 0 if old is None else len(old.state), memory)
    start = time.monotonic()
    try:
        draft = Draft(identity, (len(transitions), settings.k), cache_dir, repr(schedule))
        _fill(draft, retriever, transitions, schedule, old, search)
        report = _report(draft, schedule, engine, time.monotonic() - start)
        return replace(draft.publish(replace(report, space=settings.space)), space=space)
    except UserError:
        # Another process may have finished the same tables and taken the draft with it.
        if cache_dir is not None and (found := cache.load(cache_dir, identity.key)) is not None:
            return replace(found, space=space)
        raise


def usual_space(data: Transitions) -> SpaceName:
    """What distances are measured on where nothing is asked for: D4RL's columns as they are.

    Columns of a log of one's own have units, so each is divided by its own spread.
    """
    return "standardised" if data.info.own else "raw"


def find_space(
    transitions: Transitions,
    settings: ContextSettings,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Space:
    """Where these settings measure distances in this data: `settings.space`, then the metric.

    Learned features are kept in the cache, by the content of the data and the seed.
    """
    if settings.space == "raw":
        return fit_space(settings.metric, "raw", transitions.states)
    source = f"{transitions.info.source or transitions.info.name}: "
    states = check_rows(transitions.states, f"{source}states")
    if settings.space != "learned":
        return fit_space(settings.metric, settings.space, states)
    from icql.retrieval.learned import VERSION, learn  # JAX: only where it is needed

    kept = None
    if cache_dir is not None:
        what = f"{VERSION} {settings.seed} {transitions.content_hash()}"
        kept = cache_dir / "spaces" / f"{hashlib.sha256(what.encode()).hexdigest()}.npz"
        if kept.exists():
            with contextlib.suppress(UserError):  # damaged: learned again
                return fitted_space(settings.metric, cache.read_fitted(kept))
    given = states, transitions.actions, transitions.next_states
    fitted = learn(*given, settings.seed, progress or silent)
    if kept is not None:
        cache.write_fitted(kept, fitted)
    return fitted_space(settings.metric, fitted)


def distances_of(
    transitions: Transitions, neighbours: Neighbours, settings: ContextSettings
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The distances (N, k) of the context states from each s, and from each s'.

    In the space of the tables; infinite where a table has a hole (-1).
    """
    space = neighbours.space or find_space(transitions, settings)

    def away(queries: Points, table: cache.RowIds) -> NDArray[np.float32]:
        out = np.empty(table.shape, np.float32)
        for block in blocks(*table.shape):
            ids = table[block].astype(np.int64)
            out[block] = distances(transitions.states, queries[block], ids, space)
        return out

    of_next = away(transitions.next_states, neighbours.next_state)
    return away(transitions.states, neighbours.state), of_next


@dataclass(frozen=True)
class Schedule:
    """Contexts are found for `block` rows at once, in `chunk` rows of the dataset at once.

    The first `known` rows have tables already, which say all about these rows.
    """

    rows: int
    known: int
    chunk: int
    block: int
    room: int = ROOM  # float64 numbers that a search may work on at once

    @property
    def chunks(self) -> list[slice]:
        """The parts of the dataset that are searched one after the other."""
        return _cut(0, self.known, self.chunk) + _cut(self.known, self.rows, self.chunk)

    @property
    def blocks(self) -> list[slice]:
        """The rows whose contexts are found together."""
        return _cut(0, self.known, self.block) + _cut(self.known, self.rows, self.block)


def plan_work(retriever: Retriever, known: int, memory: int | None) -> Schedule:
    """Cut the work so that it takes at most about `memory` bytes; None: as much as is useful.

    On an accelerator that is all queries of a block: it sorts them by place first.

    Beyond what faiss takes at any size, half is for the part of the dataset that is searched (its
    float32 rows twice, and ids), a quarter for the rows whose contexts are found, a quarter for
    ranking.
    """
    (rows, columns), engine = retriever.states.shape, retriever.engine
    if memory is None:
        room = WHOLE * ROOM if engine == "accelerator" else ROOM
        return Schedule(rows, known, rows, BLOCK, room)
    wanted = min(retriever.first_asked, rows)
    one = retriever.space.embed_states(retriever.states[:1])
    copied = one.base is None  # a row that is not searched as it is
    searched = 8 * one.shape[1] + 80 + copied * one.nbytes
    found = 8 * columns + (2 + 2 * copied) * one.nbytes + 80 + 128 * wanted
    part = (memory - FIXED) // 4
    chunk, block = 2 * part // searched, part // found // LEAST * LEAST
    if chunk < LEAST or block < LEAST:
        least = FIXED + LEAST * max(2 * searched, 4 * found)
        raise UserError(
            f"{memory:,} bytes are too few to find {wanted} neighbours in {columns} columns.",
            where="memory",
            fix=f"Give at least {least:,} bytes.",
        )
    return Schedule(rows, known, chunk, min(block, BLOCK), min(ROOM, part // 16))


def _cut(start: int, stop: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]


def _count(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _after(progress: Progress, share: float, label: str, done: float) -> None:
    """Progress of what follows after a share of the work."""
    progress(label, share + (1 - share) * done)


def _fits(
    old: Neighbours,
    transitions: Transitions,
    settings: ContextSettings,
    engine: str,
    space: Space,
) -> bool:
    """Whether the tables are those of the first rows in this space; refused if they cannot be.

    Tables in a fitted space that has changed cannot be told from those of other data.
    """
    rows = len(old.state)
    if rows <= len(transitions):
        [expected] = cache.identify(transitions, settings, engine, [rows], space)
        if expected.key == old.key:
            return True
        if space.fitted:
            return False
    raise UserError(
        f"are not the tables of the first {rows:,} rows of this data with these settings.",
        where="old",
        fix="Build the tables anew.",
    )


def _report(draft: Draft, schedule: Schedule, engine: str, seconds: float) -> SearchReport:
    """How the contexts of a filled draft were found."""
    rows, measured = schedule.rows, list(draft.calibrations.values())
    mean = np.sum([draft.finished[block.start] for block in schedule.blocks], axis=0) / rows
    worst = min(measured, key=lambda found: found.recall, default=Calibration(0, 1.0, 0))
    return SearchReport(
        engine=engine,
        states=rows,
        queries=2 * rows,
        recall=worst.recall,
        sample=worst.sample,
        probes=max((found.probes for found in measured), default=0),
        seconds=seconds,
        mean_distance=tuple(mean[0].tolist()),
        next_mean_distance=tuple(mean[1].tolist()),
    )


def _fill(
    draft: Draft,
    retriever: Retriever,
    data: Transitions,
    schedule: Schedule,
    old: Neighbours | None,
    progress: Progress,
) -> None:
    """Find the contexts of all blocks that are not finished; `old` are known tables."""
    ahead = retriever.engine == "accelerator"
    searched = {block.start: _searched(draft, schedule, block) for block in schedule.blocks}
    everything = [slice(0, schedule.rows)]  # a random context is not searched for
    work = [
        (chunk, [block for block in schedule.blocks if searched[block.start] < chunk.stop])
        for chunk in (everything if retriever.engine == "random" else schedule.chunks)
    ]
    meter = _Meter(progress, sum(_count(block) for _, todo in work for block in todo))
    span = retriever.space.extent(data.next_states, data.states)

    def merged(one: tuple[Ids, Rows], other: tuple[Ids, Rows]) -> tuple[Ids, Rows]:
        ids, away = (np.concatenate(both, axis=1) for both in zip(one, other, strict=True))
        return nearest_first(ids, away, retriever.keep)

    def compare(chunk: slice, todo: list[slice]) -> None:
        # A function of its own: one part of the dataset leaves memory before the next comes.
        search = None
        if retriever.engine != "random":
            part, count = range(chunk.start, chunk.stop), 2 * sum(map(_count, todo))
            approximate = retriever.engine == "approximate"
            sample = _sample(data, retriever.settings.seed) if approximate else None
            search = Nearest(retriever, part, span, count, sample, schedule.room).begin()

        def find(block: slice) -> tuple[Points, tuple[Ids, Rows]]:
            # The states and then the next states: most s' are the s of the next row.
            queries = np.concatenate((data.states[block], data.next_states[block]))
            own = np.arange(block.start, block.stop)
            of_next = own if retriever.settings.exclude == "episode" else np.full_like(own, -1)
            left_out = retriever.left_out(queries, np.concatenate((own, of_next)))
            told = silent if ahead else partial(meter.tell, _count(block))
            return queries, retriever.nearest(queries, left_out, told, search)

        results = _ahead(find, todo) if ahead else map(find, todo)
        for block, (queries, found) in zip(todo, results, strict=True):
            if (before := draft.kept(block.start)) is not None:
                found = merged(before[1:], found)
            elif old is not None and block.stop <= schedule.known:
                known = np.concatenate((old.state[block], old.next_state[block])).astype(np.int64)
                away = distances(data.states, queries, known, retriever.space)
                found = merged((known, away), found)
            if search is not None and search.calibrations:
                worst = min(search.calibrations.values(), key=lambda one: one.recall)
                draft.calibrate(chunk.start, worst)
            if chunk.stop < schedule.rows:
                draft.keep(block.start, (chunk.stop, *found))
            else:
                draft.finish(block, *retriever.choose(*found))
            meter.finish(_count(block))

    for chunk, todo in work:
        if todo:
            compare(chunk, todo)


def _sample(data: Transitions, seed: int) -> Points:
    """Some of all queries, drawn by `seed`."""
    drawn = sample_rows(2 * len(data), seed)
    of_s, of_next = drawn[drawn < len(data)], drawn[drawn >= len(data)] - len(data)
    return np.concatenate((data.states[of_s], data.next_states[of_next]))


def _ahead(find: Callable[[slice], T], todo: list[slice]) -> Iterator[T]:
    """What `find` gives for each block; the next are begun before the last is used.

    So the host prepares and ranks one block while an accelerator is at work on another.
    """
    with ThreadPoolExecutor(AHEAD) as pool:
        begun: deque[Future[T]] = deque()
        for block in todo:
            begun.append(pool.submit(find, block))
            if len(begun) > AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def _searched(draft: Draft, schedule: Schedule, block: slice) -> int:
    """How many of the dataset's first rows a block has been compared with."""
    if block.start in draft.finished:
        return schedule.rows
    if (kept := draft.kept(block.start)) is not None:
        return kept[0]
    return schedule.known if block.stop <= schedule.known else 0


class _Meter:
    """Turns the progress of one search after another into that of the whole; never backwards."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, max(1, total)
        self._done, self._shown = 0, 0.0

    def tell(self, rows: int, label: str, share: float) -> None:
        now = (self._done + share * rows) / self._total
        self._shown = max(self._shown, min(1.0, now))
        self._progress(label, self._shown)

    def finish(self, rows: int) -> None:
        self.tell(rows, "search", 1.0)
        self._done += rows
