"""Whether a policy does the same everywhere: it has learned nothing from what it is shown.

That may be right where one set point is best for all states. Mostly it is a sign that states were
not seen (columns of other scales, a network that is saturated) or that training was too short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from icql.data.transitions import Transitions
from icql.evaluation.rollout import act_all
from icql.settings.grid import Member

ASKED = 256  # logged states at which policies act, spread over the data
NEARLY = 0.01  # of the logged actions' spread: what varies less does not vary


def unmoved(policies: Any, data: Transitions, members: Sequence[Member]) -> list[str]:
    """One sentence for each member whose actions hardly vary though those in the log do."""
    rows = np.unique(np.linspace(0, len(data) - 1, min(ASKED, len(data))).astype(np.int64))
    states, logged = (np.asarray(x[rows]) for x in (data.states, data.actions))
    several = jnp.broadcast_to(states, (len(members), *states.shape))
    actions = np.asarray(act_all(policies, several), np.float64)
    spread, varied = actions.std(1), logged.std(0, dtype=np.float64)
    moving = varied > 1e-6
    if not moving.any():
        return []
    still = (spread[:, moving] < NEARLY * varied[moving]).all(1)
    return [
        f"the policy of {member.label} does the same in all logged states "
        f"({_said(data, actions[i].mean(0))}), though logged actions vary: it may have learned "
        "nothing from the states. Look at their scales (icql data validate) and the losses, or "
        "train longer."
        for i, member in enumerate(members)
        if still[i]
    ]


def _said(data: Transitions, action: np.ndarray) -> str:
    """An action in the log's units."""
    signals = data.info.signals
    names = signals.action or tuple(f"action {i}" for i in range(len(action)))
    pairs = zip(names, signals.in_units(action).tolist(), strict=True)
    return ", ".join(f"{name} {x:.3g} {signals.units.get(name, '')}".rstrip() for name, x in pairs)
