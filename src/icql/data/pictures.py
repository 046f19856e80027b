"""What pictures of a dataset share: figures, the state map, the return that followed a state."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from icql.data.arrays import blocks, groups
from icql.data.transitions import Transitions

Array = NDArray[np.float64]

BLUE, ORANGE, GREY = "#2563a8", "#d9822b", "#8a8f98"
FITTED = 20_000  # states at most that the map's directions are computed from
MAPPED, MAPPED_BYTES = 20_000, 2_000_000  # states at most on a map, and their size


def figure(width: float = 5.4, height: float = 3.4, panels: int = 1) -> tuple[Figure, Any]:
    """A figure with panels side by side in the style of the package, and their axes."""
    drawn = Figure(figsize=(width, height), layout="constrained")
    every = drawn.subplots(1, panels, squeeze=False)[0]
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
    return drawn, every


def png(drawn: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    stream = io.BytesIO()
    drawn.savefig(stream, dpi=130, format="png")
    return stream.getvalue()


def inline(drawn: Figure) -> str:
    """A figure as a data URL, so that a page needs no other file."""
    return f"data:image/png;base64,{base64.b64encode(png(drawn)).decode()}"


@dataclass(frozen=True)
class Plane:
    """Where the map of states lies: the first two principal directions of standardised states."""

    centre: Array  # (obs,)
    axes: Array  # (obs, 2)

    def __call__(self, states: NDArray[np.floating]) -> Array:
        """The places (N, 2) of states (N, obs)."""
        return np.asarray((states - self.centre) @ self.axes)


def fit_plane(states: NDArray[np.floating]) -> Plane:
    """The plane of states (N, obs)."""
    spread = states.std(0, dtype=np.float64)
    shape = np.where(spread > 1e-6, spread, np.inf)  # a constant column has no say
    centre = states.mean(0, dtype=np.float64)
    sample = (states[:: max(1, len(states) // FITTED)] - centre) / shape
    axes = np.linalg.eigh(sample.T @ sample)[1][:, ::-1][:, :2]
    axes = np.where(axes.sum(0) < 0, -axes, axes) / shape[:, None]  # either sign would do
    return Plane(centre, np.pad(axes, ((0, 0), (0, 2 - axes.shape[1]))))  # one column only: a line


def state_map(states: NDArray[np.floating]) -> Array:
    """States (N, obs) on the first two principal directions of the standardised states: (N, 2)."""
    return fit_plane(states)(states)


def draw_map(axes: Any, data: Transitions, label: str) -> None:
    """The map of some states, coloured by the return that followed, high ones on top."""
    most = min(len(data), MAPPED, max(2, MAPPED_BYTES // (4 * data.observation_dim)))
    rows = np.linspace(0, len(data) - 1, most).astype(np.int64)
    plane, colour = state_map(data.states[rows]), returns_at(rows, data.rewards, data.episode)
    low, high = np.percentile(colour, [2, 98])
    order, size = np.argsort(colour, kind="stable"), float(np.clip(40_000 / len(colour), 2, 20))
    style: Any = {"s": size, "lw": 0, "cmap": "viridis", "vmin": low, "vmax": high}
    dots = axes.scatter(*plane[order].T, c=colour[order], **style)
    axes.figure.colorbar(dots, ax=axes, label=label)
    axes.set(xlabel="first principal direction", ylabel="second")


def returns_at(
    rows: NDArray[np.int64], rewards: NDArray[np.floating], episode: NDArray[np.integer]
) -> Array:
    """`return_to_go` of these ascending rows, computed for some whole episodes at a time."""
    begins = [
        block.start + 1 + np.flatnonzero(np.diff(episode[block.start : block.stop + 1]))
        for block in blocks(len(episode) - 1)
    ]
    starts = np.concatenate([np.zeros(1, np.int64), *begins])
    edges = np.append(starts, len(episode))
    value = np.empty(len(rows))
    for group in groups(starts):
        part = slice(edges[group.start], edges[group.stop])
        here = slice(*np.searchsorted(rows, (part.start, part.stop)))
        value[here] = return_to_go(rewards[part], episode[part])[rows[here] - part.start]
    return value


def return_to_go(
    rewards: NDArray[np.floating], episode: NDArray[np.integer], discount: float = 0.99
) -> Array:
    """Discounted sum of the rewards from each row to the end of its episode.

    Rows are in time order, episode after episode.
    """
    goes_on = np.append(episode[1:] == episode[:-1], False)
    back = zip(rewards[::-1].astype(np.float64), (discount * goes_on)[::-1], strict=True)
    values = accumulate(back, lambda later, now: now[0] + now[1] * later, initial=0.0)
    return np.fromiter(values, np.float64, len(rewards) + 1)[:0:-1]
