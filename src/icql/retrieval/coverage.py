"""Is the data dense enough for local estimates? Told from retrieval distances, before training.

The paper's d_k, the distance to the k-th neighbour, has no scale of its own. Three comparisons
give it one: with the state's own trajectory, whose rows before and after are near in any dataset;
with the movement of one step (the paper's other radius); with the extent of the data. A state is
*isolated* at k if

* more than half of its k nearest states are of its own episode, or
* the k-th nearest state of *other* episodes is more than `LOCAL` median one-step movements away, or
* it is farther than `FAR` of the median distance between two random states.

The share of isolated states gives the verdict. `docs/coverage.md` has its numbers and its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from icql.data.pictures import BLUE, GREY, ORANGE, figure, state_map
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval.metric import Points, Space, pieces
from icql.retrieval.neighbours import find_space, usual_space
from icql.retrieval.retriever import Retriever, silent
from icql.settings.contexts import KS, QUERIES, ContextSettings, Exclude, SpaceName

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Progress = Callable[[str, float], None]
Level = Literal["too sparse", "sparse in places", "dense enough"]

LOCAL = 4.0  # one-step movements
FAR = 0.25  # of the distance between two random states
PAIRS = 10_000  # random pairs that this distance is the median of
TOO_SPARSE, IN_PLACES = 0.5, 0.15  # share of isolated states from which on
SIDE = 4  # regions of the state map along either direction
HEADLINE = 20  # the verdict is that of the k nearest to this, the paper's size of a context
TELLING = 2  # columns that a region is named by
PERCENTILES = (5, 10, 25, 50, 75, 90, 95)


@dataclass(frozen=True)
class Coverage:
    """Distances to the k-th neighbour of Q sampled states, for every k in `ks`."""

    name: str
    transitions: int
    episodes: int
    ks: tuple[int, ...]
    step: float  # median movement ‖s' − s‖ of one step
    extent: float  # median distance between two random states
    distance: Array  # (Q, K) among all other states
    held_out: Array  # (Q, K) among the states of other episodes; Inf where they are too few
    own: Array  # (Q, K) share of the k nearest that is of the state's own episode
    plane: Array  # (Q, 2) the state map
    region: Rows  # (Q,) 0 … SIDE² − 1
    space: SpaceName = "raw"  # what distances are measured on
    where: Mapping[int, str] = field(default_factory=dict)  # region → ranges of telling columns

    @property
    def isolated(self) -> NDArray[np.bool_]:
        """(Q, K) states whose neighbourhood is not local, or is their own episode."""
        return (self.own > 0.5) | (self.held_out > self.limit)

    @property
    def limit(self) -> float:
        """The distance beyond which a neighbour is not local."""
        far = FAR * self.extent
        return min(LOCAL * self.step, far) if self.step else far  # one-step logs do not move

    @property
    def headline(self) -> int:
        """Which of `ks` the verdict is about."""
        return int(np.argmin(np.abs(np.asarray(self.ks) - HEADLINE)))

    @property
    def level(self) -> Level:
        """The verdict in two words."""
        return _level(float(self.isolated[:, self.headline].mean()))

    def verdict(self) -> str:
        """The verdict in a plain sentence, with its reasons."""
        j = self.headline
        k, isolated = self.ks[j], float(self.isolated[:, j].mean())
        reasons = (
            f"{isolated:.0%} of states are isolated at k = {k}. On average "
            f"{self.own[:, j].mean():.0%} of the {k} nearest states are of the same episode; the "
            f"{k}th nearest of other episodes {self._away(j)}."
        )
        if self.episodes == 1:
            return "too sparse for local estimates here: there is a single episode."
        if self.level == "too sparse":
            return f"too sparse for local estimates here: {reasons}"
        if self.level == "sparse in places":
            worst = [r["region"] for r in self.regions() if r["level"] == "too sparse"]
            named = "; ".join(
                f"{r} ({self.where[r]})" if r in self.where else f"{r}" for r in worst
            )
            where = f" Too sparse in regions {named}." if worst else ""
            return f"sparse in places: {reasons}{where}"
        return f"dense enough for local estimates: only {reasons}"

    def _away(self, j: int) -> str:
        """How far the held-out neighbours are, in words."""
        middle = float(np.median(self.held_out[:, j]))
        if not np.isfinite(middle) or not self.step or not self.extent:
            return f"is at the distance {middle:.3g}" if np.isfinite(middle) else "does not exist"
        return (
            f"is {middle / self.step:.1f} one-step movements away, {middle / self.extent:.0%} of "
            "the distance between two random states (medians)"
        )

    def regions(self) -> list[dict[str, Any]]:
        """Every region of the state map: where it is, how far its neighbours are, its verdict."""
        j, found = self.headline, []
        for region in np.unique(self.region).tolist():
            rows = self.region == region
            isolated = float(self.isolated[rows, j].mean())
            found.append(
                {
                    "region": region,
                    "where": self.where.get(region, ""),
                    "states": int(rows.sum()),
                    "centre": self.plane[rows].mean(0).tolist(),
                    "isolated": isolated,
                    "level": _level(isolated),
                    "own_episode": float(self.own[rows, j].mean()),
                    "distance": [_spread(column) for column in self.distance[rows].T],
                    "held_out": [_spread(column) for column in self.held_out[rows].T],
                }
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON; a distance that does not exist is null."""
        per_k = [
            {
                "k": k,
                "distance": _spread(self.distance[:, j]),
                "held_out": _spread(self.held_out[:, j]),
                "held_out_in_steps": _spread(self.held_out[:, j], self.step),
                "held_out_in_extents": _spread(self.held_out[:, j], self.extent),
                "own_episode": float(self.own[:, j].mean()),
                "isolated": float(self.isolated[:, j].mean()),
            }
            for j, k in enumerate(self.ks)
        ]
        return {
            "dataset": self.name,
            "transitions": self.transitions,
            "episodes": self.episodes,
            "queries": len(self.own),
            "space": self.space,
            "level": self.level,
            "verdict": self.verdict(),
            "verdict_k": self.ks[self.headline],
            "isolated": per_k[self.headline]["isolated"],
            "step": self.step,
            "extent": self.extent,
            "k": list(self.ks),
            "neighbours": per_k,
            "regions": self.regions(),
        }


def coverage(
    data: Transitions,
    ks: Sequence[int] = KS,
    *,
    queries: int = QUERIES,
    seed: int = 0,
    space: SpaceName | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Coverage:
    """Measure how far the k nearest states are (Euclidean, as retrieval sees them).

    `ks` are context sizes; `queries` states are sampled by `seed`, and their neighbours are sought
    in all of the data; `space` is what all distances are measured on (a learned one is kept in
    `cache_dir`), by default as in training (`usual_space`); `progress` is told a label and the
    share done.

    Raises:
        UserError: if a k is not positive or exceeds the other states, or the sample is empty.
    """
    for name, value, least in (("queries", queries, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"must be at least {least}, not {value}.", where=name)
    ks = tuple(sorted(set(ks)))
    if not ks or ks[0] < 1 or ks[-1] >= len(data):
        raise UserError(
            f"must lie between 1 and {len(data) - 1:,}, the number of other states, not {ks}.",
            where="k",
        )
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(data), min(queries, len(data)), replace=False))
    pairs = data.states[generator.integers(len(data), size=(2, PAIRS))]
    space = space or usual_space(data)
    settings = ContextSettings(k=ks[-1], engine="exact", space=space)
    measured = find_space(data, settings, cache_dir=cache_dir, progress=progress)
    moved = _apart(measured, data.next_states, data.states)
    plane = state_map(data.states)[rows]
    region = _equal_regions(plane)
    return Coverage(
        data.info.name,
        len(data),
        len(np.unique(data.episode)),
        ks,
        float(np.median(moved[moved > 0])) if (moved > 0).any() else 0.0,
        float(np.median(_apart(measured, pairs[0], pairs[1]))),
        *_neighbours(data, rows, ks, settings, measured, progress),
        plane,
        region,
        space,
        _ranges(data, rows, region),
    )


def _ranges(data: Transitions, rows: Rows, region: Rows) -> dict[int, str]:
    """Where each region is: the columns it differs in most, each with its middle 80 %."""
    signals, states = data.info.signals, data.states[rows].astype(np.float64)
    names = signals.observation or [f"column {i}" for i in range(states.shape[1])]
    middle, spread = np.median(states, axis=0), states.std(axis=0)
    moving = np.where(spread > 0, spread, np.inf)
    whole = np.ptp(np.percentile(states, (10, 90), axis=0), axis=0)
    found = {}
    for one in np.unique(region).tolist():
        here = states[region == one]
        away = np.abs(np.median(here, axis=0) - middle) / moving
        low, high = np.percentile(here, (10, 90), axis=0)
        # a range as wide as that of all states says nothing
        told = away * np.clip(1 - (high - low) / np.where(whole > 0, whole, np.inf), 0.01, 1)
        found[one] = ", ".join(
            f"{names[i]} {low[i]:.4g} … {high[i]:.4g} {signals.units.get(names[i], '')}".rstrip()
            for i in np.argsort(-told, kind="stable")[:TELLING].tolist()
        )
    return found


def _neighbours(
    data: Transitions,
    rows: Rows,
    ks: tuple[int, ...],
    settings: ContextSettings,
    space: Space,
    progress: Progress | None,
) -> tuple[Array, Array, Array]:
    """`distance`, `held_out` and `own` of a `Coverage`."""
    columns, queries = np.asarray(ks) - 1, data.states[rows]
    retriever = Retriever(
        data.states, None, settings, episode=data.episode, expected=queries, space=space
    )

    def nearest(rule: Exclude) -> tuple[Rows, Array]:
        left_out = retriever.left_out(queries, rows, rule=rule)
        return retriever.nearest(queries, left_out, progress or silent)

    ids, away = nearest("self")
    same = data.episode[ids] == data.episode[rows][:, None]
    own = (np.cumsum(same, axis=1) / np.arange(1, ks[-1] + 1))[:, columns]
    return away[:, columns], nearest("episode")[1][:, columns], own


def _apart(space: Space, a: Points, b: Points) -> Array:
    """The distance of each row of `a` from that of `b`."""
    distance = np.empty(len(a))
    for piece in pieces(a):
        ends = space.embed_states(a[piece]), space.embed_states(b[piece])
        distance[piece] = np.linalg.norm(np.subtract(*ends, dtype=np.float64), axis=1)
    return distance


def _equal_regions(plane: Array) -> Rows:
    """Slices of equally many states along the first direction, each cut alike along the second."""
    column = _ranks(plane[:, 0]) * SIDE // len(plane)
    row = np.empty_like(column)
    for c in range(SIDE):
        members = np.flatnonzero(column == c)
        row[members] = _ranks(plane[members, 1]) * SIDE // max(len(members), 1)
    return column * SIDE + row


def _ranks(values: Array) -> Rows:
    return values.argsort(kind="stable").argsort()


def _level(isolated: float) -> Level:
    if isolated >= TOO_SPARSE:
        return "too sparse"
    return "sparse in places" if isolated >= IN_PLACES else "dense enough"


def _spread(values: Array, unit: float = 1.0) -> dict[str, float | None]:
    """Percentiles by name; None where it is not a number of units."""
    if unit == 0:
        return {f"p{p}": None for p in PERCENTILES}
    levels = np.percentile(values, PERCENTILES, method="lower") / unit
    return {
        f"p{p}": float(level) if np.isfinite(level) else None
        for p, level in zip(PERCENTILES, levels, strict=True)
    }


def draw_coverage(found: Coverage) -> Figure:
    """Held-out distances for every k, and the state map with its isolated states."""
    drawn, (left, right) = figure(11, 4.6, panels=2)
    unit = found.step or 1.0
    share = np.arange(1, len(found.own) + 1) / len(found.own)
    shades = np.linspace(0.35, 1.0, len(found.ks))
    for j, (k, shade) in enumerate(zip(found.ks, shades, strict=True)):
        left.plot(np.sort(found.distance[:, j]) / unit, share, color=GREY, alpha=shade, lw=1.2)
        ordered = np.sort(found.held_out[:, j]) / unit
        left.plot(ordered, share, color=BLUE, alpha=shade, lw=1.6, label=f"k = {k}")
    left.plot([], [], color=GREY, label="own episode included")
    limit = found.limit / unit
    left.axvline(limit, color=ORANGE, ls="--", label="beyond: not local")
    finite = found.held_out[np.isfinite(found.held_out)] / unit
    if finite.size:
        left.set_xlim(0, max(1.3 * limit, float(np.percentile(finite, 97))) or 1.0)
    left.set(
        xlabel="distance to the k-th nearest state, in one-step movements",
        ylabel="share of states",
        ylim=(0, 1),
    )
    left.set_title("Neighbours in other episodes", loc="left")
    left.legend(frameon=False, fontsize=8, loc="best")
    _draw_regions(found, right)
    drawn.suptitle(
        f"{found.name}: {found.level} (k = {found.ks[found.headline]}, {found.episodes:,} episodes)"
    )
    return drawn


def _draw_regions(found: Coverage, axes: Any) -> None:
    isolated = found.isolated[:, found.headline]
    for rows, colour, label in ((~isolated, BLUE, "local"), (isolated, ORANGE, "isolated")):
        axes.scatter(*found.plane[rows].T, s=5, lw=0, color=colour, label=label, zorder=2)
    for region in found.regions():
        corners = found.plane[found.region == region["region"]]
        low, size = corners.min(0), np.ptp(corners, axis=0)
        axes.add_patch(Rectangle(low, *size, fill=False, ec=GREY, lw=0.7, zorder=1))
        style = {"ha": "center", "va": "center", "fontsize": 7, "zorder": 3}
        box = {"fc": "white", "ec": "none", "alpha": 0.75, "pad": 0.8}
        said = f"{region['region']}: {region['isolated']:.0%}"
        axes.annotate(said, low + size / 2, **style, bbox=box)
    axes.set(xlabel="first principal direction", ylabel="second")
    axes.set_title("Isolated states by region of the state map", loc="left")
    axes.legend(frameon=False, fontsize=8)
