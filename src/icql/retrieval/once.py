"""`retrieve`: contexts of some states, in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.errors import UserError
from icql.retrieval.index import Progress
from icql.retrieval.metric import fitted_space
from icql.retrieval.retriever import Retriever, silent
from icql.settings.contexts import ContextSettings, Engine, Metric, SpaceName, Strategy


def retrieve(
    states: ArrayLike,
    queries: ArrayLike,
    k: int,
    *,
    metric: Metric = "l2",
    space: SpaceName = "raw",
    strategy: Strategy = "similar",
    rewards: ArrayLike | None = None,
    actions: ArrayLike | None = None,
    next_states: ArrayLike | None = None,
    seed: int = 0,
    exclude: ArrayLike | None = None,
    candidates: int = 60,
    engine: Engine = "exact",
    recall_floor: float = 0.999,
    progress: Progress | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Retrieve the context of each query state: the rows of k transitions, nearest first.

    The strategies are the paper's state-similar, random and state-similar-with-high-rewards
    retrieval. The exact engine equals float64 brute force. To ask more than once, see `Retriever`.

    Args:
        states: (N, D), the states of the dataset's transitions.
        queries: (Q, D), the query states.
        k: how many rows per query.
        metric: "l2", the Euclidean distance, or "cosine", 1 - cos; a zero vector's cosine is 0.
        space: what distances are measured on: "raw", the columns as they are; "standardised", each
            divided by its spread in `states`; "learned", features of a network (its file says how).
        strategy: "similar", "random" (k distinct uniform rows, by seed and query) or "high_reward".
        rewards: (N,), needed by "high_reward".
        actions: (N, A), needed by "learned", as are the next states.
        next_states: (N, D), see `actions`.
        seed: of the random strategy, the approximate engine and the learned space.
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
            space=space,
            strategy=strategy,
            candidates=candidates,
            engine=engine,
            recall_floor=recall_floor,
            seed=seed,
        )
        found = None
        if space == "learned":
            if actions is None or next_states is None:
                raise UserError("'learned' needs actions and next_states.", where="space")
            from icql.retrieval.learned import learn  # JAX: only where it is needed

            learned = learn(states, actions, next_states, seed, progress or silent)
            found = fitted_space(metric, learned)
        retriever = Retriever(states, rewards, settings, expected=queries, space=found)
    except UserError as error:  # here the settings are arguments, without the prefix
        where = error.where.removeprefix("context.")
        raise UserError(error.what, where=where, fix=error.fix) from None
    return retriever(queries, exclude=exclude, progress=progress)
