"""Filling both tables: every block of rows against every part of the dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from icql.retrieval.draft import Draft, Table
from icql.retrieval.index import Progress
from icql.retrieval.metric import SPACES, Ids, Points, Rows, distances, extent, joint
from icql.retrieval.nearest import Search, merge
from icql.retrieval.plan import LEAST, Plan
from icql.retrieval.search import sample_rows, silent
from icql.retrieval.strategies import choose, random_rows, wanted
from icql.settings.data import ContextSettings

AHEAD = 3  # blocks that are worked on at once where there is an accelerator
T = TypeVar("T")


@dataclass(frozen=True)
class Dataset:
    """Valid states and next states (N, D) and, for high_reward, rewards (N,)."""

    states: Points
    next_states: Points
    rewards: Points | None

    def queries(self, rows: slice) -> Points:
        """The states and then the next states of `rows`: most s' are the s of the next row."""
        return np.concatenate((self.states[rows], self.next_states[rows]))

    def sample(self, seed: int) -> Points:
        """Some of all queries, drawn by `seed`."""
        rows = len(self.states)
        drawn = sample_rows(2 * rows, seed)
        of_s, of_next = drawn[drawn < rows], drawn[drawn >= rows] - rows
        return np.concatenate((self.states[of_s], self.next_states[of_next]))


def fill(
    draft: Draft,
    data: Dataset,
    settings: ContextSettings,
    engine: str,
    plan: Plan,
    old: tuple[Table, Table] | None,
    progress: Progress,
) -> None:
    """Find the nearest states for all blocks that are not finished; `old` are known tables."""
    space = SPACES[settings.metric]
    keep = wanted(settings, not settings.include_self, plan.rows)
    span = joint(
        extent(data.states, space.embed_states), extent(data.next_states, space.embed_queries)
    )
    searched = {block.start: _searched(draft, plan, block) for block in plan.blocks}
    work = [
        (chunk, [block for block in plan.blocks if searched[block.start] < chunk.stop])
        for chunk in plan.chunks
    ]
    meter = _Meter(progress, sum(_count(block) for _, todo in work for block in todo))

    ahead = engine == "accelerator"

    def prepared(chunk: slice, queries: int) -> Search:
        search = Search(
            space.embed_states(data.states[chunk]),
            space,
            span,
            min(keep, _count(chunk)),
            settings,
            engine,
            queries,
            lambda: space.embed_queries(data.sample(settings.seed)),
            meter,
            room=plan.room,
        )
        if search.calibration is not None:
            draft.calibrate(chunk.start, search.calibration)
        return search

    def compare(chunk: slice, todo: list[slice]) -> None:
        # A function of its own: one part of the dataset leaves memory before the next comes.
        search = prepared(chunk, 2 * sum(map(_count, todo)))

        def find(block: slice) -> tuple[Points, tuple[Ids, Rows]]:
            queries = data.queries(block)
            return queries, search(space.embed_queries(queries), silent if ahead else meter)

        for block, result in zip(todo, _results(find, todo, meter, ahead), strict=True):
            queries, (ids, away) = result
            found = ids + chunk.start, away
            if (before := draft.kept(block.start)) is not None:
                found = merge(before[1:], found, keep)
            elif old is not None and block.stop <= plan.known:
                known = np.concatenate([table[block] for table in old]).astype(np.int64)
                known_away = distances(data.states, queries, known, settings.metric)
                found = merge((known, known_away), found, keep)
            if chunk.stop < plan.rows:
                draft.keep(block.start, (chunk.stop, *found))
            else:
                chosen = choose(*found, _own(block, settings), data.rewards, settings)
                _finish(draft, block, *chosen)
            meter("search", 1.0)
            meter.end()

    for chunk, todo in work:
        if todo:
            compare(chunk, todo)


def _results(
    find: Callable[[slice], T], todo: list[slice], meter: _Meter, ahead: bool
) -> Iterator[T]:
    """What `find` gives for each block; `ahead`: the next is begun before the last is used.

    So the host prepares and ranks one block while an accelerator is at work on another.
    """
    if not ahead:
        for block in todo:
            meter.begin(_count(block))
            yield find(block)
        return
    with ThreadPoolExecutor(AHEAD) as pool:
        begun = deque(pool.submit(find, block) for block in todo[:AHEAD])
        for i, block in enumerate(todo):
            found = begun.popleft().result()
            if i + AHEAD < len(todo):
                begun.append(pool.submit(find, todo[i + AHEAD]))
            meter.begin(_count(block))
            yield found


def fill_randomly(
    draft: Draft, data: Dataset, settings: ContextSettings, plan: Plan, progress: Progress
) -> None:
    """Draw the contexts of all blocks that are not finished.

    Every `LEAST` rows have a generator of their own: the draws do not depend on the plan.
    """
    todo = [block for block in plan.blocks if block.start not in draft.finished]
    meter = _Meter(progress, sum(map(_count, todo)))
    for block in todo:
        parts = []
        for start in range(block.start, block.stop, LEAST):
            rows = slice(start, min(start + LEAST, block.stop))
            generator = np.random.default_rng([settings.seed, start])
            parts.append(
                random_rows(
                    generator, data.states, data.queries(rows), _own(rows, settings), settings
                )
            )
        meter.begin(_count(block))
        halves = [(np.split(ids, 2), np.split(away, 2)) for ids, away in parts]
        ids = np.concatenate([half[0][side] for side in (0, 1) for half in halves])
        away = np.concatenate([half[1][side] for side in (0, 1) for half in halves])
        _finish(draft, block, ids, away)
        meter("random contexts", 1.0)
        meter.end()


def _searched(draft: Draft, plan: Plan, block: slice) -> int:
    """How many of the dataset's first rows a block has been compared with."""
    if block.start in draft.finished:
        return plan.rows
    if (kept := draft.kept(block.start)) is not None:
        return kept[0]
    return plan.known if block.stop <= plan.known else 0


def _count(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _own(rows: slice, settings: ContextSettings) -> Ids:
    """What to leave out of the contexts of s and s' of `rows`."""
    count = _count(rows)
    if settings.include_self:
        return np.empty((2 * count, 0), np.int64)
    return np.concatenate((np.arange(rows.start, rows.stop), np.full(count, -1)))[:, None]


def _finish(draft: Draft, block: slice, ids: Ids, away: Rows) -> None:
    state, next_state = np.split(ids.astype(np.int32), 2)
    from_s, from_next = np.split(away, 2)
    draft.finish(block, (state, next_state), (from_s, from_next))


class _Meter:
    """Turns the progress of one search after another into that of the whole; never backwards."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, max(1, total)
        self._done = self._size = 0
        self._shown = 0.0

    def begin(self, size: int) -> None:
        self._size = size

    def end(self) -> None:
        self._done, self._size = self._done + self._size, 0

    def __call__(self, label: str, share: float) -> None:
        now = (self._done + share * self._size) / self._total
        self._shown = max(self._shown, min(1.0, now))
        self._progress(label, self._shown)
