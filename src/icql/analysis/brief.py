"""The analyses in brief: what a report of many runs can hold of each, as small JSON.

Of data: a map of some states, the outcomes that followed them, and how far neighbours are. Of a
run's critics: what they say of the same states, how that agrees with the outcomes, and Q̂ by layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.analysis.values import agreement, ask
from icql.data.pictures import returns_at, state_map
from icql.data.transitions import Transitions
from icql.graph.deviations import Around, action_spread, deviations_last
from icql.retrieval.coverage import coverage
from icql.retrieval.neighbours import usual_space
from icql.training.trained import critic_on, has_critic

STATES = 300  # a map of more is no clearer, and a report holds hundreds of maps
KS = (1, 2, 5, 10, 20, 40)
SHOWN = ("p10", "p50", "p90")  # percentiles of distances


def brief_rows(data: Transitions) -> NDArray[np.int64]:
    """The rows that data and critics are asked about: evenly spread, the same for all runs."""
    return np.unique(np.linspace(0, len(data) - 1, min(STATES, len(data))).astype(np.int64))


def brief_of_data(data: Transitions) -> dict[str, Any]:
    """Map, outcomes, how much actions differ, and distances to the k-th nearest state."""
    rows, around = brief_rows(data), Around(data, space=usual_space(data))
    found = coverage(data, [k for k in KS if k < len(data)], queries=STATES).as_json()
    distances = [
        {
            "k": one["k"],
            "all": [one["distance"][p] for p in SHOWN],
            "other_episodes": [one["held_out"][p] for p in SHOWN],
        }
        for one in found["neighbours"]
    ]
    return {
        "name": data.info.name,
        "rows": len(rows),
        "plane": [_short(place) for place in state_map(data.states[rows])],
        "outcome": _short(returns_at(rows, data.rewards, data.episode)),
        "action_spread": round(action_spread(around), 3),
        "deviations_last": round(deviations_last(around), 3),
        "space": found["space"],
        "step": found["step"],
        "distances": distances,
    }


def brief_of_run(
    run: Path, data: Transitions, members: slice = slice(None)
) -> dict[str, Any] | None:
    """What the critics of a finished run, or some of its members, say; None where it has none.

    Values and layers are those of the first seed that was trained, the correlations with the
    outcomes those of every seed. Layers are known of the run's first member alone.
    """
    if not has_critic(run):
        return None
    rows, critic = brief_rows(data), critic_on(run, data)
    said = ask(run.name, str(run), critic, rows)
    values = said.values[members]
    agrees = agreement(values, returns_at(rows, data.rewards, data.episode))
    layers = None
    if said.by_layer is not None and not members.start:
        spread = np.percentile(said.by_layer, [10, 90], axis=1)
        layers = [_short(row) for row in np.stack([said.by_layer.mean(1), *spread], axis=1)]
    return {
        "values": _short(values[0]),
        "rank": _short(agrees["spearman"]),
        "layers": layers,  # mean, 10th and 90th percentile after each
    }


def _short(values: Iterable[float]) -> list[float | None]:
    """Four digits are enough for a picture; None for what is no number."""
    return [float(f"{x:.4g}") if np.isfinite(x) else None for x in values]
