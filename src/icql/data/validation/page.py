"""The report page of a validation: one self-contained HTML file with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from icql.data.pictures import BLUE, GREY, ORANGE, draw_map, figure, inline
from icql.data.tasks import Task
from icql.data.transitions import Source, Steps, Transitions
from icql.data.validation.columns import ColumnFacts
from icql.data.validation.findings import Findings, counted
from icql.files import atomic

POINTS = 200  # of a curve over the steps of an episode
ACTIONS, BESIDE = 12, 3  # actions at most that are drawn, in all and side by side


def write_report(
    folder: str | Path,
    name: str,
    findings: Findings,
    source: Source | None,
    columns: Sequence[ColumnFacts] = (),
) -> Path:
    """Write `report.html` into `folder`, made if it is missing, and return its path.

    `name` says what was validated; without a `source` it could not be read. `columns` are listed.
    """
    title = name if source is None else source.info.name
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="source">{escape(name if source is None else source.info.source)}</p>',
        _verdict(findings),
    ]
    if findings.transitions is not None and source is not None:
        body.append(_numbers(source.steps, findings.transitions, source.task))
    body.append(_listed(findings))
    body += [_columns(columns)] if columns else []
    if findings.transitions is not None:
        body.append(_pictures(findings.transitions, columns))
    page = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    path = Path(folder) / "report.html"
    with atomic(path) as temporary:
        filled = page.substitute(title=escape(title), body="".join(body))
        temporary.write_text(filled, encoding="utf-8")
    return path


def _verdict(findings: Findings) -> str:
    errors, warnings = len(findings.errors), len(findings.warnings)
    kind, text = "good", "Fit for training: nothing found."
    if warnings:
        kind, text = "warning", f"Fit for training, with {counted(warnings, 'warning')}."
    if errors:
        kind, text = "error", f"Not fit for training: {counted(errors, 'error')}."
    return f'<p class="verdict {kind}">{text}</p>'


def _numbers(steps: Steps, data: Transitions, task: Task | None) -> str:
    returns = np.asarray(data.info.episode_returns)
    lengths = np.asarray(data.info.episode_lengths)
    rewards = data.rewards.astype(np.float64)
    numbers = {
        "rows": f"{len(steps):,}",
        "invalid rows left out": f"{data.info.dropped:,}",
        "transitions": f"{len(data):,}",
        "episodes": f"{data.episodes():,}",
        "terminal / timed out": f"{steps.terminals.sum():,} / {steps.timeouts.sum():,}",
        "observation / action": f"{data.observation_dim} / {data.action_dim}",
        "reward": f"{rewards.mean():.3g} ± {rewards.std():.3g}",
    }
    if len(returns):
        numbers["return"] = f"{returns.mean():.4g} ({returns.min():.4g} … {returns.max():.4g})"
        numbers["length"] = f"{lengths.mean():.4g} ({lengths.min()} … {lengths.max()})"
    if task is not None:
        numbers["task"] = task.name
        score = task.behaviour_score(data.info)
        if score is not None:
            numbers["mean normalised score"] = f"{score:.1f}"
    items = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in numbers.items())
    return f"<dl>{''.join(items)}</dl>"


def _listed(findings: Findings) -> str:
    parts = (
        f'<div class="finding"><strong class="{kind}">{kind}: {escape(finding.rule)}</strong> '
        f'<span class="where">{escape(" · ".join(finding.place))}</span>'
        f"<p>{escape(finding.message)}</p></div>"
        for kind, found in (("error", findings.errors), ("warning", findings.warnings))
        for finding in found
    )
    return f"<h2>Findings</h2>{''.join(parts) or '<p>None.</p>'}"


def _columns(columns: Sequence[ColumnFacts]) -> str:
    def number(x: float | None) -> str:
        return "–" if x is None else f"{x:.4g}"

    heads = ("column", "role", "unit", "min", "max", "mean", "spread", "gaps", "values", "")
    rows = (
        (
            facts.name,
            facts.role,
            facts.unit,
            *map(number, (facts.low, facts.high, facts.mean, facts.spread)),
            f"{facts.gaps:,}",
            "constant" if facts.constant else f"{facts.different:,}",
            facts.bars,
        )
        for facts in columns
    )
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<h2>Columns</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _actions(columns: Sequence[ColumnFacts]) -> dict[str, Figure]:
    """Histograms of the actions in the units of the log, a few side by side."""
    acted = [f for f in columns if f.role == "action" and f.low is not None][:ACTIONS]
    drawn = {}
    for first in range(0, len(acted), BESIDE):
        group = acted[first : first + BESIDE]
        picture, panels = figure(panels=len(group))
        for axes, facts in zip(panels, group, strict=True):
            low, high = facts.low or 0.0, facts.high or 0.0
            bins = len(facts.histogram)
            edges = np.linspace(low, high if high > low else low + 1, bins + 1)
            axes.bar(edges[:-1], facts.histogram, np.diff(edges), align="edge", color=BLUE)
            axes.set(xlabel=f"{facts.name} {facts.unit}".rstrip()[:40].replace("$", r"\$"))
        panels[0].set(ylabel="steps")
        which = f" ({first + 1}–{first + len(group)})" if len(acted) > BESIDE else ""
        drawn[f"Actions that were logged{which}."] = picture
    return drawn


def _pictures(data: Transitions, columns: Sequence[ColumnFacts]) -> str:
    captions: dict[str, Figure | None] = {
        "Undiscounted return of every whole episode.": _histogram(data, "return"),
        "Length of every whole episode.": _histogram(data, "length"),
        "Reward at each step of an episode: median, middle 80 % and number of episodes that "
        "reach the step.": _reward_over_time(data),
        "State map: the two principal directions of the standardised states, coloured by the "
        "discounted return that followed.": _map(data),
        **_actions(columns),
    }
    parts = (
        f'<figure><img alt="{escape(text)}" src="{inline(drawn)}">'
        f"<figcaption>{escape(text)}</figcaption></figure>"
        for text, drawn in captions.items()
        if drawn is not None
    )
    return f'<h2>Pictures</h2><div class="pictures">{"".join(parts)}</div>'


def _histogram(data: Transitions, what: str) -> Figure | None:
    values = np.asarray(getattr(data.info, f"episode_{what}s"))
    if not len(values):
        return None
    drawn, (axes,) = figure()
    bins = min(40, max(5, int(2 * np.sqrt(len(values)))))
    axes.hist(values, bins=bins, color=BLUE, edgecolor="white", linewidth=0.4)
    axes.axvline(np.median(values), color=ORANGE, ls="--", label=f"median {np.median(values):.4g}")
    axes.set(xlabel=what, ylabel="episodes")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return drawn


def _reward_over_time(data: Transitions) -> Figure:
    """The reward's median and middle 80 %, over equal spans of steps in an episode."""
    drawn, (axes,) = figure()
    width = -(-(int(data.step.max()) + 1) // POINTS)
    order = np.argsort(data.step, kind="stable")
    span = data.step[order] // width
    cuts = np.flatnonzero(np.diff(span)) + 1
    groups = np.split(data.rewards[order].astype(np.float64), cuts)
    steps = span[np.append(0, cuts)] * width
    low, middle, high = np.array([np.percentile(group, [10, 50, 90]) for group in groups]).T
    axes.fill_between(steps, low, high, color=BLUE, alpha=0.2, lw=0, label="middle 80 %")
    axes.plot(steps, middle, color=BLUE, lw=1.5, label="median reward")
    axes.set(xlabel="step of the episode", ylabel="reward")
    count = axes.twinx()
    count.spines["top"].set_visible(False)
    alive = [len(group) / width for group in groups]
    count.plot(steps, alive, color=GREY, lw=1.5, ls=":", label="episodes")
    count.set(ylabel="episodes that reach it", ylim=(0, None))
    count.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    handles = [*axes.get_lines(), *axes.collections, *count.get_lines()]
    drawn.legend(handles=handles, frameon=False, loc="outside upper center", ncols=3)
    return drawn


def _map(data: Transitions) -> Figure:
    drawn, (axes,) = figure(height=3.8)
    draw_map(axes, data, "return that followed (γ = 0.99)")
    return drawn
