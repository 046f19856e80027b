"""Pictures of a run, drawn from its folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from icql.data import Transitions
from icql.data.pictures import BLUE, GREY, draw_map, figure
from icql.files import atomic
from icql.retrieval import Neighbours
from icql.settings.grid import combinations, say_settings
from icql.training.run_folder import RunFolder

Panel = Callable[[Any], None]  # draws on the axes it is given


def draw_run(folder: RunFolder, data: Transitions, neighbours: Neighbours | None) -> list[Path]:
    """Draw every picture this run has the numbers for, and the most telling ones side by side."""
    rows = list(folder.rows())
    train = [row for row in rows if row["kind"] == "train"]
    looks = [row for row in rows if row["kind"] == "evaluation"]
    result = folder.result()
    panels: dict[str, Panel] = {}
    if looks and "score" in looks[0]:
        panels["score"] = lambda ax: _score(ax, looks, result)
    if looks and "q_by_layer" in looks[-1]:
        panels["q_by_layer"] = lambda ax: _layers(ax, looks[-1])
    panels["state_map"] = lambda ax: _state_map(ax, data)
    overview = list(panels.values())
    if neighbours is not None:
        panels["neighbour_distance"] = lambda ax: _distances(ax, neighbours)
    drawn = [_draw(folder, name, [panel]) for name, panel in panels.items()]
    named = train[0] if train else {}  # damaged rows are lost
    losses = [name for name in named if name.endswith("_loss")]
    values = [name for name in ("q", "v", "advantage", "td_error") if name in named]
    drawn += [
        _draw(folder, name, [partial(_curve, train=train, name=curve) for curve in curves])
        for name, curves in (("losses", losses), ("values", values))
        if curves
    ]
    return [*drawn, _draw(folder, "overview", overview)]


def _draw(folder: RunFolder, name: str, panels: list[Panel]) -> Path:
    drawn, every = figure(5.6 * len(panels), 3.8, panels=len(panels))
    for ax, panel in zip(every, panels, strict=True):
        panel(ax)
    path = folder.plots / f"{name}.png"
    with atomic(path) as temporary:
        drawn.savefig(temporary, dpi=110)
    return path


def _score(ax: Any, looks: list[dict[str, Any]], result: dict[str, Any]) -> None:
    steps = [row["step"] for row in looks]
    scores = np.array([row["score"] for row in looks])
    seeds = len(result["seeds"])
    for i, settings in enumerate(combinations(result["grid"])):  # one, where nothing is varied
        own, color = scores[:, i * seeds :][:, :seeds], BLUE if not settings else f"C{i}"
        if seeds > 1:
            ax.plot(steps, own, color=color, alpha=0.35, lw=1)
        label = say_settings(settings) or result["algo"]
        ax.plot(steps, own.mean(1), color=color, lw=2, marker="o", ms=3.5, label=label)
    if result["behaviour_score"] is not None:
        ax.axhline(result["behaviour_score"], color=GREY, ls="--", label="mean of the data")
    ax.set(xlabel="updates", ylabel="normalised score")
    ax.set_ylim(bottom=min(0.0, float(scores.min())))
    name = Path(result["dataset"]).stem
    ax.set_title(f"{result['algo']} on {name}, {seeds} seed(s)", loc="left")
    ax.legend(frameon=False)


def _curve(ax: Any, train: list[dict[str, Any]], name: str) -> None:
    """One metric on axes of its own: curves of different size would hide each other."""
    steps = [row["step"] for row in train]
    ax.plot(steps, [np.mean(row[name]) for row in train], color=BLUE, lw=1.4)
    ax.set_xlabel("updates")
    ax.set_title(f"{name.replace('_', ' ')}, mean over seeds", loc="left")


def _layers(ax: Any, look: dict[str, Any]) -> None:
    for trace in np.atleast_2d(look["q_by_layer"]):
        ax.plot([0.0, *trace], color=BLUE, marker="o", ms=3)  # w_0 = 0
    ax.set(xlabel="layer ℓ", ylabel="mean Q̂ after the layer")
    ax.set_title("Q̂ after every in-context TD step", loc="left")


def _state_map(ax: Any, data: Transitions) -> None:
    draw_map(ax, data, "discounted return that followed")
    ax.set_title(f"{data.info.name}: {len(data):,} transitions", loc="left")


def _distances(ax: Any, neighbours: Neighbours) -> None:
    distances = np.asarray(neighbours.report.mean_distance)
    ax.plot(np.arange(1, len(distances) + 1), distances, color=BLUE, marker="o", ms=3)
    ax.set(xlabel="k-th neighbour", ylabel="mean distance")
    ax.set_title("How far the context reaches", loc="left")
