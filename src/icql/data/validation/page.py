"""The report page of a validation: one self-contained HTML file with pictures."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from icql.data.pictures import BLUE, GREY, ORANGE, draw_map, figure, inline
from icql.data.tasks import Task
from icql.data.transitions import Source, Steps, Transitions
from icql.data.validation.findings import Findings, counted
from icql.files import atomic

STYLE = """
:root { color-scheme: light dark; --line: #d5d9df; --soft: #f4f6f8; --bad: #b3261e; --warn: #9a5b00;
  --good: #1d7a3e; }
@media (prefers-color-scheme: dark) { :root { --line: #444a52; --soft: #22262b; --bad: #ff8a80;
  --warn: #ffb74d; --good: #7bd89a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.source { opacity: .7; margin: 0 0 1rem; overflow-wrap: anywhere; }
.verdict { font-weight: 600; padding: .6rem .8rem; border-left: .35rem solid;
  background: var(--soft); }
.error { color: var(--bad); } .warning { color: var(--warn); } .good { color: var(--good); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem; }
dl div { background: var(--soft); padding: .5rem .7rem; border-radius: .4rem; }
dt { font-size: .8rem; opacity: .75; } dd { margin: 0; font-size: 1.1rem; }
.finding { border-top: 1px solid var(--line); padding: .6rem 0; }
.finding p { margin: .2rem 0 0; overflow-wrap: anywhere; }
.where { opacity: .75; font-size: .9rem; overflow-wrap: anywhere; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem; }
figure { margin: 0; } figure img { width: 100%; height: auto; background: white;
  border-radius: .4rem; }
figcaption { font-size: .9rem; opacity: .8; }
"""


def write_report(folder: str | Path, name: str, findings: Findings, source: Source | None) -> Path:
    """Write `report.html` into `folder` and return its path.

    Args:
        folder: made if it is missing.
        name: what was validated.
        findings: what was found.
        source: what was read; None if it could not be read.
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
    if findings.transitions is not None:
        body.append(_pictures(findings.transitions))
    page = (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: data report</title><style>{STYLE}</style></head>\n"
        f"<body>\n{''.join(body)}\n</body>\n</html>\n"
    )
    path = Path(folder) / "report.html"
    with atomic(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def _verdict(findings: Findings) -> str:
    errors, warnings = len(findings.errors), len(findings.warnings)
    if errors:
        return f'<p class="verdict error">Not fit for training: {counted(errors, "error")}.</p>'
    if warnings:
        text = f"Fit for training, with {counted(warnings, 'warning')}."
        return f'<p class="verdict warning">{text}</p>'
    return '<p class="verdict good">Fit for training: nothing found.</p>'


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


def _pictures(data: Transitions) -> str:
    captions = {
        "Undiscounted return of every whole episode.": _histogram(data, "return"),
        "Length of every whole episode.": _histogram(data, "length"),
        "Reward at each step of an episode: median, middle 80 % and number of episodes that "
        "reach the step.": _reward_over_time(data),
        "State map: the two principal directions of the standardised states, coloured by the "
        "discounted return that followed.": _map(data),
    }
    parts = (
        f'<figure><img alt="{escape(text)}" src="{inline(drawn)}">'
        f"<figcaption>{escape(text)}</figcaption></figure>"
        for text, drawn in captions.items()
        if drawn is not None
    )
    return f'<h2>Pictures</h2><div class="pictures">{"".join(parts)}</div>'


def _histogram(data: Transitions, what: str) -> Figure | None:
    values = np.asarray(
        data.info.episode_returns if what == "return" else data.info.episode_lengths
    )
    if not len(values):
        return None
    drawn, axes = figure()
    bins = min(40, max(5, int(2 * np.sqrt(len(values)))))
    axes.hist(values, bins=bins, color=BLUE, edgecolor="white", linewidth=0.4)
    axes.axvline(np.median(values), color=ORANGE, ls="--", label=f"median {np.median(values):.4g}")
    axes.set(xlabel=what, ylabel="episodes")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return drawn


def _reward_over_time(data: Transitions, points: int = 200) -> Figure:
    """The reward's median and middle 80 %, over equal spans of steps in an episode."""
    drawn, axes = figure()
    longest = int(data.step.max()) + 1
    width = -(-longest // points)
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
    drawn, axes = figure(height=3.8)
    draw_map(axes, data, "return that followed (γ = 0.99)")
    return drawn
