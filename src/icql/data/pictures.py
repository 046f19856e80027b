"""What pictures of a dataset share: figures, the state map, the return that followed a state."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLUE, ORANGE, GREY = "#2563a8", "#d9822b", "#8a8f98"
FITTED = 20_000  # states at most that the map's directions are computed from


def figure(width: float = 5.4, height: float = 3.4) -> tuple[Figure, Any]:
    """A figure with one pair of axes in the style of the package."""
    drawn = Figure(figsize=(width, height), layout="constrained")
    axes = drawn.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return drawn, axes


def png(drawn: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    stream = io.BytesIO()
    drawn.savefig(stream, dpi=130, format="png")
    return stream.getvalue()


def inline(drawn: Figure) -> str:
    """A figure as a data URL, so that a page needs no other file."""
    return f"data:image/png;base64,{base64.b64encode(png(drawn)).decode()}"


def state_map(states: NDArray[np.floating]) -> Array:
    """States (N, obs) on the first two principal directions of the standardised states: (N, 2)."""
    spread = states.std(0, dtype=np.float64)
    shape = np.where(spread > 1e-6, spread, np.inf)  # a constant column has no say
    centre = states.mean(0, dtype=np.float64)
    sample = states[:: max(1, len(states) // FITTED)]
    sample = (sample - centre) / shape
    _, axes = np.linalg.eigh(sample.T @ sample)
    axes = axes[:, ::-1][:, :2]
    axes = (
        np.where(axes.sum(0) < 0, -axes, axes) / shape[:, None]
    )  # either sign would do: choose one
    plane = (states - centre) @ axes
    return np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))  # one column only: a line


def return_to_go(
    rewards: NDArray[np.floating], episode: NDArray[np.integer], discount: float = 0.99
) -> Array:
    """Discounted sum of the rewards from each row to the end of its episode.

    Rows are in time order, episode after episode. All episodes take one step back at a time, so
    the loop is as long as the longest one.
    """
    value = rewards.astype(np.float64)
    last = np.flatnonzero(np.append(episode[1:] != episode[:-1], True))
    length = np.diff(last, prepend=-1)
    order = np.argsort(-length, kind="stable")
    last, length = last[order], -length[order]
    for back in range(1, int(-length[0]) if len(length) else 0):
        rows = last[: np.searchsorted(length, -back)] - back
        value[rows] += discount * value[rows + 1]
    return value
