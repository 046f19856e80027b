"""`retrieve`: the context rows of any query states, and the checks of its input."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.errors import UserError
from icql.retrieval.index import Progress
from icql.retrieval.metric import SPACES, Ids, Points, Rows, extent, joint, pieces
from icql.retrieval.nearest import SAMPLE, Search, resolve_engine
from icql.retrieval.strategies import choose, random_rows, wanted
from icql.settings.data import ContextSettings, Engine, Metric, Strategy

LARGEST = np.float64(1e150)  # beyond, a squared distance may not be a finite float64


def retrieve(
    states: ArrayLike,
    queries: ArrayLike,
    k: int,
    *,
    metric: Metric = "l2",
    strategy: Strategy = "similar",
    rewards: ArrayLike | None = None,
    seed: int = 0,
    exclude: ArrayLike | None = None,
    candidates: int = 60,
    engine: Engine = "exact",
    recall_floor: float = 0.999,
    progress: Progress | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Retrieve the context of each query state: the rows of k transitions, nearest first.

    The strategies are the paper's state-similar, random and state-similar-with-high-rewards
    retrieval. The exact engine equals float64 brute force.

    Args:
        states: (N, D), the states of the dataset's transitions.
        queries: (Q, D), the query states.
        k: how many rows per query.
        metric: "l2", the Euclidean distance, or "cosine", 1 - cos; a zero vector's cosine is 0.
        strategy: "similar", "random" (k distinct uniform rows per query) or "high_reward".
        rewards: (N,), needed by "high_reward".
        seed: of the random strategy and the approximate engine.
        exclude: rows to leave out, (Q,) or (Q, m); -1 stands for none.
        candidates: how many nearest rows "high_reward" chooses from (all, where there are fewer).
        engine: "exact", "accelerator" (exact too), "approximate" or "auto".
        recall_floor: least measured recall of the approximate engine.
        progress: called block by block with a label and the share done; told the recall measured.

    Returns:
        Row ids (Q, k) and distances (Q, k). Equal distances are ordered by row id.
    """
    try:
        settings = ContextSettings(
            k=k,
            metric=metric,
            strategy=strategy,
            candidates=candidates,
            engine=engine,
            recall_floor=recall_floor,
            seed=seed,
        )
    except UserError as error:  # here the settings are arguments, without the prefix
        where = error.where.removeprefix("context.")
        raise UserError(error.what, where=where, fix=error.fix) from None
    database, asked = check_rows(states, "states"), check_rows(queries, "queries")
    if database.shape[1] != asked.shape[1]:
        raise UserError(
            f"have {asked.shape[1]} columns, the states have {database.shape[1]}.", where="queries"
        )
    left_out = _check_exclude(exclude, len(database), len(asked))
    check_available(k, len(database), left_out, where="k")
    worth = check_rewards(rewards, len(database)) if strategy == "high_reward" else None
    ids, distances = _contexts(database, asked, worth, left_out, settings, progress or silent)
    return ids.astype(np.int32), distances


def _contexts(
    states: Points,
    queries: Points,
    rewards: Points | None,
    exclude: Ids,
    settings: ContextSettings,
    progress: Progress,
) -> tuple[Ids, Rows]:
    """The contexts of valid queries in valid states."""
    if not len(queries):
        return np.empty((0, settings.k), np.int64), np.empty((0, settings.k))
    if settings.strategy == "random":
        generator = np.random.default_rng(settings.seed)
        return random_rows(generator, states, queries, exclude, settings)
    space = SPACES[settings.metric]
    embedded = space.embed_queries(queries)
    search = Search(
        space.embed_states(states),
        space,
        joint(extent(states, space.embed_states), extent(queries, space.embed_queries)),
        wanted(settings, exclude.shape[1], len(states)),
        settings,
        resolve_engine(settings.engine, len(states)),
        len(queries),
        lambda: embedded[sample_rows(len(queries), settings.seed)],
        progress,
    )
    return choose(*search(embedded, progress), exclude, rewards, settings)


def sample_rows(rows: int, seed: int) -> Ids:
    """The rows that the recall is measured on: at most `SAMPLE`, drawn by `seed`."""
    if rows <= SAMPLE:
        return np.arange(rows)
    return np.random.default_rng(seed).choice(rows, SAMPLE, replace=False)


def silent(label: str, done: float) -> None:
    """Progress nobody watches."""


def check_rows(rows: ArrayLike, where: str) -> Points:
    """Rows (N, D) as finite float32 or float64, or a UserError that names the row.

    Mapped arrays of these types stay as they are: nothing is copied.
    """
    values = _numbers(rows, where)
    if values.ndim != 2 or values.shape[1] == 0:
        raise UserError(f"must have shape (rows, columns), not {values.shape}.", where=where)
    for piece in pieces(values):
        bad = ~(np.abs(values[piece]) <= LARGEST).all(axis=1)
        if bad.any():
            row = piece.start + int(bad.argmax())
            finite = np.isfinite(values[row]).all()
            what = f"has a value beyond ±{LARGEST:g}." if finite else "is not finite (NaN or Inf)."
            raise UserError(what, where=f"{where}, row {row}", fix="Leave such rows out.")
    return values


def check_rewards(rewards: ArrayLike | None, states: int) -> Points:
    """Rewards (N,) as finite float32 or float64, or a UserError that names the row."""
    if rewards is None:
        raise UserError("strategy 'high_reward' needs the rewards.", where="rewards")
    values = _numbers(rewards, "rewards")
    if values.shape != (states,):
        raise UserError(f"must have shape ({states},), not {values.shape}.", where="rewards")
    check_rows(values[:, None], "rewards")
    return values


def check_available(k: int, states: int, exclude: Ids, *, where: str) -> None:
    """Refuse a k larger than the rows that some query may choose from."""
    ordered = np.sort(exclude, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = -1
    available = states - int((ordered >= 0).sum(axis=1).max(initial=0))
    if k > available:
        raise UserError(
            f"{k} is more than the {available} rows available.",
            where=where,
            fix=f"Choose at most {available} or give more data.",
        )


def _check_exclude(exclude: ArrayLike | None, states: int, queries: int) -> Ids:
    """Rows to leave out as (Q, m)."""
    if exclude is None:
        return np.empty((queries, 0), np.int64)
    values = np.asarray(exclude)
    if values.dtype.kind not in "iu":
        raise UserError(f"must be row ids, not {values.dtype}.", where="exclude")
    if values.ndim not in (1, 2) or len(values) != queries:
        raise UserError(
            f"must have shape ({queries},) or ({queries}, m), not {values.shape}.", where="exclude"
        )
    ids = values.astype(np.int64).reshape(queries, -1)
    wrong = ((ids < -1) | (ids >= states)).any(axis=1)
    if wrong.any():
        raise UserError(
            f"row ids lie between 0 and {states - 1}; -1 stands for none.",
            where=f"exclude, query {int(wrong.argmax())}",
        )
    return ids


def _numbers(values: ArrayLike, where: str) -> Points:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UserError("rows have different lengths.", where=where) from error
    if array.dtype.kind not in "fiub":
        raise UserError(f"must be real numbers, not {array.dtype}.", where=where)
    native = array.dtype in (np.dtype(np.float32), np.dtype(np.float64))
    return array if native else array.astype(np.float64)
