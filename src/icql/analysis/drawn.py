"""Pictures of what critics say: maps, agreement, layers, and the matrices C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from icql.analysis.values import CriticValues, Doubles, Values, agreement
from icql.data.pictures import BLUE, GREY, figure, png
from icql.files import atomic

SHOWN = {
    "spectral": "largest singular value",
    "frobenius": "size of all entries",
    "diagonal": "mean of the diagonal",
    "off": "size of an entry beside it",
}


def draw_values(values: Values, folder: Path) -> list[Path]:
    """Draw every picture that there are numbers for into `folder`."""
    pictures = {"value_maps": value_maps(values), "agreement": scatters(values)}
    layered = [critic for critic in values.critics if critic.by_layer is not None]
    if layered:
        pictures |= {"q_by_layer": by_layer(layered), "c_statistics": matrices(layered)}
    drawn = []
    for name, picture in pictures.items():
        path = folder / f"{name}.png"
        with atomic(path) as temporary:
            temporary.write_bytes(png(picture))
        drawn.append(path)
    return drawn


def value_maps(values: Values) -> Figure:
    """The same states, coloured by what each critic says; each scaled to its own range."""
    panels: list[tuple[str, Doubles]] = [("logged outcome", values.outcome)]
    panels += [] if values.oracle is None else [("oracle", values.oracle)]
    panels += [(critic.label, critic.values.mean(0)) for critic in values.critics]
    drawn, every = figure(4.2 * len(panels), 3.8, panels=len(panels))
    for ax, (title, colour) in zip(every, panels, strict=True):
        low, high = np.percentile(colour, [2, 98])
        scaled = np.clip((colour - low) / max(high - low, 1e-12), 0, 1)
        order = np.argsort(scaled, kind="stable")
        style: Any = {"s": float(np.clip(20_000 / len(scaled), 3, 20)), "lw": 0, "cmap": "viridis"}
        dots = ax.scatter(*values.plane[order].T, c=scaled[order], **style)
        ax.set(xticks=[], yticks=[])
        ax.set_title(title, loc="left")
    drawn.colorbar(dots, ax=every[-1], label="value, each from its 2nd to 98th percentile")
    drawn.suptitle(f"{values.name}: {len(values.rows):,} states", x=0.01, ha="left")
    return drawn


def scatters(values: Values) -> Figure:
    """Every critic against the oracle or, without one, against the logged outcome."""
    name, truth = values.truth
    drawn, every = figure(4.2 * len(values.critics), 3.8, panels=len(values.critics))
    for ax, critic in zip(every, values.critics, strict=True):
        found = agreement(critic.values, truth)
        r, rho = (np.mean(found[key]) for key in ("pearson", "spearman"))
        ax.scatter(truth, critic.values.mean(0), s=5, lw=0, alpha=0.4, color=BLUE)
        ax.set(xlabel=name, ylabel="Q")
        ax.set_title(f"{critic.label}\nr = {r:.2f}, ρ = {rho:.2f}", loc="left")
    return drawn


def by_layer(critics: list[CriticValues]) -> Figure:
    """Q̂ after every in-context TD step: its mean, and where the middle 80 % of pairs lie."""
    drawn, every = figure(4.6 * len(critics), 3.6, panels=len(critics))
    for ax, critic in zip(every, critics, strict=True):
        assert critic.by_layer is not None
        steps = np.arange(1, len(critic.by_layer) + 1)
        low, high = np.percentile(critic.by_layer, [10, 90], axis=1)
        ax.fill_between(steps, low, high, color=BLUE, alpha=0.2, lw=0)
        ax.plot(steps, critic.by_layer.mean(1), color=BLUE, marker="o", ms=3)
        ax.axhline(0, color=GREY, lw=0.8)
        ax.set(xlabel="layer ℓ", ylabel="Q̂ after the layer")
        ax.set_title(critic.label, loc="left")
    return drawn


def matrices(critics: list[CriticValues]) -> Figure:
    """What training made of the matrices C, layer by layer."""
    drawn, every = figure(3.9 * len(SHOWN), 3.4, panels=len(SHOWN))
    for ax, (name, title) in zip(every, SHOWN.items(), strict=True):
        for i, critic in enumerate(critics):
            assert critic.c is not None
            layers = np.arange(1, len(critic.c[name]) + 1)
            ax.plot(layers, critic.c[name], color=f"C{i}", marker="o", ms=3, label=critic.label)
        ax.set_xlabel("layer ℓ")
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
        ax.locator_params(axis="x", integer=True)
        ax.set_title(title, loc="left")
    every[0].legend(frameon=False)
    return drawn
