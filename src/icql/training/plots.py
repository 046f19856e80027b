"""Pictures of a run, drawn from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from icql.data import Transitions
from icql.files import atomic, read_json
from icql.retrieval import Neighbours
from icql.training.run_folder import RunFolder

BLUE, ORANGE, GREY = "#2563a8", "#d9822b", "#8a8f98"


def draw_run(folder: RunFolder, data: Transitions, neighbours: Neighbours | None) -> list[Path]:
    """Draw every picture this run has the numbers for; returns their paths."""
    rows = list(folder.rows())
    train = [row for row in rows if row["kind"] == "train"]
    looks = [row for row in rows if row["kind"] == "evaluation"]
    drawn = [_save(folder, "training", _training(train))]
    if looks and "score" in looks[0]:
        drawn.append(_save(folder, "score", _score(looks, read_json(folder.result_path))))
    if looks and "q_by_layer" in looks[-1]:
        drawn.append(_save(folder, "q_by_layer", _layers(looks[-1])))
    drawn.append(_save(folder, "state_map", _state_map(data)))
    if neighbours is not None:
        drawn.append(_save(folder, "neighbour_distance", _distances(neighbours)))
    return drawn


def _save(folder: RunFolder, name: str, figure: Figure) -> Path:
    path = folder.plots / f"{name}.png"
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=130)
    return path


def _figure(width: float = 6.4, columns: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, 3.8), layout="constrained")
    axes = figure.subplots(1, columns)
    for ax in np.atleast_1d(axes):
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _score(looks: list[dict[str, Any]], result: dict[str, Any]) -> Figure:
    figure, ax = _figure()
    steps = [row["step"] for row in looks]
    scores = np.array([row["score"] for row in looks])
    for seed in scores.T:
        ax.plot(steps, seed, color=BLUE, alpha=0.35, lw=1)
    ax.plot(steps, scores.mean(1), color=BLUE, lw=2, marker="o", ms=3.5, label=result["algo"])
    if result["behaviour_score"] is not None:
        ax.axhline(result["behaviour_score"], color=GREY, ls="--", label="mean of the data")
    ax.set(xlabel="updates", ylabel="normalised score")
    ax.set_title(f"{result['algo']} on {result['dataset']}, {scores.shape[1]} seed(s)", loc="left")
    ax.legend(frameon=False)
    return figure


def _training(train: list[dict[str, Any]]) -> Figure:
    figure, (left, right) = _figure(9.6, 2)
    steps = [row["step"] for row in train]
    names = [n for n in train[0] if n not in ("step", "kind", "seconds")]
    groups = (
        (left, "loss", [n for n in names if n.endswith("_loss")]),
        (right, "value", [n for n in names if n in ("q", "v", "advantage", "td_error")]),
    )
    for ax, title, members in groups:
        for name in members:
            ax.plot(steps, [np.mean(row[name]) for row in train], lw=1.4, label=name)
        ax.set_title(title, loc="left")
        ax.set_xlabel("updates")
        if members:
            ax.legend(frameon=False, fontsize=8)
        else:
            ax.set_visible(False)
    return figure


def _layers(look: dict[str, Any]) -> Figure:
    figure, ax = _figure()
    for trace in np.atleast_2d(look["q_by_layer"]):
        ax.plot(np.arange(1, len(trace) + 1), trace, color=BLUE, marker="o", ms=3)
    ax.set(xlabel="layer ℓ (in-context TD step)", ylabel="mean Q̂ after the layer")
    ax.set_title("The local Q-function is refined layer by layer", loc="left")
    return figure


def _state_map(data: Transitions, most: int = 20_000) -> Figure:
    """States on their two principal directions, coloured by the return that followed."""
    rows = np.linspace(0, len(data) - 1, min(len(data), most)).astype(int)
    states = data.states[rows].astype(np.float64)
    spread = states.std(0)
    states = (states - states.mean(0)) / np.where(spread < 1e-6, 1.0, spread)
    _, _, directions = np.linalg.svd(states[:: max(1, len(states) // 4000)], full_matrices=False)
    plane = states @ directions[:2].T
    figure, ax = _figure()
    colour = return_to_go(data)[rows]
    low, high = np.percentile(colour, [2, 98])
    dots = ax.scatter(*plane.T, c=colour, s=2, lw=0, cmap="viridis", vmin=low, vmax=high)
    figure.colorbar(dots, ax=ax, label="discounted return that followed")
    ax.set(xlabel="first principal direction", ylabel="second")
    ax.set_title(f"{data.info.name}: {len(data):,} transitions", loc="left")
    return figure


def return_to_go(data: Transitions, discount: float = 0.99) -> np.ndarray:
    """Discounted sum of the logged rewards from each transition to the end of its episode."""
    total = data.rewards.astype(np.float64).copy()
    same = data.episode[:-1] == data.episode[1:]
    for i in range(len(total) - 2, -1, -1):
        if same[i]:
            total[i] += discount * total[i + 1]
    return total


def _distances(neighbours: Neighbours) -> Figure:
    figure, ax = _figure()
    distances = np.asarray(neighbours.report.mean_distance)
    ax.plot(np.arange(1, len(distances) + 1), distances, color=BLUE, marker="o", ms=3)
    ax.set(xlabel="k-th neighbour", ylabel="mean distance")
    ax.set_title("How far the context reaches", loc="left")
    return figure
