"""`Retriever`: a dataset, indexed once, that gives the context of any state.

Tables for training, trained critics, coverage and `retrieve` all ask one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.errors import UserError
from icql.retrieval.approximate import Approximate, Calibration
from icql.retrieval.exact import from_faiss, search_exact
from icql.retrieval.index import ROOM, Cells, Index, Progress
from icql.retrieval.metric import (
    Ids,
    Points,
    Rows,
    Space,
    check_rows,
    distances,
    distinct,
    fit_space,
    nearest_first,
    numbers,
    row_finder,
)
from icql.retrieval.strategies import (
    EpisodeRows,
    LeftOut,
    check_ids,
    highest_reward,
    nearest_left,
    random_rows,
)
from icql.settings.contexts import (
    ContextSettings,
    Exclude,
)

if TYPE_CHECKING:
    from icql.retrieval.scan import Scan

EXACT_UP_TO = 200_000  # rows; beyond, exact search without structure takes minutes on a CPU
ACCELERATOR_FROM = 20_000  # rows; below, compiling takes longer than searching on the CPU
CELLS_FROM = 4096  # distinct states below which clustering costs more than it saves
SAMPLE = 1000  # queries whose exact neighbours the recall is measured against
WIDER = 8.0  # times the range of states and first queries: room for queries to come
FEW = 32  # long episodes that are searched around one by one
LONG = 1024  # neighbours from which on that is worth an index of its own
SCANNED = 2**35  # distances at most where all rows are measured: half a minute of two cores
SCANNED_FOR = 2**15  # neighbours at most, each of which takes a group of rows to be ranked


def silent(label: str, done: float) -> None:
    """Progress nobody watches."""


class Retriever:
    """The states that contexts come from: checked at once, indexed once, when first asked.

    Args:
        states: (N, D), maybe mapped: nothing is copied before it is indexed.
        rewards: (N,), needed by the strategy high_reward.
        settings: metric, strategy, k, engine, and what is left out.
        episode: (N,), needed where whole episodes are left out.
        expected: (M, D), the queries to come, about: approximate search measures its recall on
            some. None: the states.
        space: where distances are measured (`find_space`). None: what `settings.space` makes of the
            states; learned features need more than these.
        source: what messages put before the names of the arrays.
    """

    def __init__(
        self,
        states: ArrayLike,
        rewards: ArrayLike | None,
        settings: ContextSettings,
        *,
        episode: NDArray[np.integer] | None = None,
        expected: ArrayLike | None = None,
        space: Space | None = None,
        source: str = "",
    ) -> None:
        self.states, self.settings = check_rows(states, f"{source}states"), settings
        self._episode, self._expected = episode, states if expected is None else expected
        rows, by_reward = len(self.states), settings.strategy == "high_reward"
        self._check_available()
        self.rewards = _check_rewards(rewards, rows) if by_reward else None
        self.keep = min(settings.candidates if by_reward else settings.k, rows)
        self.engine = resolve_engine(settings, rows)
        self.space = space or fit_space(settings.metric, settings.space, self.states)
        self._search: Nearest | None = None

    def __call__(
        self,
        queries: ArrayLike,
        *,
        rows: ArrayLike | None = None,
        exclude: ArrayLike | None = None,
        progress: Progress | None = None,
    ) -> tuple[NDArray[np.int32], Rows]:
        """The context of each query state (Q, D): row ids (Q, k) and distances, nearest first.

        Args:
            queries: the states.
            rows: (Q,), which row of the data each query is, -1 for none: `settings.exclude` is
                about these. None: the first row with the same bits, if there is one.
            exclude: more rows to leave out, (Q,) or (Q, m); -1 stands for none.
            progress: called block by block with a label and the share done.
        """
        asked = check_rows(queries, "queries")
        if asked.shape[1] != self.states.shape[1]:
            raise UserError(
                f"have {asked.shape[1]} columns, the states have {self.states.shape[1]}.",
                where="queries",
            )
        left_out = self.left_out(asked, rows, exclude)
        available = len(self.states) - int(left_out.counts.max(initial=0))
        if self.settings.k > available:
            raise _too_few(self.settings.k, available, where="k")
        ids, away = self.choose(*self.nearest(asked, left_out, progress or silent))
        return ids.astype(np.int32), away

    def left_out(
        self,
        queries: Points,
        rows: ArrayLike | None,
        exclude: ArrayLike | None = None,
        rule: Exclude | None = None,
    ) -> LeftOut:
        """What is left out of the contexts of these queries, by `settings.exclude` or `rule`."""
        states, count, rule = len(self.states), len(queries), rule or self.settings.exclude
        single, own = np.empty((count, 0), np.int64), np.full(count, -1)
        if exclude is not None:
            single = check_ids(exclude, "exclude", states, count)
        if rows is not None:
            own = check_ids(rows, "rows", states, count, most=1)[:, 0]
        elif rule != "none":
            own = self._find(queries)
        if rule == "self":
            single = np.column_stack((single, own))
        return LeftOut.of(single, own, self.episodes if rule == "episode" else None)

    def nearest(
        self,
        queries: Points,
        left_out: LeftOut,
        progress: Progress = silent,
        search: Nearest | None = None,
    ) -> tuple[Ids, Rows]:
        """The `keep` nearest rows (Q, keep) not left out; -1, infinitely far: there are no more.

        Takes valid queries. `search` is a part of the states; None: all.
        """
        if not len(queries):
            return np.empty((0, self.keep), np.int64), np.empty((0, self.keep))
        if self.engine == "random":
            ids = random_rows(queries, len(self.states), self.keep, self.settings.seed, left_out)
            return nearest_first(ids, distances(self.states, queries, ids, self.space))
        if search is None and self._scans(left_out):
            scan = self._whole(queries).scan(self.episodes)
            return scan(self.space.embed_queries(queries), left_out, self.keep)
        search = search or self._whole(queries).begin()
        return self._widening(search, self.space.embed_queries(queries), left_out, progress)

    def choose(self, ids: Ids, away: Rows) -> tuple[Ids, Rows]:
        """The context (Q, k) out of the nearest rows (Q, keep)."""
        if self.rewards is None:
            return ids, away
        return highest_reward(ids, away, self.rewards, self.settings.k)

    def _scans(self, left_out: LeftOut) -> bool:
        """Whether all rows are measured: whole episodes are left out of few contexts."""
        if left_out.episodes is None or self.engine == "accelerator":
            return False
        return len(left_out.own) * len(self.states) <= SCANNED and (
            len(left_out.own) * self.keep <= SCANNED_FOR
        )

    @property
    def first_asked(self) -> int:
        """At most how many of the nearest rows are looked at first: enough for most contexts."""
        return self.keep + {"none": 0, "self": 1, "episode": self.keep}[self.settings.exclude]

    def _widening(
        self, search: Nearest, queries: Points, left_out: LeftOut, progress: Progress
    ) -> tuple[Ids, Rows]:
        """Look at more and more neighbours until enough are not left out, or there are no more."""
        ids = np.full((len(queries), self.keep), -1, np.int64)
        away = np.full(ids.shape, np.inf)

        def ask(asked: Nearest, some: Ids, wanted: int) -> None:
            these = queries if len(some) == len(queries) else queries[some]  # no copy of all
            found, far = asked(these, min(wanted, len(asked)), progress)
            out = left_out.mask(some, found)
            ids[some], away[some] = nearest_left(found, far, out, self.keep)

        counts = left_out.counts
        need = np.minimum(self.keep, len(self.states) - counts)
        wanted = first = self.keep + min(int(counts.max()), self.keep)
        pending = np.arange(len(queries))
        while len(pending):
            own = left_out.own[pending]
            episodes = np.unique(own)
            if wanted > LONG and search.roomy and episodes[0] >= 0 and len(episodes) <= FEW:
                for episode in episodes:
                    others = self.episodes.without(episode, search.rows)
                    if len(others):
                        ask(
                            Nearest(self, others, search.span).begin(),
                            pending[own == episode],
                            wanted,
                        )
                break
            size = max(1, len(queries) * first // wanted)  # in the memory of the first search
            for i in range(0, len(pending), size):
                ask(search, pending[i : i + size], wanted)
            pending = pending[(ids[pending] >= 0).sum(axis=1) < need[pending]]
            if wanted >= len(search):
                break
            wanted *= 2
        return ids, away

    def _whole(self, queries: Points) -> Nearest:
        """All states, indexed again only for queries far beyond the states and those before."""
        if self._search is not None:
            low, high = self.space.extent(queries, self.states[:0])
            if (self._search.span[0] <= low).all() and (high <= self._search.span[1]).all():
                return self._search
        low, high = self.space.extent(queries, self.states)
        wide = low - WIDER * (high - low), high + WIDER * (high - low)
        like = check_rows(self._expected, "expected")
        sample = like[sample_rows(len(like), self.settings.seed)]
        self._search = Nearest(self, range(len(self.states)), wide, len(like), sample)
        return self._search

    @cached_property
    def episodes(self) -> EpisodeRows:
        """The episodes of the data."""
        if self._episode is None:
            raise UserError("context.exclude 'episode' needs them.", where="episode")
        return EpisodeRows(self._episode)

    @cached_property
    def _find(self) -> Callable[[Points], Ids]:
        return row_finder(self.states)

    def _check_available(self) -> None:
        """Refuse a k larger than the rows that some context may be chosen from."""
        k, rule, rows = self.settings.k, self.settings.exclude, len(self.states)
        if k > rows:
            raise _too_few(k, rows, where="context.k")
        longest = int(self.episodes.lengths.max()) if rule == "episode" else 1
        available = rows if rule == "none" else rows - longest
        if k > available:
            less = "Choose none" if rule == "self" else "Choose self or none"
            raise UserError(
                f"{rule!r} leaves some states only {available} of {rows} rows, fewer than "
                f"context.k = {k}.",
                where="context.exclude",
                fix=f"{less}, a context.k of at most {available}, or give more episodes."
                if available
                else f"{less}, or give more than a single episode.",
            )


class Nearest:
    """A part of a retriever's states, indexed: called with queries it finds the nearest.

    Args:
        retriever: whose states, metric, engine and settings they are.
        rows: which of the states.
        span: the least and the largest value of embedded states and queries in every column.
        queries: how many there will be in all, about.
        sample: (S, D) some of them, for measuring the recall of approximate search; None: exact.
        room: float64 numbers that may be worked on at once.
    """

    def __init__(
        self,
        retriever: Retriever,
        rows: range | Ids,
        span: tuple[Rows, Rows],
        queries: int = 0,
        sample: Points | None = None,
        room: int = ROOM,
    ) -> None:
        self.rows, self.span, self.roomy = rows, span, room >= ROOM
        self._scan: Scan | None = None
        self._space, engine, settings = retriever.space, retriever.engine, retriever.settings
        part = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        states = self._space.embed_states(retriever.states[part])
        self._index = Index(states, span, self._space, room)
        self.calibrations: dict[int, Calibration] = {}
        self._search: Callable[[Points, int, Progress], tuple[Ids, Rows]] | None = None
        self._asked = engine, settings, queries, sample

    def begin(self) -> Nearest:
        """Make ready what finds the nearest ones: of no use to a scan."""
        if self._search is None:
            self._search = self._engine(*self._asked)
        return self

    def _engine(
        self, engine: str, settings: ContextSettings, queries: int, sample: Points | None
    ) -> Callable[[Points, int, Progress], tuple[Ids, Rows]]:
        index = self._index
        if engine == "approximate" and sample is not None:
            asked = self._space.embed_queries(sample)
            approximate = Approximate(index, settings.seed, settings.recall_floor, asked)
            self.calibrations = approximate.calibrations
            return approximate.search
        if engine == "accelerator":
            from icql.retrieval.accelerator import Accelerator  # JAX, as below

            device = Accelerator(index.near)
            return partial(search_exact, index, device.propose, most=device.most)
        many = engine == "exact" and min(len(index), 4 * queries) >= CELLS_FROM
        cells = Cells(index, settings.seed) if many else None
        width = 0 if cells is None else cells.count
        return partial(search_exact, index, from_faiss(index, cells), width=width)

    def scan(self, episodes: EpisodeRows) -> Scan:
        """Measures all rows, which are all of the data."""
        if self._scan is None:
            from icql.retrieval.scan import Scan  # JAX, as above

            self._scan = Scan(self._index, episodes)
        return self._scan

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, queries: Points, k: int, progress: Progress) -> tuple[Ids, Rows]:
        """Ids (Q, k) and distances (Q, k) of embedded queries, nearest first, ties by row id.

        Equal rows are searched once: the s' of one row is mostly the s of the next.
        """
        first, back = distinct(queries)
        assert self._search is not None, "begin() comes first"
        groups, squared = self._search(queries[first], min(k, len(self._index)), progress)
        places, away = self._index.members(groups, self._space.distance(squared), k)
        rows = self.rows
        ids = places + rows.start if isinstance(rows, range) else rows[places]
        return ids[back], away[back]


def resolve_engine(settings: ContextSettings, rows: int) -> str:
    """What finds contexts among this many rows on this machine; "random" is an engine too."""
    if settings.strategy == "random":
        return "random"
    if settings.engine != "auto":
        return settings.engine
    if rows >= ACCELERATOR_FROM:
        import jax  # takes a second: only where it matters

        if jax.default_backend() != "cpu":
            return "accelerator"
    return "exact" if rows <= EXACT_UP_TO else "approximate"


def sample_rows(rows: int, seed: int) -> Ids:
    """The rows that the recall is measured on: at most `SAMPLE`, drawn by `seed`."""
    if rows <= SAMPLE:
        return np.arange(rows)
    return np.random.default_rng(seed).choice(rows, SAMPLE, replace=False)


def _check_rewards(rewards: ArrayLike | None, states: int) -> Points:
    """Rewards (N,) as finite float32 or float64, or a UserError that names the row."""
    if rewards is None:
        raise UserError("strategy 'high_reward' needs the rewards.", where="rewards")
    values = numbers(rewards, "rewards")
    if values.shape != (states,):
        raise UserError(f"must have shape ({states},), not {values.shape}.", where="rewards")
    check_rows(values[:, None], "rewards")
    return values


def _too_few(k: int, available: int, *, where: str) -> UserError:
    return UserError(
        f"{k} is more than the {available} rows available.",
        where=where,
        fix=f"Choose at most {available} or give more data.",
    )
